// What this browser keeps, and nobody else: the last answers with their images, and the pair of each open tab.

import { clear, keep, newest } from "./store.js";

const MOST_ANSWERS = 20;
const MOST_TABS = 4;
const MOST_BYTES = 64 * 2 ** 20; // of the answers, and again of the pairs
const TAB = "idc.tab";

const sizeOf = ({ pair, shown }) =>
  (pair.before?.file.size ?? 0) + (pair.after?.file.size ?? 0) + (shown ? JSON.stringify(shown).length : 0);

/** The part of a pair of intake.js that can be kept; `readImage` makes the rest again. */
function keepable({ before, after, truth }) {
  const [first, second] = [before, after].map((image) => image && { file: image.file, address: image.address });
  return { before: first, after: second, truth };
}

function kept(id, pair, shown) {
  const record = { id, time: Date.now(), pair: keepable(pair), shown };
  return { ...record, bytes: sizeOf(record) };
}

const randomId = () => crypto.getRandomValues(new Uint32Array(4)).join("-");

/** Adds `shown` = {answer, model, seconds, meaningful}, the answer to `pair`; the oldest go when there are too many. */
export async function remember(pair, shown) {
  const thumbnails = { before: pair.before.thumbnail, after: pair.after.thumbnail };
  await keep("answers", { ...kept(randomId(), pair, shown), thumbnails }, MOST_ANSWERS, MOST_BYTES);
}

export async function forget() {
  await Promise.all([clear("answers"), clear("pairs")]);
}

/** Keeps the pair of this tab, and its answer or null, over a reload. */
export async function keepForTab(pair, shown) {
  await keep("pairs", kept(tab(), pair, shown), MOST_TABS, MOST_BYTES);
}

/** What `keepForTab` kept last for this tab, {pair, shown}, or undefined. */
export async function keptForTab() {
  return (await newest("pairs")).find(({ id }) => id === tab());
}

function tab() {
  try {
    const id = sessionStorage.getItem(TAB) ?? randomId();
    sessionStorage.setItem(TAB, id);
    return id;
  } catch {
    return ""; // a browser that keeps nothing
  }
}

/** Draws the list; an empty one hides its section. `reopen(record)` is called for the one that is pressed. */
export async function drawHistory(section, list, reopen) {
  const records = await newest("answers");
  section.hidden = records.length === 0;
  list.replaceChildren(
    ...records.map((record) => {
      const { model, results } = record.shown.answer;
      const button = document.createElement("button");
      const text = document.createElement("span");
      const caption = line(results[0].caption, "");
      const when = new Date(record.time).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
      const sure = `${Math.round(100 * results[0].confidence)} %`;
      const verdict = results[0].verdict === "unsure" ? "unsure · " : "";
      const doubt = results[0].familiar === false ? "unfamiliar images · " : "";
      text.append(caption, line(`${verdict}${doubt}${sure} · ${model} · ${when}`, "soft small"));
      button.append(picture(record.thumbnails.before, "before"), picture(record.thumbnails.after, "after"), text);
      button.addEventListener("click", () => reopen(record));
      const item = document.createElement("li");
      item.append(button);
      return item;
    }),
  );
}

function line(text, style) {
  const made = document.createElement("span");
  made.className = style;
  made.textContent = text;
  return made;
}

function picture(source, alt) {
  if (!source) return line("no picture", "soft small"); // of a format that this browser cannot show
  const image = document.createElement("img");
  image.alt = alt;
  image.src = source;
  return image;
}
