// Input images: dropped, pasted, chosen, photographed or of an example, each checked before it is sent.

import { Fault } from "./api.js";

const THUMBNAIL = 96; // longer side in pixels
const ACCEPTED = document.getElementById("before").accept.split(",");
const FORMATS = document.getElementById("formats").textContent;
const EVERY_BROWSER = /^image\/(png|jpeg|webp|bmp|gif)$/;

/**
 * An image ready for display and upload: {file, name, url, width, height, thumbnail, address}.
 * `url` is a blob address for <img>, `address` the address of the file on the server, or null. For formats that the
 * server reads and this browser cannot show, `url`, `width`, `height` and `thumbnail` are null.
 */
export async function readImage(file, address = null) {
  const name = file.name || "pasted.png";
  if (file.size === 0) throw new Fault(`${name} is empty.`);
  if (file.type && !isAccepted(file)) throw new Fault(notAccepted(file, name));
  const url = URL.createObjectURL(file);
  const picture = new Image();
  picture.src = url;
  try {
    await picture.decode();
  } catch {
    URL.revokeObjectURL(url);
    if (isAccepted(file) && !EVERY_BROWSER.test(file.type)) {
      return { file, name, url: null, width: null, height: null, thumbnail: null, address };
    }
    if (!isAccepted(file)) throw new Fault(notAccepted(file, name));
    throw new Fault(`${name} cannot be read as an image: it is damaged or of another format. Accepted: ${FORMATS}.`);
  }
  const { naturalWidth: width, naturalHeight: height } = picture;
  return { file, name, url, width, height, thumbnail: thumbnailOf(picture), address };
}

/** Whether the server accepts a file, by media type or suffix. */
function isAccepted({ name, type }) {
  return ACCEPTED.some((one) => (one.startsWith(".") ? name.toLowerCase().endsWith(one) : one === type));
}

function notAccepted({ type }, name) {
  return `${name} has a format that is not accepted${type && ` (${type})`}. Accepted: ${FORMATS}.`;
}

function thumbnailOf(picture) {
  const scale = Math.min(1, THUMBNAIL / Math.max(picture.naturalWidth, picture.naturalHeight));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(picture.naturalWidth * scale));
  canvas.height = Math.max(1, Math.round(picture.naturalHeight * scale));
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.8);
}

/** Two files as [before, after]: by these words in their names, else in numeric order of their names. */
export function inOrder(files) {
  const [first, second] = [...files].sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
  const contains = (file, word, not) => file.name.toLowerCase().includes(word) && !file.name.toLowerCase().includes(not);
  return contains(first, "after", "before") || contains(second, "before", "after") ? [second, first] : [first, second];
}

/**
 * Calls `take(files, side)` for files that are dropped anywhere, pasted, or chosen in a slot; `side` is null if no slot
 * was the target. A drop without files calls `refuse(text)`.
 */
export function listen(slots, take, refuse) {
  for (const [side, slot] of Object.entries(slots)) {
    for (const input of slot.querySelectorAll("input")) {
      input.addEventListener("change", () => {
        const files = [...input.files];
        input.value = ""; // so that the same file can be chosen again
        if (files.length) take(files, side);
      });
    }
  }
  const slotAt = (target) => (target instanceof Element ? target.closest("[data-side]") : null);
  const mark = (over) => Object.values(slots).forEach((slot) => slot.classList.toggle("over", slot === over));
  addEventListener("dragover", (event) => {
    event.preventDefault();
    mark(slotAt(event.target));
  });
  addEventListener("dragleave", (event) => event.relatedTarget === null && mark(null));
  addEventListener("drop", (event) => {
    event.preventDefault();
    mark(null);
    const files = [...event.dataTransfer.files];
    if (files.length) take(files, slotAt(event.target)?.dataset.side ?? null);
    else refuse("That was not a file. Drop image files, or paste a picture.");
  });
  addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (!files.length) return;
    event.preventDefault();
    take(files, slotAt(document.activeElement)?.dataset.side ?? null);
  });
}
