// Shows a result: warning, verdict, caption, bars, the images (compare.js), the change map, candidates.

import { showClaims, showImages, stopBlinking } from "./compare.js";

const $ = (id) => document.getElementById(id);

const percent = (share) => `${Math.round(100 * share)} %`;

/** A probability of a change in words. */
export function inWords(changed) {
  if (changed >= 0.95) return "almost certainly";
  if (changed >= 0.75) return "probably";
  if (changed > 0.25) return "uncertain";
  if (changed > 0.05) return "probably not";
  return "almost certainly not";
}

const VERDICTS = { changed: "Changed", unchanged: "Unchanged", unsure: "Unsure whether anything changed" };

/** Fills the section with `shown` = {answer, model, seconds}, the result of `pair`; `time`: of an earlier result, else null. */
export function show({ answer, seconds }, pair, time = null) {
  const result = answer.results[0];
  $("caption").textContent = result.caption;
  $("truth").hidden = pair.truth === null;
  $("truth").querySelector("span").textContent = pair.truth ?? "";
  showVerdict(result);
  const changed = result.changed_probability;
  $("probability").hidden = changed === null;
  if (changed !== null) bar("changed", changed, `${inWords(changed)}, ${percent(changed)}`);
  $("confidence-bar").hidden = !chosenByModel(result);
  bar("confidence", result.confidence, percent(result.confidence));
  const classes = result.classes ?? null; // absent from results that an earlier version has kept
  const scene = result.scene ?? null;
  showMap(result.change_map, classes);
  showClasses(classes);
  showScene(scene);
  const shown = showImages(scene ? shownByServer(pair, scene) : pair);
  $("missing").textContent = shown ? "" : "This browser cannot show the format of the images; the server can read them.";
  showClaims(result.claims, pair);
  $("find").hidden = result.objects_text !== null;
  $("speaker").textContent = `Captioner: ${result.captioner ?? answer.model}`;
  showCandidates(result.candidates);
  const batch = answer.timing.largest_batch;
  $("about").textContent =
    `${answer.model}, version ${answer.version} · ${seconds.toFixed(2)} s in total, ` +
    `${answer.timing.model_ms.toFixed(0)} ms in the model` +
    (batch > 1 ? ` together with ${batch - 1} more` : "") +
    sizes(result.seen) +
    ` · request ${answer.request_id}` +
    (time === null ? "" : ` · answered ${new Date(time).toLocaleString()}`);
  $("copied").textContent = "";
  $("result").hidden = false;
}

/** At what size the model saw the images, if it reports it. */
function sizes(seen) {
  if (!seen) return "";
  const [before, after] = [seen.before, seen.after].map(([height, width]) => `${width} × ${height}`);
  return ` · seen at ${before === after ? before : `${before} and ${after}`}`;
}

/** The result in a sentence, for screen readers. */
export function asSentence(result) {
  const { caption, verdict, verdict_text: reason, warning, familiar, classes, scene, objects_text: text } = result;
  const sentences = [warning, verdict === "unsure" ? `${VERDICTS.unsure}: ${reason}.` : null, `Caption: ${caption}`];
  if (classes) sentences.push(`Counted: ${classes.counts.map(({ name, count }) => `${name} ${count}`).join(", ")}.`);
  if (scene) sentences.push(scene.sentence);
  if (text && text !== caption) sentences.splice(familiar === false ? 2 : sentences.length, 0, text);
  return sentences.filter(Boolean).join(" ");
}

/** Whether a trained model wrote the caption: then its confidence is that of the words. */
export const chosenByModel = ({ caption, objects_text: text }) => caption !== text;

function showVerdict({ verdict, verdict_text: reason, warning, familiar, caption, objects_text: text }) {
  const shown = $("result").dataset;
  shown.verdict = verdict ?? "";
  shown.familiar = familiar === false ? "no" : "";
  $("verdict").hidden = !VERDICTS[verdict];
  $("verdict-name").textContent = VERDICTS[verdict] ?? "";
  $("verdict-text").textContent = reason ? `${reason[0].toUpperCase()}${reason.slice(1)}.` : "";
  $("objects").hidden = !text || text === caption;
  $("objects-text").textContent = text ?? "";
  $("readings")[familiar === false ? "before" : "after"]($("objects"));
  $("warning").hidden = !warning;
  $("warning-text").textContent = warning ?? "";
}

/** A small share in percent, with at least one non-zero digit where possible. */
function share(value) {
  if (value >= 0.01 || value === 0) return percent(value);
  return value < 0.0005 ? "less than 0.1 %" : `${(100 * value).toFixed(1)} %`;
}

export function hide() {
  stopBlinking();
  $("result").hidden = true;
}

/** The response without its pictures. */
export function asJson(answer) {
  const isPicture = (value) => typeof value === "string" && value.startsWith("data:image/");
  return JSON.stringify(answer, (_, value) => (isPicture(value) ? undefined : value), 2);
}

/** Words, and a bar with the length of the share. */
function bar(id, share, words) {
  $(id).textContent = words;
  const track = $(`${id}-track`);
  track.firstElementChild.style.width = `${100 * share}%`;
  track.setAttribute("aria-valuenow", String(Math.round(100 * share)));
  track.setAttribute("aria-valuetext", words);
}

// -- the map --------------------------------------------------------------------------------------------------------

const MAP_COLOUR = [255, 120, 0];
const CLASS_COLOURS = [[255, 214, 0], [235, 20, 60], [0, 170, 255], [170, 90, 255]];

const painting = new WeakMap(); // canvas -> the picture that it is to show

/** The colour of a class, by its number from 1 on. */
const colourOf = (number) => CLASS_COLOURS[(number - 1) % CLASS_COLOURS.length];

/** Shows the change map; with `classes` each pixel in the colour of its class, and none of the background. */
function showMap(dataUrl, classes) {
  $("map-figure").hidden = !dataUrl;
  if (!dataUrl) return;
  paint($("map"), dataUrl, MAP_COLOUR, classes?.map);
  fade();
}

/**
 * Draws a grey map in one colour, with its grey values as opacity. `classMap` is a picture over the same place whose
 * grey values are numbers of classes: then each pixel has its class's colour, and those of 0 none.
 */
async function paint(canvas, dataUrl, colour, classMap = null) {
  delete canvas.dataset.drawn;
  painting.set(canvas, dataUrl);
  const [picture, kinds] = await Promise.all([dataUrl, classMap].map((url) => url && loaded(url)));
  if (painting.get(canvas) !== dataUrl) return; // another result has come
  [canvas.width, canvas.height] = [picture.naturalWidth, picture.naturalHeight];
  const numbers = kinds && greyValues(canvas, kinds); // drawn first: the canvas is used for both
  const values = greyValues(canvas, picture);
  const pixels = new ImageData(canvas.width, canvas.height);
  values.forEach((value, i) => {
    if (!numbers) pixels.data.set([...colour, value], 4 * i);
    else if (numbers[i] > 0) pixels.data.set([...colourOf(numbers[i]), value], 4 * i);
  });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  canvas.dataset.drawn = "yes";
}

async function loaded(url) {
  const picture = new Image();
  picture.src = url;
  await picture.decode();
  return picture;
}

/** The grey values of a picture at the size of a canvas, which it is drawn on; of the nearest pixel, not between two. */
function greyValues(canvas, picture) {
  const drawing = canvas.getContext("2d", { willReadFrequently: true });
  drawing.imageSmoothingEnabled = false;
  drawing.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return drawing.getImageData(0, 0, canvas.width, canvas.height).data.filter((_, i) => i % 4 === 0);
}

/** The legend of the map: each class with its colour, how many regions it has, and where. */
function showClasses(classes) {
  $("classes").hidden = !classes;
  const items = (classes?.counts ?? []).map(({ name, count, share: area, positions }, index) => {
    const item = document.createElement("li");
    const swatch = document.createElement("i");
    swatch.style.background = `rgb(${colourOf(index + 1).join(" ")})`;
    const cells = [...new Set(positions)].join(", ");
    item.append(swatch, `${name}: ${count}${count ? `, ${share(area)} of the picture (${cells})` : ""}`);
    return item;
  });
  $("classes").replaceChildren(...items);
}

// -- GeoTIFFs -------------------------------------------------------------------------------------------------------

const KEPT_MS = 60_000; // until the browser has surely written a download
let download = () => {};

/** Shows the sentence of a pair of GeoTIFFs, and offers its polygons. */
function showScene(scene) {
  $("scene").hidden = !scene;
  $("scene-text").textContent = scene?.sentence ?? "";
  download = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(scene.geojson)], { type: "application/geo+json" }));
    link.download = "changes.geojson";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
  };
}

$("download").addEventListener("click", () => download());

/** The pair with the server's pictures of the images that this browser cannot show. */
function shownByServer(pair, scene) {
  const shown = (side) => (pair[side].url === null ? { ...pair[side], url: scene[side], ...sizeOfPng(scene[side]) } : pair[side]);
  return { ...pair, before: shown("before"), after: shown("after") };
}

/** Width and height, from the header of a PNG. */
function sizeOfPng(dataUrl) {
  const bytes = Uint8Array.from(atob(dataUrl.split(",", 2)[1].slice(0, 32)), (letter) => letter.charCodeAt(0));
  const numbers = new DataView(bytes.buffer);
  return { width: numbers.getUint32(16), height: numbers.getUint32(20) };
}

function fade() {
  $("map").style.opacity = $("opacity").value / 100;
  $("opacity").setAttribute("aria-valuetext", `${$("opacity").value} %`);
}

function showCandidates(candidates) {
  $("others").hidden = candidates.length < 2;
  $("candidates").replaceChildren(
    ...candidates.map(({ caption, confidence }) => {
      const item = document.createElement("li");
      const text = document.createElement("span");
      text.textContent = caption;
      const share = document.createElement("span");
      share.className = "soft small";
      share.textContent = ` ${percent(confidence)}`;
      item.append(text, share);
      return item;
    }),
  );
}

$("opacity").addEventListener("input", fade);
