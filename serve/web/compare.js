// The images of a result: each with its claims as boxes, and both in one frame with the slider between them, or one of
// them alone (flip, blink). All pictures, the change map too, follow the zoom.

const $ = (id) => document.getElementById(id);
const BLINK_MS = 600; // fewer than three flashes a second, as WCAG 2.3.1 asks
const MOST_ZOOM = 16;
const STEP = 1.5; // of a press on a zoom button
const PAN = 0.15; // of the frame, of a press on an arrow key
const KEYS = { b: flip, "+": () => zoomBy(STEP), "=": () => zoomBy(STEP), "-": () => zoomBy(1 / STEP), 0: () => zoomTo(1) };
const ARROWS = { ArrowLeft: [-PAN, 0], ArrowRight: [PAN, 0], ArrowUp: [0, -PAN], ArrowDown: [0, PAN] };

const stages = [...document.querySelectorAll("#figures .stage")];
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** Shows the images of a pair, {before, after} from intake.js, unmagnified. Returns whether the browser can. */
export function showImages(pair) {
  const { before, after } = pair;
  for (const stage of document.querySelectorAll("#result .stage")) {
    const { url, width, height } = pair[stage.dataset.image ?? "after"];
    stage.style.setProperty("--ratio", url === null ? 1 : width / height);
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

// -- claims ---------------------------------------------------------------------------------------------------------

/** Shows claims as a list and, with their names, as boxes on both images; none or null hides both. */
export function showClaims(claims, pair) {
  const seen = claims ?? [];
  for (const figure of document.querySelectorAll(".named")) {
    const { image: side } = figure.querySelector(".stage").dataset;
    figure.hidden = pair.before.url === null || pair.after.url === null || !seen.length;
    const boxes = seen.flatMap((claim, index) => {
      const box = claim[`box_${side}`];
      return box && pair[side].width !== null ? [framed(box, pair[side], claim.kind, `${index + 1} ${nameOf(claim, side)}`)] : [];
    });
    figure.querySelector(".boxes").replaceChildren(...boxes);
  }
  $("claims").hidden = !seen.length;
  $("claims").replaceChildren(...seen.map((claim) => listed(claim, pair)));
}

/** What a claim is about; with `side`, as it is named on that image. */
function nameOf({ object, count, kind, ...sides }, side) {
  const name = (kind === "replaced" && sides[side]) || object;
  return count > 1 ? `${count} × ${name}` : name;
}

/** A frame at `box` (left, top, right, bottom) of an image of a size, in the colour of its kind, with a text. */
export function framed(box, { width, height }, kind, text) {
  const frame = document.createElement("div");
  frame.dataset.kind = kind;
  const [left, top, right, bottom] = box.map((value, axis) => (100 * value) / [width, height][axis % 2]);
  Object.assign(frame.style, { left: `${left}%`, top: `${top}%`, width: `${right - left}%`, height: `${bottom - top}%` });
  if (!text) return frame;
  const label = document.createElement("span");
  label.textContent = text;
  label.className = `${top < 10 ? "inside" : ""} ${left > 60 ? "leftwards" : ""}`; // so that the frame's edge cuts none
  frame.append(label);
  return frame;
}

/** A claim in words; pressing it magnifies its box. */
function listed(claim, pair) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  const values = ["before", "after"].filter((side) => claim[side]).map((side) => `${side}: ${claim[side]}`);
  button.textContent = [`${claim.kind}: ${nameOf(claim)}`, claim.where, ...values].join(", ");
  const side = claim.box_after ? "after" : "before";
  button.addEventListener("click", () => {
    if (!claim[`box_${side}`] || pair[side].width === null) return;
    const [left, top, right, bottom] = claim[`box_${side}`].map((value, axis) => value / [pair[side].width, pair[side].height][axis % 2]);
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
