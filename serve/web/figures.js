// The pictures of a result: claims as boxes with names, both images with a slider between them, the change map.

import { $, element, loadPicture } from "./dom.js";

const MAP_COLOR = [255, 120, 0];
const CLASS_COLORS = [[255, 214, 0], [235, 20, 60], [0, 170, 255], [170, 90, 255]];

/** The color of a class of change, by its number from 1 on. */
export const classColor = (number) => CLASS_COLORS[(number - 1) % CLASS_COLORS.length];

/** Shows the images of a pair, {url, width, height} each, in all figures of the result. */
export function showImages(images) {
  const visible = images.before.url !== null && images.after.url !== null;
  $("compare-figure").hidden = !visible;
  for (const stage of document.querySelectorAll("#figures .stage")) {
    const { width, height } = images[stage.dataset.image ?? "after"];
    stage.style.setProperty("--ratio", width ? width / height : 1);
    for (const picture of stage.querySelectorAll("img")) {
      const { url } = images[picture.className];
      picture.hidden = url === null;
      if (url !== null) picture.src = url;
    }
  }
  $("not-shown").hidden = visible;
}

// -- claims as boxes ------------------------------------------------------------------------------------------------

/** Shows claims as boxes with their names on both images of a pair, and in words; without claims neither. */
export function showClaims(claims, pair) {
  for (const figure of document.querySelectorAll(".claimed")) {
    const side = figure.querySelector("img").className;
    figure.hidden = !claims.length || pair[side].url === null;
    const boxes = claims.flatMap((claim, i) => {
      const box = claim[`box_${side}`];
      return box && !figure.hidden ? [frame(box, pair[side], claim.kind, `${i + 1} ${nameOf(claim, side)}`)] : [];
    });
    figure.querySelector(".boxes").replaceChildren(...boxes);
  }
  $("claims").replaceChildren(...claims.map((claim) => element("li", {}, inWords(claim))));
}

/** What a claim is about; with `side`, as it is named on that image. */
function nameOf({ object, count, kind, ...sides }, side = null) {
  const name = (kind === "replaced" && sides[side]) || object;
  return count > 1 ? `${count} × ${name}` : name;
}

function inWords(claim) {
  const sides = ["before", "after"].filter((side) => claim[side]).map((side) => `${side}: ${claim[side]}`);
  return [`${claim.kind}: ${nameOf(claim)}`, claim.where, ...sides].join(", ");
}

/** A frame at `box` (left, top, right, bottom) of an image of this size, in the color of its kind, with a name. */
function frame(box, { width, height }, kind, name) {
  const [left, top, right, bottom] = box.map((value, i) => (100 * value) / [width, height][i % 2]);
  const outline = element("div", { className: kind });
  const [x, y, across, down] = [left, top, right - left, bottom - top].map((share) => `${share}%`);
  Object.assign(outline.style, { left: x, top: y, width: across, height: down });
  // The name stands above its frame, where there is room, and does not reach over the right edge.
  const placement = `${top < 10 ? "inside" : ""} ${left > 60 ? "leftwards" : ""}`;
  outline.append(element("span", { className: placement }, name));
  return outline;
}

// -- both images in one frame ---------------------------------------------------------------------------------------

$("slider").addEventListener("input", () => {
  $("compare").style.setProperty("--divider", `${$("slider").value}%`);
  $("slider").setAttribute("aria-valuetext", `${$("slider").value} % before`);
});

// -- the change map -------------------------------------------------------------------------------------------------

/**
 * Draws the grey values of a change map as opacity of one color. With `classes`, each pixel has the color of its class:
 * `classes.map` is a picture over the same place whose grey values are numbers of classes, and 0 where nothing changed.
 */
export async function showMap(url, classes) {
  $("map-figure").hidden = !url;
  delete $("map").dataset.drawn;
  if (!url) return;
  const { width, height, values } = await greyValues(url);
  const numbers = classes && (await greyValues(classes.map, { width, height })).values;
  const pixels = new ImageData(width, height);
  values.forEach((value, i) => {
    const color = numbers === null ? MAP_COLOR : numbers[i] && classColor(numbers[i]);
    if (color) pixels.data.set([...color, value], 4 * i);
  });
  Object.assign($("map"), { width, height });
  $("map").getContext("2d").putImageData(pixels, 0, 0);
  $("map").dataset.drawn = "yes";
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
