// The page: two slots for images, a request to the server, and its answer. What is shown follows `pair`.

import { RequestError, captionPair, listModels, setToken } from "./api.js";
import { beginDialogue, endDialogue } from "./dialogue.js";
import { $, element } from "./dom.js";
import { showImages } from "./figures.js";
import { listenToFiles, orderFiles, readImage } from "./images.js";
import { announceResult, fillResult } from "./result.js";

const SIDES = ["before", "after"];
const EXAMPLES = new URL("examples/", import.meta.url);

let pair = { before: null, after: null, truth: null }; // images from images.js
let request = null; // the AbortController of the current request
let models = []; // descriptions by the server, the default first

// -- errors ---------------------------------------------------------------------------------------------------------

/** Shows an error: above the image that is its cause, or in place of the answer; a missing token by its form. */
function showError(error) {
  if (error.status === 401) {
    $("token-form").hidden = false;
    $("token").focus();
  }
  const line = $(error.status === 401 ? "token-error" : error.side ? `${error.side}-error` : "error");
  line.textContent = error.message.replace(/^(before|after): /, (_, side) => `${pair[side].name}: `);
  $("retry").hidden = line !== $("error") || !error.passing;
}

function clearErrors() {
  for (const line of document.querySelectorAll(".error")) line.textContent = "";
  $("retry").hidden = true;
}

// -- the pair -------------------------------------------------------------------------------------------------------

/** Applies `changes` to the pair and shows it; the result and the request of the previous pair are discarded. */
function setPair(changes) {
  pair = { ...pair, truth: null, ...changes };
  showPair();
}

function showPair() {
  request?.abort();
  $("waiting").textContent = "";
  clearErrors();
  $("result").hidden = $("more").hidden = true;
  endDialogue();
  showImages(pair);
  for (const side of SIDES) {
    const image = pair[side];
    document.querySelector(`.slot[data-side=${side}]`).classList.toggle("full", image !== null);
    const size = image?.url ? `${image.width} × ${image.height}` : "a format that this browser cannot show";
    $(`${side}-name`).textContent = image ? `${image.name}, ${size}` : "";
  }
  const missing = SIDES.filter((side) => pair[side] === null);
  $("lead").hidden = missing.length === 0;
  // Not `disabled`: such a button gets no focus, so that screen readers could not read the reason.
  $("ask").setAttribute("aria-disabled", missing.length > 0);
  $("swap").setAttribute("aria-disabled", missing.length === 2);
  $("missing").textContent = missing.length ? `Add the image ${missing.join(" and the image ")} first.` : "";
}

/** Takes files of the reader for one slot; two files fill both slots and are captioned at once. */
async function takeFiles(files, side) {
  if (files.length > 2) return showError(new RequestError(`${files.length} files at once: a pair has two.`));
  const sides = files.length === 2 ? SIDES : [side ?? SIDES.find((each) => pair[each] === null) ?? "after"];
  const images = await Promise.all((files.length === 2 ? orderFiles(files) : files).map(readImage));
  setPair(Object.fromEntries(sides.map((each, i) => [each, images[i]])));
  if (files.length === 2) await captionShownPair();
}

// -- examples -------------------------------------------------------------------------------------------------------

async function drawExamples() {
  const read = async (name) => (await fetch(new URL(name, EXAMPLES))).json();
  const [photographs, rendered] = await Promise.all(["photographs/pairs.json", "examples.json"].map(read));
  const credits = new Set(photographs.map(({ attribution, licence }) => `${attribution}. ${licence}`));
  $("credit").textContent = `Photographs: ${[...credits].join("; ")}`;
  for (const example of [...photographs, ...rendered]) {
    const folder = photographs.includes(example) ? "photographs/" : "";
    const urls = SIDES.map((side) => new URL(folder + example[side], EXAMPLES));
    const pictures = urls.map((url) => element("img", { src: url, alt: "" }));
    const button = element("button", {}, ...pictures, element("span", {}, example.label));
    button.addEventListener("click", () => {
      takeExample(urls, example.truth).catch(() => showError(new RequestError("The example cannot be loaded.")));
    });
    $("examples").append(element("li", {}, button));
  }
}

async function takeExample(urls, truth) {
  const download = async (url) => {
    const blob = await (await fetch(url)).blob();
    return readImage(new File([blob], url.pathname.split("/").at(-1), { type: blob.type }));
  };
  const [before, after] = await Promise.all(urls.map(download));
  setPair({ before, after, truth });
  await captionShownPair();
}

// -- the request ----------------------------------------------------------------------------------------------------

async function captionShownPair() {
  if (!pair.before || !pair.after) return; // #missing says why
  showPair();
  const current = (request = new AbortController());
  const model = $("model").value;
  $("waiting").textContent = "Captioning …";
  $("answer").scrollIntoView({ block: "nearest" });
  try {
    const answer = await captionPair(pair, model, $("counts").value, description(model)?.can_map, current.signal);
    if (typeof description(model)?.can_answer !== "boolean") await readModels(); // the model had to be started first
    await fillResult(answer, pair, current.signal);
    if (current.signal.aborted) return;
    $("result").hidden = $("more").hidden = false;
    if (description(model)?.can_answer) beginDialogue(pair, model, answer.results[0].caption);
    $("waiting").textContent = "";
    $("answer").scrollIntoView({ block: "nearest" });
    announceResult();
  } catch (error) {
    if (current.signal.aborted) return;
    $("waiting").textContent = "";
    showError(error);
  }
}

/** The description of a model by its name, empty for the default; undefined until the server has answered. */
const description = (model) => (model ? models.find(({ id }) => id === model) : models[0]);

async function readModels() {
  const chosen = $("model").value;
  models = await listModels();
  $("model").replaceChildren(...models.map(({ id }) => new Option(id, id)));
  if (chosen) $("model").value = chosen;
}

/** Asks again from the start, where the server was absent or refused. */
async function askAgain() {
  clearErrors();
  try {
    await readModels();
  } catch (error) {
    return showError(error);
  }
  $("token-form").hidden = true;
  $("ask").focus();
  await captionShownPair();
}

// -- controls -------------------------------------------------------------------------------------------------------

$("ask").addEventListener("click", captionShownPair);
for (const choice of ["model", "counts"]) $(choice).addEventListener("change", captionShownPair);
$("swap").addEventListener("click", () => {
  if (pair.before || pair.after) setPair({ before: pair.after, after: pair.before }); // else #missing says why not
});
$("retry").addEventListener("click", askAgain);
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken($("token").value.trim());
  $("token").value = "";
  askAgain();
});
listenToFiles(takeFiles);
showPair();
drawExamples().catch(() => { $("credit").textContent = "The examples cannot be loaded."; });
readModels().catch(showError);
