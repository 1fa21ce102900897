// The two images of a result in one frame: the slider between them, one of them alone (flip, blink), zoom, and the
// regions that differ as boxes. The change map follows the zoom and has the same boxes.

const $ = (id) => document.getElementById(id);
const BLINK_MS = 600; // fewer than three flashes a second, as WCAG 2.3.1 asks
const MOST_ZOOM = 16;
const STEP = 1.5; // of a press on a zoom button
const PAN = 0.15; // of the frame, of a press on an arrow key
const SVG = "http://www.w3.org/2000/svg";
const KEYS = { b: flip, "+": () => zoomBy(STEP), "=": () => zoomBy(STEP), "-": () => zoomBy(1 / STEP), 0: () => zoomTo(1) };
const ARROWS = { ArrowLeft: [-PAN, 0], ArrowRight: [PAN, 0], ArrowUp: [0, -PAN], ArrowDown: [0, PAN] };

const stages = [...document.querySelectorAll("#compare, #map-figure .stage")];
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** Shows the images of a pair, {before, after} from intake.js, unmagnified. Returns whether the browser can. */
export function showImages(pair) {
  const { before, after } = pair;
  const ratio = after.url === null ? 1 : after.width / after.height;
  for (const stage of document.querySelectorAll(".stage")) {
    stage.style.setProperty("--ratio", ratio);
    for (const image of stage.querySelectorAll("img")) {
      const { url } = pair[image.className];
      image.hidden = url === null;
      if (url !== null) image.src = url;
    }
  }
  const shown = before.url !== null && after.url !== null;
  $("compare-figure").hidden = !shown;
  showOnly(null);
  zoomTo(1);
  return shown;
}

// -- both, or one alone ---------------------------------------------------------------------------------------------

let alone = null; // the side that is shown alone, or null: both, divided by the slider
let timer = null; // of blinking

function showOnly(side) {
  alone = side;
  const share = { before: 100, after: 0 }[side] ?? $("slider").value;
  $("compare").style.setProperty("--at", `${share}%`);
  $("compare").dataset.alone = side ?? "";
  $("slider").setAttribute("aria-valuetext", `${$("slider").value} % before`);
  $("shown").textContent = side === null ? "" : `the image ${side}`;
  for (const end of document.querySelectorAll(".ends .end")) end.hidden = side !== null;
}

/** The other image alone, in the same frame. */
function flip() {
  showOnly(alone === "before" ? "after" : "before");
}

function flipOnce() {
  stopBlinking();
  flip();
}

/** Alternates by itself until it is pressed again; never for readers who ask for reduced motion: they flip. */
function blink() {
  if (timer !== null || still.matches) return stopBlinking();
  flip();
  timer = setInterval(flip, BLINK_MS);
  $("shown").removeAttribute("role"); // not read out at every change
  $("blink").setAttribute("aria-pressed", "true");
}

export function stopBlinking() {
  clearInterval(timer);
  timer = null;
  $("shown").setAttribute("role", "status");
  $("blink").setAttribute("aria-pressed", "false");
}

function offerBlinking() {
  stopBlinking();
  $("blink").hidden = still.matches;
}

// -- zoom -----------------------------------------------------------------------------------------------------------

let zoom = 1;
let centre = [0.5, 0.5]; // of the visible part, as shares of the image

function zoomTo(factor, at = centre) {
  zoom = Math.min(MOST_ZOOM, Math.max(1, factor));
  const half = 0.5 / zoom;
  centre = at.map((share) => Math.min(1 - half, Math.max(half, share)));
  for (const stage of stages) {
    stage.style.setProperty("--zoom", zoom);
    stage.style.setProperty("--x", `${100 * (0.5 - zoom * centre[0])}%`);
    stage.style.setProperty("--y", `${100 * (0.5 - zoom * centre[1])}%`);
    stage.classList.toggle("near", zoom > 1);
  }
  $("zoom").textContent = `${Math.round(100 * zoom)} %`;
  $("zoom-hint").hidden = zoom === 1;
  $("smaller").setAttribute("aria-disabled", String(zoom === 1));
  $("whole").setAttribute("aria-disabled", String(zoom === 1));
  $("larger").setAttribute("aria-disabled", String(zoom === MOST_ZOOM));
}

const zoomBy = (factor) => zoomTo(zoom * factor);

const panBy = (x, y) => zoomTo(zoom, [centre[0] + x / zoom, centre[1] + y / zoom]);

function dragToPan(stage) {
  let last = null;
  stage.addEventListener("pointerdown", (event) => {
    if (zoom === 1 || event.target.id === "slider") return;
    last = [event.clientX, event.clientY];
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (event) => {
    if (last === null) return;
    const { width, height } = stage.getBoundingClientRect();
    panBy((last[0] - event.clientX) / width, (last[1] - event.clientY) / height);
    last = [event.clientX, event.clientY];
  });
  for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, () => { last = null; });
}

// -- regions --------------------------------------------------------------------------------------------------------

/** Where the images differ in a sentence, or nothing if that is the caption. */
export function withoutModel({ objects_text: text, caption }) {
  return text && text !== caption ? `Without a trained model: ${text}` : "";
}

/**
 * Shows the regions that differ as boxes and as a list, with their sentence: before the caption of a pair that the model
 * is not familiar with, else above the list. `regions` is null if they were not looked
 * for, which `#find` offers.
 */
export function showRegions(result, after) {
  const { regions, familiar } = result;
  const text = withoutModel(result);
  $("find").hidden = Boolean(regions);
  $("regions").hidden = !regions;
  $("regions-first").textContent = familiar === false ? text : "";
  $("regions-text").textContent = familiar === false ? "" : text;
  $("boxes-label").hidden = !regions?.length;
  const size = after.width === null ? null : [after.width, after.height];
  for (const drawing of document.querySelectorAll("svg.boxes")) {
    drawing.replaceChildren(...(size ? (regions ?? []) : []).map(({ box }) => drawn(box)));
    if (size) drawing.setAttribute("viewBox", `0 0 ${size.join(" ")}`);
    drawing.toggleAttribute("hidden", !size || !regions?.length);
    drawing.setAttribute("aria-label", `Boxes of ${regions?.length ?? 0} regions that differ`);
  }
  $("region-list").replaceChildren(...(regions ?? []).map((region) => listed(region, size)));
}

function drawn([left, top, right, bottom]) {
  const box = document.createElementNS(SVG, "g");
  for (const name of ["edge", "line"]) {
    const rectangle = document.createElementNS(SVG, "rect");
    Object.entries({ class: name, x: left, y: top, width: right - left, height: bottom - top }).forEach(([key, value]) =>
      rectangle.setAttribute(key, value));
    box.append(rectangle);
  }
  return box;
}

/** A region in words; pressing it magnifies its box. */
function listed({ box, share, position, before, after }, size) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  const colours = before === after ? "" : `, ${before} before and ${after} after`;
  button.textContent = `${position}, ${(100 * share).toFixed(share < 0.01 ? 1 : 0)} % of the picture${colours}`;
  button.addEventListener("click", () => {
    if (size === null) return;
    const [left, top, right, bottom] = box.map((value, axis) => value / size[axis % 2]);
    zoomTo(0.85 / Math.max(right - left, bottom - top), [(left + right) / 2, (top + bottom) / 2]);
  });
  item.append(button);
  return item;
}

// -- controls -------------------------------------------------------------------------------------------------------

$("slider").addEventListener("input", () => { stopBlinking(); showOnly(null); });
$("flip").addEventListener("click", flipOnce);
$("blink").addEventListener("click", blink);
$("larger").addEventListener("click", () => zoomBy(STEP));
$("smaller").addEventListener("click", () => zoomBy(1 / STEP));
$("whole").addEventListener("click", () => zoomTo(1));
$("boxes").addEventListener("change", () => $("result").classList.toggle("boxless", !$("boxes").checked));
stages.forEach(dragToPan);
still.addEventListener("change", offerBlinking);
offerBlinking();
// Keys only where the focus is in the figures: single letters elsewhere belong to the reader's own tools.
$("figures").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const arrow = event.target.type === "range" ? undefined : ARROWS[event.key];
  const act = arrow && zoom > 1 ? () => panBy(...arrow) : KEYS[event.key.toLowerCase()];
  if (!act) return;
  event.preventDefault();
  if (act === flip) stopBlinking();
  act();
});
