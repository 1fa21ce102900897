// What is shown of a pair in its two slots: the images, claims as boxes with names, the change map, the slider.

import { $, element, loadPicture } from "./dom.js";

const MAP_COLOR = [255, 120, 0];
const CLASS_COLORS = [[255, 214, 0], [235, 20, 60], [0, 170, 255], [170, 90, 255]];

/** The color of a class of change, by its number from 1 on. */
export const classColor = (number) => CLASS_COLORS[(number - 1) % CLASS_COLORS.length];

/** Shows the images of a pair, {url, width, height} each or null, without boxes and map. */
export function showImages(images) {
  for (const stage of document.querySelectorAll(".stage")) {
    const image = images[stage.dataset.image];
    const picture = stage.querySelector("img");
    picture.hidden = !image?.url;
    if (image?.url) picture.src = image.url;
    const hint = image ? "This browser cannot show this format; the server can read it." : "Choose or drop an image.";
    stage.querySelector(".hint").textContent = image?.url ? "" : hint;
    const ratio = image?.width ? image.width / image.height : 2;
    stage.style.setProperty("--ratio", ratio);
    $("slots").style.setProperty(`--ratio-${stage.dataset.image}`, ratio);
  }
  const visible = Boolean(images.before?.url && images.after?.url);
  offer("slider", visible, visible && $("show-slider").checked);
  showClaims([], images);
  showMap(null);
}

/** Shows or hides the checkbox for a part of the figures, and sets it. */
function offer(part, available, checked) {
  $(`show-${part}`).parentElement.hidden = !available;
  $(`show-${part}`).checked = checked;
}

// -- claims as boxes ------------------------------------------------------------------------------------------------

/** Shows claims as boxes with their names on both images of a pair, and as rows of a table. */
export function showClaims(claims, pair) {
  for (const boxes of document.querySelectorAll(".boxes")) {
    const side = boxes.parentElement.dataset.image;
    const framed = claims.flatMap((claim, i) => {
      const box = pair[side]?.url && claim[`box_${side}`];
      return box ? [frame(box, pair[side], claim.kind, i + 1, nameOf(claim, side))] : [];
    });
    boxes.replaceChildren(...framed);
    placeNames(boxes);
  }
  const boxed = document.querySelector(".boxes > div") !== null;
  offer("boxes", boxed, boxed);
  $("claims").hidden = !claims.length;
  const rows = claims.map((claim, i) => {
    const sides = ["before", "after"].filter((side) => claim[side]).map((side) => `${side}: ${claim[side]}`);
    const cells = [i + 1, nameOf(claim), claim.kind, claim.where, sides.join(", ")];
    return element("tr", { className: claim.kind }, ...cells.map((cell) => element("td", {}, cell)));
  });
  $("claims").tBodies[0].replaceChildren(...rows);
}

/** What a claim is about; with `side`, as it is named on that image, where words can be read. */
function nameOf({ object, count, kind, ...sides }, side = null) {
  if (side && object === "words") return "";
  const name = (kind === "replaced" && sides[side]) || object;
  return count > 1 ? `${count} × ${name}` : name;
}

/** A frame at `box` (left, top, right, bottom) of an image of this size, in the color of its kind, with a name. */
function frame(box, { width, height }, kind, number, name) {
  const [left, top, right, bottom] = box.map((value, i) => (100 * value) / [width, height][i % 2]);
  const outline = element("div", { className: kind });
  const [x, y, across, down] = [left, top, right - left, bottom - top].map((share) => `${share}%`);
  Object.assign(outline.style, { left: x, top: y, width: across, height: down });
  outline.append(element("span", {}, element("b", {}, number), ` ${name}`));
  return outline;
}

/** Moves names to where they cover no box and no other name; where there is no room, the number alone. */
function placeNames(boxes) {
  const area = boxes.getBoundingClientRect();
  const frames = [...boxes.children].map((box) => box.getBoundingClientRect());
  const covered = frames.map(({ x, y, width, height }) => new DOMRect(x - 3, y - 3, width + 6, height + 6)); // + line
  const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const inside = (a, b) => a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom;
  const isFree = ({ spot }) => inside(spot, area) && !covered.some((other) => overlap(spot, other));
  frames.forEach((box, i) => {
    const name = boxes.children[i].firstChild;
    const { left, top, right, bottom } = covered[i];
    const spots = ["", "short"].flatMap((form) => {
      name.className = form;
      const { width, height } = name.getBoundingClientRect();
      const [above, before] = [top - height, left - width];
      const over = [[left, above], [right - width, above], [left, bottom], [right - width, bottom]];
      const points = [...over, [right, top], [before, top], [before, above]];
      return points.map(([x, y]) => ({ form, spot: new DOMRect(x, y, width, height) }));
    });
    const { form, spot } = spots.find(isFree) ?? spots.at(-1); // else outside of the corner
    covered.push(spot);
    name.className = form;
    Object.assign(name.style, { left: `${spot.left - box.left}px`, top: `${spot.top - box.top}px` });
  });
}

const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => placeNames(target)));
document.querySelectorAll(".boxes").forEach((boxes) => resized.observe(boxes));

// -- both images in one frame ---------------------------------------------------------------------------------------

$("slider").addEventListener("input", () => {
  $("slots").style.setProperty("--divider", `${$("slider").value}%`);
  $("slider").setAttribute("aria-valuetext", `${$("slider").value} % before`);
});

// -- the change map -------------------------------------------------------------------------------------------------

/**
 * The grey values of a change map as opacity of one color. With `classes`, each pixel has the color of its class:
 * `classes.map` is a picture over the same place whose grey values are numbers of classes, and 0 where nothing changed.
 */
export async function readMap(url, classes) {
  if (!url) return null;
  const { width, height, values } = await greyValues(url);
  const numbers = classes && (await greyValues(classes.map, { width, height })).values;
  const pixels = new ImageData(width, height);
  values.forEach((value, i) => {
    const color = numbers === null ? MAP_COLOR : numbers[i] && classColor(numbers[i]);
    if (color) pixels.data.set([...color, value], 4 * i);
  });
  return pixels;
}

/** Shows a map over the image after, at once only where no boxes are, which are clearer; null for none. */
export function showMap(pixels) {
  $("map").hidden = !pixels;
  offer("map", Boolean(pixels), !document.querySelector(".boxes > div"));
  if (!pixels) return;
  Object.assign($("map"), { width: pixels.width, height: pixels.height });
  $("map").getContext("2d").putImageData(pixels, 0, 0);
}

/** Size and grey values of a picture, at its own size or the nearest pixels at another. */
async function greyValues(url, size = null) {
  const picture = await loadPicture(url);
  const { width, height } = size ?? picture;
  const drawing = new OffscreenCanvas(width, height).getContext("2d");
  drawing.imageSmoothingEnabled = false;
  drawing.drawImage(picture, 0, 0, width, height);
  return { width, height, values: drawing.getImageData(0, 0, width, height).data.filter((_, i) => i % 4 === 0) };
}
