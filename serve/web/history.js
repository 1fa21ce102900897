// The last answers, in this browser alone: thumbnails of some kilobytes, captions, times.

const KEY = "idc.history";
const MOST = 20;

function read() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(kept) ? kept : [];
  } catch {
    return []; // kept by another program, or nothing may be kept
  }
}

/** Adds an answer, {before, after, caption, confidence, model, time}; the oldest go when there are too many. */
export function remember(entry) {
  const entries = [entry, ...read()].slice(0, MOST);
  while (entries.length) {
    try {
      localStorage.setItem(KEY, JSON.stringify(entries));
      return;
    } catch {
      entries.pop(); // the browser's own limit
    }
  }
}

export function forget() {
  try {
    localStorage.removeItem(KEY);
  } catch {
    // Nothing may be kept, so nothing is.
  }
}

/** Draws the list; an empty one hides its section. */
export function drawHistory(section, list) {
  const entries = read();
  section.hidden = entries.length === 0;
  list.replaceChildren(
    ...entries.map((entry) => {
      const item = document.createElement("li");
      const text = document.createElement("div");
      const caption = document.createElement("p");
      caption.textContent = entry.caption;
      const about = document.createElement("p");
      about.className = "soft small";
      const when = new Date(entry.time).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
      about.textContent = `${Math.round(100 * entry.confidence)} % · ${entry.model} · ${when}`;
      text.append(caption, about);
      item.append(picture(entry.before, "before"), picture(entry.after, "after"), text);
      return item;
    }),
  );
}

function picture(source, alt) {
  const image = document.createElement("img");
  image.alt = alt;
  if (String(source).startsWith("data:image/")) image.src = source;
  return image;
}
