// What to leave out: boxes over the image after, drawn with the pointer or written in a field.

import { framed } from "./compare.js";

const $ = (id) => document.getElementById(id);
const LEAST = 3; // pixels of a box's side; a click draws none

/** The parts of a pair of which all counts. */
export const WHOLE = { use: "ignore", boxes: [] };

let image = null; // the image after, from intake.js
let parts = WHOLE;

/** Shows the parts of a pair, in the field and as boxes on its image after. */
export function showParts(pair) {
  ({ after: image, parts } = pair);
  $("parts").hidden = !image;
  $("use").value = parts.use;
  $("part-boxes").value = parts.boxes.map((box) => box.join(", ")).join("; ");
  $("part-count").textContent = parts.boxes.length ? `: ${parts.boxes.length}` : "";
  $("drawing").hidden = !image?.url;
  if (!image?.url) return;
  $("drawing").style.setProperty("--ratio", image.width / image.height);
  $("drawing").querySelector("img").src = image.url;
  $("drawn").replaceChildren(...parts.boxes.map((box) => framed(box, image, parts.use, "")));
}

/** Calls `change(parts)` when the reader draws, writes or clears boxes, and `refuse(text)` for one that is none. */
export function listenToParts(change, refuse) {
  const changeBoxes = (boxes) => change({ use: $("use").value, boxes });
  $("use").addEventListener("change", () => changeBoxes(parts.boxes));
  $("no-boxes").addEventListener("click", () => changeBoxes([]));
  $("part-boxes").addEventListener("change", () => {
    const numbers = ($("part-boxes").value.match(/[\d.]+/g) ?? []).map(Number);
    if (numbers.length % 4) return refuse("A box has four numbers: left, top, right, bottom, in pixels of the image after.");
    changeBoxes(Array.from({ length: numbers.length / 4 }, (_, i) => numbers.slice(4 * i, 4 * i + 4)));
  });
  let start = null;
  const boxTo = (event) => {
    const [x, y] = place(event);
    return [Math.min(start[0], x), Math.min(start[1], y), Math.max(start[0], x), Math.max(start[1], y)];
  };
  const stage = $("drawing");
  stage.addEventListener("pointerdown", (event) => {
    start = place(event);
    stage.setPointerCapture(event.pointerId);
    event.preventDefault(); // else the picture is dragged
  });
  stage.addEventListener("pointermove", (event) => {
    if (start === null) return;
    const boxes = [...parts.boxes, boxTo(event)];
    $("drawn").replaceChildren(...boxes.map((box) => framed(box, image, $("use").value, "")));
  });
  stage.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const box = boxTo(event);
    start = null;
    changeBoxes(Math.min(box[2] - box[0], box[3] - box[1]) < LEAST ? parts.boxes : [...parts.boxes, box]);
  });
  stage.addEventListener("pointercancel", () => { start = null; });
}

/** Where a pointer is on the image, in its pixels. */
function place({ clientX, clientY }) {
  const { left, top, width, height } = $("drawing").getBoundingClientRect();
  const shares = [(clientX - left) / width, (clientY - top) / height];
  return shares.map((share, axis) => Math.round(Math.min(1, Math.max(0, share)) * [image.width, image.height][axis]));
}
