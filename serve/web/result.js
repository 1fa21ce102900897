// The answer of the server in words: warning, verdict, caption, shares, GeoTIFFs on the ground, details.

import { $, element, loadPicture } from "./dom.js";
import { classColor, readMap, showClaims, showImages, showMap } from "./figures.js";

const VERDICTS = { changed: "Changed", unchanged: "Unchanged", unsure: "Unsure whether anything changed" };

// Texts of a result that have their place; others, such as why `auto` chose its captioner, are details by their names.
const PLACED = ["caption", "verdict", "verdict_text", "warning", "captioner", "objects_text", "change_map"];

const percent = (share) => `${Math.round(100 * share)} %`;

let geojson = null; // polygons of the displayed result

/** Fills the sections of the answer with the server's answer for a pair, unless the reader turns to another one. */
export async function fillResult(answer, pair, signal) {
  const [result] = answer.results;
  const { classes, scene, objects_text: objects } = result;
  // Browsers show no TIFF: of a pair of GeoTIFFs the server sends pictures.
  const pictures = scene ? [scene.before, scene.after].map(pictureOfServer) : [pair.before, pair.after];
  const [before, after, map] = await Promise.all([...pictures, readMap(result.change_map, classes)]);
  if (signal.aborted) return;
  showImages({ before, after });
  showClaims(result.claims ?? [], pair);
  showMap(map);
  $("result").dataset.verdict = result.verdict ?? "";
  $("result").classList.toggle("unfamiliar", result.familiar === false);
  $("warning").textContent = result.warning ?? "";
  $("verdict").textContent = VERDICTS[result.verdict] ?? "";
  $("verdict-reason").textContent = result.verdict_text ?? "";
  const byModel = result.caption !== objects; // else the sentence of `objects` is the caption
  $("objects").textContent = objects && byModel ? objects : "";
  $("caption").textContent = result.caption;
  $("truth").textContent = pair.truth ? `Truth: ${pair.truth}` : "";
  showShare("confidence", byModel ? result.confidence : null);
  showShare("changed", result.changed_probability);
  showClasses(classes?.counts ?? []);
  geojson = scene?.geojson ?? null;
  $("scene").hidden = !scene;
  $("scene-text").textContent = scene?.sentence ?? "";
  $("candidates-part").hidden = result.candidates.length < 2;
  const lines = result.candidates.map(({ caption, confidence }) => `${caption} (${percent(confidence)})`);
  $("candidates").replaceChildren(...lines.map((line) => element("li", {}, line)));
  const { model, version, timing, request_id: request } = answer;
  const captioner = `Captioner: ${result.captioner ?? model}, version ${version}`;
  const further = Object.entries(result).filter(([name, text]) => typeof text === "string" && !PLACED.includes(name));
  const time = `${Math.round(timing.total_ms)} ms, request ${request}`;
  const about = [captioner, ...further.map((each) => each.join(": ")), time];
  $("about").replaceChildren(...about.map((line) => element("li", {}, line)));
  const withoutPicture = (_, value) => (value?.startsWith?.("data:") ? "(a picture)" : value);
  $("json").textContent = JSON.stringify(answer, withoutPicture, 2);
}

/** The displayed result in sentences, for screen readers. */
export function announceResult() {
  const ids = ["warning", "verdict", "verdict-reason", "objects", "caption", "scene-text"];
  const sentences = ids.map((id) => $(id).textContent).filter(Boolean);
  $("announcement").textContent = sentences.map((text) => text.replace(/\.?$/, ".")).join(" ");
}

async function pictureOfServer(url) {
  const { width, height } = await loadPicture(url);
  return { url, width, height };
}

/** Shows a share in percent and as a bar; null hides both. */
function showShare(id, share) {
  $(`${id}-line`).hidden = share === null;
  $(id).value = share ?? 0;
  $(`${id}-text`).textContent = share === null ? "" : percent(share);
}

/** The legend of the map: the color of each class, how many regions it has, and where. */
function showClasses(counts) {
  const items = counts.map(({ name, count, share, positions }, index) => {
    const swatch = element("i", {});
    swatch.style.background = `rgb(${classColor(index + 1).join(" ")})`;
    const area = share < 0.0005 ? "less than 0.1 %" : `${(100 * share).toFixed(1)} %`;
    const regions = count ? `, ${area} of the picture (${[...new Set(positions)].join(", ")})` : "";
    return element("li", {}, swatch, `${name}: ${count}${regions}`);
  });
  $("classes").replaceChildren(...items);
}

$("download").addEventListener("click", () => {
  const href = URL.createObjectURL(new Blob([JSON.stringify(geojson)], { type: "application/geo+json" }));
  element("a", { href, download: "changes.geojson" }).click();
});
