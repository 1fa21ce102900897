// Storage in this browser only: the last results with their images, and the pair of each open tab.

import { chosenByModel } from "./result.js";
import { clear, keep, newest } from "./store.js";

const MOST_ANSWERS = 20;
const MOST_TABS = 4;
const MOST_BYTES = 64 * 2 ** 20; // for the results, and the same for the pairs
const TAB = "idc.tab";

const sizeOf = ({ pair, shown }) =>
  (pair.before?.file.size ?? 0) + (pair.after?.file.size ?? 0) + (shown ? JSON.stringify(shown).length : 0);

/** The part of a pair from intake.js that can be stored; `readImage` restores the rest. */
function keepable({ before, after, truth, parts }) {
  const [first, second] = [before, after].map((image) => image && { file: image.file, address: image.address });
  return { before: first, after: second, truth, parts };
}

function kept(id, pair, shown) {
  const record = { id, time: Date.now(), pair: keepable(pair), shown };
  return { ...record, bytes: sizeOf(record) };
}

const randomId = () => crypto.getRandomValues(new Uint32Array(4)).join("-");

/** Adds `shown` = {answer, model, seconds}, the result of `pair`; the oldest ones are removed. */
export async function remember(pair, shown) {
  const thumbnails = { before: pair.before.thumbnail, after: pair.after.thumbnail };
  await keep("answers", { ...kept(randomId(), pair, shown), thumbnails }, MOST_ANSWERS, MOST_BYTES);
}

export async function forget() {
  await Promise.all([clear("answers"), clear("pairs")]);
}

/** Stores the pair of this tab, and its result or null, for a reload. */
export async function keepForTab(pair, shown) {
  await keep("pairs", kept(tab(), pair, shown), MOST_TABS, MOST_BYTES);
}

/** The last record of `keepForTab` for this tab, {pair, shown}, or undefined. */
export async function keptForTab() {
  return (await newest("pairs")).find(({ id }) => id === tab());
}

function tab() {
  try {
    const id = sessionStorage.getItem(TAB) ?? randomId();
    sessionStorage.setItem(TAB, id);
    return id;
  } catch {
    return ""; // this browser stores nothing
  }
}

/** Draws the list and hides the section of an empty one. A click on an entry calls `reopen(record)`. */
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
      const sure = chosenByModel(results[0]) ? `${Math.round(100 * results[0].confidence)} % · ` : "";
      const verdict = results[0].verdict === "unsure" ? "unsure · " : "";
      const doubt = results[0].familiar === false ? "unfamiliar images · " : "";
      text.append(caption, line(`${verdict}${doubt}${sure}${results[0].captioner ?? model} · ${when}`, "soft small"));
      button.append(picture(record.thumbnails.before, "before"), picture(record.thumbnails.after, "after"), text);
      button.addEventListener("click", () => reopen(record));
      const item = document.createElement("li");
      item.append(button);
      return item;
    }),
  );
}

function line(text, style) {
  const span = document.createElement("span");
  span.className = style;
  span.textContent = text;
  return span;
}

function picture(source, alt) {
  if (!source) return line("no picture", "soft small"); // a format that this browser cannot show
  const image = document.createElement("img");
  image.alt = alt;
  image.src = source;
  return image;
}
