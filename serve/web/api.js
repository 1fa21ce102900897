// Requests to the server. Addresses are relative to the page, so that it may be served under any prefix.

/**
 * An error in words for the reader; `side` is "before" or "after" if one image is the cause. `status` is 0 without an
 * answer, and `passing` if the same request may succeed later.
 */
export class RequestError extends Error {
  constructor(message, status = 400) {
    super(message);
    this.status = status;
    this.passing = [0, 408, 429].includes(status) || status >= 500;
    this.side = /^(before|after): /.exec(message)?.[1] ?? null;
  }
}

let token = null;

/** Sends this access token with all further requests, until the page is left. */
export function setToken(text) {
  token = text;
}

/** The descriptions of all models, the default first. */
export async function listModels() {
  return (await request("v1/models")).data;
}

/**
 * The server's answer for a pair {before, after}. `model` is a name, or empty for the default; `counts` names what
 * counts as a change, empty for everything. `canMap` is whether it draws change maps, null if that is not known yet:
 * then a map is requested, and a refusal accepted.
 */
export async function captionPair(pair, model, counts, canMap, signal) {
  const { before, after } = pair;
  const form = new FormData();
  form.append("before", before.file, before.name);
  form.append("after", after.file, after.name);
  if (model) form.append("model", model);
  if (counts) form.append("counts", counts);
  form.append("candidates", 3);
  form.append("change_map", canMap !== false);
  form.append("objects", "unfamiliar"); // for pairs unlike those that the model was trained on
  form.append("polygons", "georeferenced"); // for two GeoTIFFs
  try {
    return await request("v1/captions", { method: "POST", body: form, signal });
  } catch (error) {
    if (canMap === false || !error.message.startsWith("map: ")) throw error;
    return captionPair(pair, model, counts, false, signal);
  }
}

/** The chat completion of a conversation about a pair: {role, content} of each turn after the images. */
export async function askAboutPair({ before, after }, turns, model, signal) {
  const urls = await Promise.all([before, after].map(({ file }) => readAsDataUrl(file)));
  const images = urls.map((url) => ({ type: "image_url", image_url: { url } }));
  const conversation = { messages: [{ role: "user", content: images }, ...turns] };
  if (model) conversation.model = model;
  const headers = { "Content-Type": "application/json" };
  return request("v1/chat/completions", { method: "POST", body: JSON.stringify(conversation), headers, signal });
}

function readAsDataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.replace(/^data:[^,]*,/, "data:image/png;base64,"));
    reader.onerror = () => reject(new RequestError("The browser can no longer read the images. Choose them again."));
    reader.readAsDataURL(file);
  });
}

/** The JSON that the server answers. */
async function request(path, { headers = {}, ...options } = {}) {
  const authorization = token ? { Authorization: `Bearer ${token}` } : {};
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...headers, ...authorization } });
  } catch {
    throw new RequestError("The server cannot be reached. Check that it is running, then try again.", 0);
  }
  const body = await response.json().catch(() => null); // a proxy may answer with an HTML page
  if (response.ok && body) return body;
  const message = body?.error?.message ?? `The server's answer cannot be used (status ${response.status}).`;
  const seconds = response.headers.get("Retry-After");
  throw new RequestError(seconds ? `${message}. Try again in ${seconds} s.` : message, response.status);
}
