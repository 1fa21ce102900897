// Shows an answer: caption, bars, the slider, the change map, the film, candidates.

const $ = (id) => document.getElementById(id);
const FRAME_MS = 700;

const percent = (share) => `${Math.round(100 * share)} %`;

/** How sure a probability of a change is, in words. */
export function inWords(changed) {
  if (changed >= 0.95) return "almost surely";
  if (changed >= 0.75) return "probably";
  if (changed > 0.25) return "hard to say";
  if (changed > 0.05) return "probably not";
  return "almost surely not";
}

/** Fills the section with the answer to `pair`. */
export function show(answer, pair, seconds) {
  const result = answer.results[0];
  $("caption").textContent = result.caption;
  $("truth").hidden = pair.truth === null;
  $("truth").querySelector("span").textContent = pair.truth ?? "";
  const changed = result.changed_probability;
  bar("changed", changed, changed === null ? "not calibrated" : `${inWords(changed)}, ${percent(changed)}`);
  bar("confidence", result.confidence, percent(result.confidence));
  showImages(pair);
  const missing = [];
  if (!showMap(result.change_map)) missing.push("no change map");
  if (!showFilm(result.frames)) missing.push("no imagined frames");
  $("missing").textContent = missing.length ? `This model shows ${missing.join(" and ")}.` : "";
  showCandidates(result.candidates);
  const batch = answer.timing.largest_batch;
  $("about").textContent =
    `${answer.model}, version ${answer.version} · ${seconds.toFixed(2)} s in all, ` +
    `${answer.timing.model_ms.toFixed(0)} ms in the model` +
    (batch > 1 ? ` together with ${batch - 1} more` : "") +
    ` · request ${answer.request_id}`;
  $("copied").textContent = "";
  $("result").hidden = false;
}

export function hide() {
  stop();
  $("result").hidden = true;
}

/** The answer as it came, without its pictures. */
export function asJson(answer) {
  return JSON.stringify(answer, (key, value) => (key === "change_map" || key === "frames" ? undefined : value), 2);
}

/** Words, and a bar as long as the share; no bar for what is not known. */
function bar(id, share, words) {
  $(id).textContent = words;
  const track = $(`${id}-track`);
  track.hidden = share === null;
  if (share === null) return;
  track.firstElementChild.style.width = `${100 * share}%`;
  track.setAttribute("aria-valuenow", String(Math.round(100 * share)));
  track.setAttribute("aria-valuetext", words);
}

// -- before, after and the map --------------------------------------------------------------------------------------

function showImages(pair) {
  for (const stage of document.querySelectorAll(".stage")) {
    stage.style.setProperty("--ratio", pair.after.width / pair.after.height);
    for (const image of stage.querySelectorAll("img")) image.src = pair[image.className].url;
  }
  slide();
}

function slide() {
  const share = $("slider").value;
  $("compare").style.setProperty("--at", `${share}%`);
  $("slider").setAttribute("aria-valuetext", `${share} % before`);
}

/** Draws the grey map in one colour, as opaque as it is white. */
function showMap(dataUrl) {
  $("map-figure").hidden = !dataUrl;
  if (!dataUrl) return false;
  const picture = new Image();
  picture.onload = () => {
    const canvas = $("map");
    [canvas.width, canvas.height] = [picture.naturalWidth, picture.naturalHeight];
    const drawing = canvas.getContext("2d", { willReadFrequently: true });
    drawing.drawImage(picture, 0, 0);
    const pixels = drawing.getImageData(0, 0, canvas.width, canvas.height);
    for (let i = 0; i < pixels.data.length; i += 4) pixels.data.set([255, 120, 0, pixels.data[i]], i);
    drawing.putImageData(pixels, 0, 0);
    canvas.dataset.drawn = "yes";
  };
  delete $("map").dataset.drawn;
  picture.src = dataUrl;
  fade();
  return true;
}

function fade() {
  $("map").style.opacity = $("opacity").value / 100;
  $("opacity").setAttribute("aria-valuetext", `${$("opacity").value} %`);
}

// -- the film -------------------------------------------------------------------------------------------------------

let frames = [];
let current = 0;
let timer = null;

function showFilm(dataUrls) {
  stop();
  frames = dataUrls ?? [];
  $("film-figure").hidden = frames.length === 0;
  if (frames.length === 0) return false;
  $("film").replaceChildren(
    ...frames.map((url, index) => {
      const button = document.createElement("button");
      const image = document.createElement("img");
      image.src = url;
      image.alt = nameOf(index);
      button.append(image);
      button.addEventListener("click", () => { stop(); step(index); });
      const item = document.createElement("li");
      item.append(button);
      return item;
    }),
  );
  step(0);
  return true;
}

function nameOf(index) {
  const end = index === 0 ? ", before" : index === frames.length - 1 ? ", after" : "";
  return `Frame ${index + 1} of ${frames.length}${end}`;
}

function step(index) {
  current = Math.max(0, Math.min(frames.length - 1, index));
  $("frame").src = frames[current];
  $("frame").alt = nameOf(current);
  $("frame-name").textContent = nameOf(current);
  // Not `disabled`: a button that loses the focus while it is used sends the keyboard back to the top.
  $("previous").setAttribute("aria-disabled", String(current === 0));
  $("next").setAttribute("aria-disabled", String(current === frames.length - 1));
  [...$("film").querySelectorAll("button")].forEach((button, place) => {
    if (place === current) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  });
}

function play() {
  if (timer !== null) return stop();
  $("play").textContent = "Stop";
  if (current === frames.length - 1) step(0);
  timer = setInterval(() => {
    step(current + 1);
    if (current === frames.length - 1) stop();
  }, FRAME_MS);
}

function stop() {
  clearInterval(timer);
  timer = null;
  $("play").textContent = "Play";
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

$("slider").addEventListener("input", slide);
$("opacity").addEventListener("input", fade);
$("previous").addEventListener("click", () => { stop(); step(current - 1); });
$("next").addEventListener("click", () => { stop(); step(current + 1); });
$("play").addEventListener("click", play);
