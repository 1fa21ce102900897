// The page: two slots for images, a request to the server, its response. The display follows `pair`.

import { Fault, caption, curl, keepToken, models } from "./api.js";
import { begin, end, listenToQuestions } from "./dialogue.js";
import { drawHistory, forget, keepForTab, keptForTab, remember } from "./history.js";
import { inOrder, listen, readImage } from "./intake.js";
import { WHOLE, listenToParts, showParts } from "./parts.js";
import { asJson, asSentence, hide, show } from "./result.js";

const $ = (id) => document.getElementById(id);
const SIDES = ["before", "after"];
const SLOW_MS = 3000;
const slots = Object.fromEntries(SIDES.map((side) => [side, document.querySelector(`.slot[data-side=${side}]`)]));
const examples = new URL("examples/", import.meta.url);

let pair = { before: null, after: null, truth: null, parts: WHOLE }; // images from intake.js, parts from parts.js
let asking = null; // the AbortController of the current request
let answered = null; // {answer, pair, model} of the displayed result
let descriptions = []; // of the models

// -- messages -------------------------------------------------------------------------------------------------------

let busy = null; // timer until a busy server may be tried again

function complain(error) {
  if (error.status === 401) return askForToken(error);
  const line = error.side ? $(`${error.side}-fault`) : $("fault");
  line.textContent = error.message.replace(/^(before|after): /, (_, side) => `${pair[side].name}: `);
  if (error.wait !== null && error.wait !== undefined) {
    line.textContent = `The server is busy (${error.message}). Try again in ${error.wait} s.`;
    busy = setTimeout(() => { line.textContent = "The server was busy. Try again now."; }, 1000 * error.wait);
  }
}

/** Clears the general messages, and those of the slots that are about to be filled. */
function clearFaults(sides = SIDES) {
  clearTimeout(busy);
  for (const id of [...sides.map((side) => `${side}-fault`), "fault", "token-fault"]) $(id).textContent = "";
}

// -- the pair -------------------------------------------------------------------------------------------------------

/** Applies `changes` to the pair; results and requests of the previous pair are discarded. */
function setPair(changes) {
  const old = pair;
  pair = { ...pair, truth: null, parts: WHOLE, ...changes };
  asking?.abort();
  clearFaults(SIDES.filter((side) => side in changes));
  hide();
  end();
  drawPair();
  for (const side of SIDES) {
    if (old[side]?.url && !SIDES.some((any) => pair[any] === old[side])) URL.revokeObjectURL(old[side].url);
  }
  keepForTab(pair, null);
}

function drawPair() {
  for (const side of SIDES) {
    const image = pair[side];
    const shown = slots[side].querySelector("img");
    shown.hidden = !image?.url;
    if (image?.url) shown.src = image.url;
    slots[side].classList.toggle("full", image !== null);
    const size = image?.url ? `${image.width} × ${image.height}` : "a format that this browser cannot show";
    $(`${side}-name`).textContent = image ? `${image.name}, ${size}` : "";
  }
  const missing = SIDES.filter((side) => pair[side] === null);
  // Not `disabled`: such a button gets no focus, so that screen readers could not read the reason.
  $("ask").setAttribute("aria-disabled", String(missing.length > 0));
  $("swap").setAttribute("aria-disabled", String(missing.length === 2));
  showParts(pair);
  $("shapes").textContent = difference(pair.before, pair.after);
  $("why").textContent = missing.length ? `Add the image ${missing.join(" and the image ")} first.` : "";
}

/** A sentence on images of different sizes or shapes; empty for others. */
function difference(before, after) {
  if (!before?.width || !after?.width || (before.width === after.width && before.height === after.height)) return "";
  const sizes = `(${before.width} × ${before.height} before, ${after.width} × ${after.height} after)`;
  const stretched = (before.width / before.height) / (after.width / after.height);
  if (Math.abs(Math.log(stretched)) < 0.02) return `The images differ in size ${sizes}. Both are scaled to the size that the model reads, so details of the larger one may be lost.`;
  return `The images differ in shape ${sizes}. The same place is then not at the same position in both, and the caption may be wrong. Crop both to the same view first.`;
}

/** Shows a pair stored by history.js, with its result if it had one. */
async function reopen({ pair: kept, shown, time }, scroll = true) {
  const current = pair;
  const images = SIDES.map((side) => kept[side] && readImage(kept[side].file, kept[side].address));
  try {
    const [before, after] = await Promise.all(images);
    if (pair !== current) return; // another pair was chosen meanwhile
    setPair({ before, after, truth: kept.truth, parts: kept.parts ?? WHOLE });
  } catch {
    return complain(new Fault("The browser no longer has the images of this result."));
  }
  if (!shown) return;
  present(shown, time, scroll);
  keepForTab(pair, shown);
}

/** Takes files from the reader; two files at once are captioned immediately. A refused file leaves its slot empty. */
async function take(files, side) {
  clearFaults([]);
  if (files.length > 2) return complain(new Fault(`${files.length} files at once; a pair consists of two, before and after.`));
  const sides = files.length === 2 ? SIDES : [side ?? SIDES.find((each) => pair[each] === null) ?? "after"];
  const ordered = files.length === 2 ? inOrder(files) : files;
  const changes = {};
  const faults = [];
  for (const [index, file] of ordered.entries()) {
    try {
      changes[sides[index]] = await readImage(file);
    } catch (error) {
      changes[sides[index]] = null;
      faults.push(new Fault(error.message, { side: sides[index] }));
    }
  }
  setPair(changes);
  faults.forEach(complain);
  if (files.length === 2 && !faults.length) await ask();
}

async function takeExample({ before, after, truth }) {
  clearFaults();
  try {
    const [first, second] = await Promise.all([before, after].map(fetchExample));
    setPair({ before: first, after: second, truth });
  } catch (error) {
    return complain(error instanceof Fault ? error : new Fault("The example cannot be loaded. Check that the server is running."));
  }
  await ask();
}

async function fetchExample(name) {
  const address = new URL(name, examples).href;
  const response = await fetch(address);
  if (!response.ok) throw new Fault(`The example ${name} cannot be loaded (status ${response.status}).`);
  const blob = await response.blob();
  return readImage(new File([blob], name.split("/").at(-1), { type: blob.type }), address);
}

async function drawExamples() {
  const read = async (name) => (await fetch(new URL(name, examples))).json();
  const [photographs, rendered] = await Promise.all(["photographs/pairs.json", "examples.json"].map(read));
  const inFolder = ({ before, after, ...rest }) => ({ ...rest, before: `photographs/${before}`, after: `photographs/${after}` });
  const credits = new Set(photographs.map(({ attribution, licence }) => `${attribution}. ${licence}`));
  $("credit").textContent = `Photographs: ${[...credits].join("; ")}`;
  const items = [...photographs.map(inFolder), ...rendered].map((example) => {
    const button = document.createElement("button");
    for (const side of SIDES) {
      const image = document.createElement("img");
      image.src = new URL(example[side], examples).href;
      image.alt = "";
      button.append(image);
    }
    const label = document.createElement("span");
    label.textContent = example.label;
    button.append(label);
    button.addEventListener("click", () => takeExample(example));
    const item = document.createElement("li");
    item.append(button);
    return item;
  });
  $("examples").replaceChildren(...items);
}

// -- the request ----------------------------------------------------------------------------------------------------

/** Asks for the pair's captions; `objects` is for which pairs `objects` is asked too: "unfamiliar" or "always". */
async function ask(objects = "unfamiliar") {
  if (!pair.before || !pair.after) return; // #why shows the reason
  asking?.abort();
  const current = (asking = new AbortController());
  const asked = pair;
  const model = $("model").value;
  clearFaults();
  $("result").setAttribute("aria-busy", "true");
  $("waiting").textContent = "Captioning …";
  const slow = setTimeout(() => {
    $("waiting").textContent = "Captioning … After a pause the model must be started first, which takes a while.";
  }, SLOW_MS);
  const started = performance.now();
  try {
    const answer = await caption(asked, { model, description: described(model), objects }, current.signal);
    const seconds = (performance.now() - started) / 1000;
    if (typeof described(model)?.can_map !== "boolean") await drawModels(); // the model had to be started first
    if (current.signal.aborted) return;
    const shown = { answer, model, seconds };
    $("waiting").textContent = ""; // before scrolling, because this line moves everything below
    present(shown);
    keepForTab(asked, shown);
    if (objects !== "always") remember(asked, shown).then(redrawHistory); // else the same captions again
  } catch (error) {
    if (current.signal.aborted) return;
    hide();
    complain(error);
  } finally {
    clearTimeout(slow);
    if (asking === current) {
      asking = null;
      $("waiting").textContent = "";
      $("result").removeAttribute("aria-busy");
    }
  }
}

/** Shows a result of the pair and scrolls to it unless `scroll` is false; `time` is that of an earlier result. */
function present(shown, time = null, scroll = true) {
  answered = { ...shown, pair };
  show(shown, pair, time);
  $("sizes-note").textContent = difference(pair.before, pair.after);
  begin(pair, shown.model, shown.answer.results[0].caption, described(shown.model)?.can_answer === true);
  if (!scroll) return;
  $("result").scrollIntoView({ block: "start" });
  $("said").textContent = asSentence(shown.answer.results[0]);
}

function redrawHistory() {
  return drawHistory($("history"), $("past"), reopen);
}

// -- models and tokens ----------------------------------------------------------------------------------------------

async function drawModels() {
  try {
    const chosen = $("model").value;
    descriptions = await models();
    if (answered) $("dialogue").hidden = described(answered.model)?.can_answer !== true;
    $("model").replaceChildren(...descriptions.map(({ id }) => new Option(id, id)));
    if (chosen) $("model").value = chosen;
    drawTraining();
    return true;
  } catch (error) {
    complain(error);
    return false;
  }
}

/** The description of a model by its name, empty for the default; undefined until the server has responded. */
const described = (model) => (model ? descriptions.find(({ id }) => id === model) : descriptions[0]);

/** Shows what the chosen model was trained on. */
function drawTraining() {
  const training = described($("model").value)?.trained_on;
  $("trained").hidden = !training;
  $("trained").textContent = training ? `This model has only seen ${training}.` : "";
}

function askForToken(error) {
  $("token-form").hidden = false;
  $("token-fault").textContent = error.message;
  $("token").focus();
}

$("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  clearFaults();
  keepToken($("token").value.trim());
  if (!(await drawModels())) return;
  $("token").value = "";
  $("token-form").hidden = true;
  $("ask").focus();
  await ask();
});

// -- copies ---------------------------------------------------------------------------------------------------------

async function copy(text, message) {
  const copied = navigator.clipboard ? await navigator.clipboard.writeText(text).then(() => true, () => false) : copyBySelecting(text);
  $("copied").textContent = copied ? message : "The browser does not allow this page to copy.";
}

/** The legacy way, for plain http from another machine, where browsers offer no clipboard. */
function copyBySelecting(text) {
  const from = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "unseen";
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  from?.focus();
  return copied;
}

$("copy-json").addEventListener("click", () => copy(asJson(answered.answer), "Copied, without the pictures."));
$("copy-curl").addEventListener("click", () => {
  const { command, needs } = curl(answered.pair, answered.model, Boolean(answered.answer.results[0].scene));
  copy(command, needs.length ? `Copied. Run it in the folder that holds ${needs.join(" and ")}.` : "Copied.");
});

// -- the rest -------------------------------------------------------------------------------------------------------

$("ask").addEventListener("click", () => ask());
$("find").addEventListener("click", () => ask("always"));
$("swap").addEventListener("click", () => {
  if (!pair.before && !pair.after) return; // #why shows the reason
  setPair({ before: pair.after, after: pair.before });
});
$("model").addEventListener("change", () => {
  drawTraining();
  ask();
});
$("forget").addEventListener("click", async () => {
  if (!confirm("Delete all results of the history from this browser?")) return;
  await forget();
  await redrawHistory();
  $("ask").focus();
});
$("theme").value = document.documentElement.dataset.theme ?? "";
$("theme").addEventListener("change", () => {
  document.documentElement.dataset.theme = $("theme").value;
  try {
    localStorage.setItem("idc.theme", $("theme").value);
  } catch {
    // The choice is lost when the page is left.
  }
});
listenToQuestions((error) => error.status === 401 && (askForToken(error), true));
listen(slots, take, (text) => complain(new Fault(text)));
listenToParts((parts) => {
  clearFaults([]);
  pair = { ...pair, parts };
  showParts(pair);
}, (text) => complain(new Fault(text)));
drawPair();
redrawHistory();
keptForTab().then((kept) => kept && !pair.before && !pair.after && reopen(kept, false)); // after a reload
drawExamples().catch(() => { $("examples").textContent = "The examples cannot be loaded."; });
drawModels();
