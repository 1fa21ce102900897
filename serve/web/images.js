// Images of the reader: chosen in a slot, or dropped anywhere on the page.

import { loadPicture } from "./dom.js";

/**
 * An image for display and upload: {file, name, url, width, height}. The last three are null where this browser cannot
 * show the file; the server may know its format.
 */
export async function readImage(file) {
  const url = URL.createObjectURL(file);
  const { width, height } = await loadPicture(url).catch(() => ({ width: null, height: null }));
  return { file, name: file.name, url: width && url, width, height };
}

/** Two files as [before, after]: by these words in their names, else in numeric order of their names. */
export function orderFiles(files) {
  const [first, second] = [...files].sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
  const says = ({ name }, side, other) => name.toLowerCase().includes(side) && !name.toLowerCase().includes(other);
  return says(first, "after", "before") || says(second, "before", "after") ? [second, first] : [first, second];
}

/** Calls `take(files, side)` for chosen and dropped files; `side` is null for those dropped beside the slots. */
export function listenToFiles(take) {
  const slots = [...document.querySelectorAll(".slot")];
  for (const slot of slots) {
    const input = slot.querySelector("input");
    input.addEventListener("change", () => {
      const files = [...input.files];
      input.value = ""; // so that the same file can be chosen again
      if (files.length) take(files, slot.dataset.side);
    });
  }
  const mark = (target) => slots.forEach((slot) => slot.classList.toggle("over", slot === target));
  addEventListener("dragover", (event) => {
    event.preventDefault();
    mark(event.target.closest(".slot"));
  });
  addEventListener("dragleave", (event) => event.relatedTarget === null && mark(null));
  addEventListener("drop", (event) => {
    event.preventDefault();
    mark(null);
    const files = [...event.dataTransfer.files];
    if (files.length) take(files, event.target.closest(".slot")?.dataset.side ?? null);
  });
}
