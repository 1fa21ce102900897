// Images on their way in: dropped, pasted, chosen or of an example, each looked at before it is sent.

import { Fault } from "./api.js";

const THUMBNAIL = 96; // longer side in pixels

/**
 * An image ready to be shown and sent: {file, name, url, width, height, thumbnail, address}.
 * `url` is a blob address for <img>, `address` where the server itself has the file, or null.
 */
export async function readImage(file, address = null) {
  const name = file.name || "pasted.png";
  if (file.size === 0) throw new Fault(`${name} is empty.`);
  const url = URL.createObjectURL(file);
  const picture = new Image();
  picture.src = url;
  try {
    await picture.decode();
  } catch {
    URL.revokeObjectURL(url);
    throw new Fault(whyNot(file, name));
  }
  const { naturalWidth: width, naturalHeight: height } = picture;
  return { file, name, url, width, height, thumbnail: thumbnailOf(picture), address };
}

function whyNot(file, name) {
  const kind = /\.(hei[cf]|tiff?|jp2|j2k|jpx|p[bgnp]m|raw|dng|cr2|nef|arw|psd|pdf|svgz?)$/i.exec(name)?.[1] ?? /(hei[cf])/i.exec(file.type)?.[1];
  if (kind) return `${name} is a ${kind.toUpperCase()} file, which this browser cannot show. Save it as JPEG or PNG.`;
  if (file.type && !file.type.startsWith("image/")) return `${name} is no image (${file.type}). Take a JPEG, PNG or WebP file.`;
  return `${name} cannot be read as an image: it is damaged or of another kind. Take a JPEG, PNG or WebP file.`;
}

function thumbnailOf(picture) {
  const scale = Math.min(1, THUMBNAIL / Math.max(picture.naturalWidth, picture.naturalHeight));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(picture.naturalWidth * scale));
  canvas.height = Math.max(1, Math.round(picture.naturalHeight * scale));
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.8);
}

/** Two files as [before, after]: by what their names say, else in the order of their names, as a camera counts. */
export function inOrder(files) {
  const [first, second] = [...files].sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
  const says = (file, word, not) => file.name.toLowerCase().includes(word) && !file.name.toLowerCase().includes(not);
  return says(first, "after", "before") || says(second, "before", "after") ? [second, first] : [first, second];
}

/**
 * Calls `take(files, side)` for files that are dropped anywhere, pasted, or chosen in a slot; `side` is null if they
 * came to no side in particular. `refuse(text)` is told of a drop without files.
 */
export function listen(slots, take, refuse) {
  for (const [side, slot] of Object.entries(slots)) {
    const input = slot.querySelector("input");
    input.addEventListener("change", () => {
      const files = [...input.files];
      input.value = ""; // the same file may be chosen again
      if (files.length) take(files, side);
    });
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
    else refuse("That was no file. Drop image files, or paste a picture.");
  });
  addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (!files.length) return;
    event.preventDefault();
    take(files, slotAt(document.activeElement)?.dataset.side ?? null);
  });
}
