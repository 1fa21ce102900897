// What does not count, or alone counts: boxes on the image after, drawn with the pointer or written in a field.

import { $ } from "./dom.js";
import { frame } from "./figures.js";

const MIN_SIDE = 3; // pixels; a click draws no box

export const NO_PARTS = { use: "ignore", boxes: [] };

let image = null; // the image after, from images.js
let parts = NO_PARTS;

/** Shows the parts of a pair, in the field and on its image after. */
export function showParts(pair) {
  ({ after: image, parts } = pair);
  $("parts").hidden = !image;
  $("part-use").value = parts.use;
  $("part-boxes").value = parts.boxes.map((box) => box.join(", ")).join("; ");
  $("drawing").hidden = !image?.url;
  if (!image?.url) return;
  $("drawing").style.setProperty("--ratio", image.width / image.height);
  $("drawing").querySelector("img").src = image.url;
  drawBoxes(parts.boxes);
}

function drawBoxes(boxes) {
  $("drawing").querySelector(".boxes").replaceChildren(...boxes.map((box) => frame(box, image, "part")));
}

/** Calls `change(parts)` when the reader draws, writes or removes boxes, `refuse(text)` for numbers that are none. */
export function listenToParts(change, refuse) {
  const setBoxes = (boxes) => change({ use: $("part-use").value, boxes });
  $("part-use").addEventListener("change", () => setBoxes(parts.boxes));
  $("part-boxes").addEventListener("change", () => {
    const numbers = ($("part-boxes").value.match(/[\d.]+/g) ?? []).map(Number);
    if (numbers.length % 4) return refuse("A box has four numbers: left, top, right, bottom.");
    setBoxes(Array.from({ length: numbers.length / 4 }, (_, i) => numbers.slice(4 * i, 4 * i + 4)));
  });
  let start = null; // where the pointer went down
  const boxTo = (event) => {
    const [x, y] = pixelAt(event);
    return [Math.min(start[0], x), Math.min(start[1], y), Math.max(start[0], x), Math.max(start[1], y)];
  };
  $("drawing").addEventListener("pointerdown", (event) => {
    start = pixelAt(event);
    $("drawing").setPointerCapture(event.pointerId);
    event.preventDefault(); // else the picture is dragged
  });
  $("drawing").addEventListener("pointermove", (event) => start && drawBoxes([...parts.boxes, boxTo(event)]));
  $("drawing").addEventListener("pointerup", (event) => {
    const box = boxTo(event);
    start = null;
    if (Math.min(box[2] - box[0], box[3] - box[1]) >= MIN_SIDE) setBoxes([...parts.boxes, box]);
  });
  $("drawing").addEventListener("pointercancel", () => { start = null; });
}

/** The pixel of the image below the pointer. */
function pixelAt({ clientX, clientY }) {
  const { left, top, width, height } = $("drawing").getBoundingClientRect();
  const shares = [(clientX - left) / width, (clientY - top) / height];
  return shares.map((share, axis) => Math.round(Math.min(1, Math.max(0, share)) * [image.width, image.height][axis]));
}
