// Requests of the page to the server: the models, and the captions of a pair. Addresses are relative to the page, so
// that the application may be served under any prefix.

const TIMEOUT_MS = 120_000; // for a server that does not respond at all; its own time limit is shorter
const TOKEN = "idc.token";

/** An error message for the reader; `side` is "before" or "after" if one image is the cause, `wait` is in seconds. */
export class Fault extends Error {
  constructor(message, { status = 0, side = null, wait = null } = {}) {
    super(message);
    Object.assign(this, { status, side, wait });
  }
}

export const here = (path) => new URL(path, document.baseURI).href;

let token = null;
try {
  token = sessionStorage.getItem(TOKEN);
} catch {
  // This browser stores nothing, so there is no token.
}

/** Sends this access token with all further requests, until the tab is closed. */
export function keepToken(text) {
  token = text;
  try {
    sessionStorage.setItem(TOKEN, text);
  } catch {
    // The token is lost when the page is left.
  }
}

export const hasToken = () => token !== null;

/** The descriptions of all models, the default first. */
export async function models() {
  return (await call("v1/models")).data;
}

const CANDIDATES = 3;
const OPTIONS = { map: "change_map" }; // how a refusal begins: the option it is about
const refused = new Map(); // name of a model -> the options that it refused

/**
 * The response for a pair of images from intake.js; `model` may be empty for the default, and `description` is that of
 * the model, if it is known: what it cannot do is not asked for. `objects` is "unfamiliar" or "always".
 */
export async function caption({ before, after, parts }, { model, description, objects }, signal) {
  const form = new FormData();
  form.append("before", before.file, before.name);
  form.append("after", after.file, after.name);
  if (model) form.append("model", model);
  form.append("candidates", CANDIDATES);
  form.append("objects", objects);
  if (parts.boxes.length) form.append(parts.use, JSON.stringify(parts.boxes));
  form.append("polygons", "georeferenced"); // of two GeoTIFFs alone
  const without = refused.get(model) ?? new Set();
  if (description?.can_map === false) without.add("change_map");
  for (const option of Object.values(OPTIONS)) form.append(option, !without.has(option));
  try {
    return await call("v1/captions", { method: "POST", body: form, signal });
  } catch (error) {
    const option = error instanceof Fault ? OPTIONS[error.message.split(":", 1)[0]] : undefined;
    if (!option || without.has(option)) throw error;
    refused.set(model, without.add(option));
    return caption({ before, after, parts }, { model, description, objects }, signal);
  }
}

/** The chat completion of a conversation that begins with a pair and goes on with `turns`, {role, content} each. */
export async function answer({ before, after, parts }, turns, model, signal) {
  const urls = await Promise.all([before, after].map(({ file }) => dataUrl(file)));
  const images = urls.map((url) => ({ type: "image_url", image_url: { url } }));
  const body = { messages: [{ role: "user", content: images }, ...turns], ...(model && { model }), [parts.use]: parts.boxes };
  const type = { "Content-Type": "application/json" };
  return call("v1/chat/completions", { method: "POST", body: JSON.stringify(body), headers: type, signal });
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result.replace(/^data:[^,]*,/, "data:image/png;base64,")));
    reader.addEventListener("error", () => reject(new Fault("The browser can no longer read the images.")));
    reader.readAsDataURL(file);
  });
}

async function call(path, { signal, headers: given = {}, ...options } = {}) {
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  const headers = token ? { ...given, Authorization: `Bearer ${token}` } : given;
  try {
    const response = await fetch(here(path), { ...options, headers, signal: signal ? AbortSignal.any([signal, limit]) : limit });
    if (response.ok) return await response.json();
    throw await faultOf(response);
  } catch (error) {
    if (error instanceof Fault || signal?.aborted) throw error;
    if (error.name === "TimeoutError") throw new Fault("The server has not responded for two minutes. Try again.");
    if (!navigator.onLine) throw new Fault("You are offline. Try again when the connection is back.");
    throw new Fault("The server cannot be reached, or the connection was lost. Check that it is running, then try again.");
  }
}

async function faultOf(response) {
  const body = await response.json().catch(() => null); // a proxy may have responded with an HTML page
  const error = body?.error;
  const side = /(?:^|\.)(before|after)$/.exec(error?.param ?? "")?.[1] ?? /^(before|after): /.exec(error?.message ?? "")?.[1] ?? null;
  const about = { status: response.status, side };
  if (response.status === 429 || response.status === 503) {
    const wait = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
    about.wait = Number.isFinite(wait) ? wait : null;
  }
  return new Fault(error?.message ?? `The server responded with status ${response.status}.`, about);
}

// -- the request as a shell command -------------------------------------------------------------------------------

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** An argument of curl -F that uploads a file; the inner quotes protect commas and semicolons in the name. */
const upload = (side, name) => `-F ${quote(`${side}=@"${name.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`)}`;

/**
 * The request as a command for a POSIX shell, and the files that must be in its working directory; `polygons` is whether
 * its answer has some.
 * It requests no pictures, which would fill the terminal, and refers to the token by a variable.
 */
export function curl({ before, after, parts }, model, polygons) {
  const same = before.name === after.name;
  const nameOf = (side, image) => (same ? `${side}-${image.name}` : image.name);
  const names = { before: nameOf("before", before), after: nameOf("after", after) };
  const lines = [`curl -sS ${quote(here("v1/captions"))}`];
  if (hasToken()) lines.push('-H "Authorization: Bearer $IDC_TOKEN"');
  lines.push(upload("before", names.before), upload("after", names.after));
  if (model) lines.push(`-F ${quote(`model=${model}`)}`);
  lines.push(`-F candidates=${CANDIDATES}`);
  if (polygons) lines.push("-F polygons=always");
  if (parts.boxes.length) lines.push(`-F ${quote(`${parts.use}=${JSON.stringify(parts.boxes)}`)}`);
  const command = lines.join(" \\\n  ");
  if (!before.address || !after.address) return { command, needs: [names.before, names.after] };
  const fetches = [["before", before], ["after", after]].map(([side, image]) => `-o ${quote(names[side])} ${quote(image.address)}`);
  return { command: `curl -sS ${fetches.join(" ")} && \\\n${command}`, needs: [] };
}
