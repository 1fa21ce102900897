// Questions about the displayed pair, for models that answer them. A conversation begins with the pair and its caption.

import { askAboutPair } from "./api.js";
import { $, element } from "./dom.js";

let subject = null; // {pair, model} of the displayed result
let turns = []; // {role, content} after the images, the caption first
let request = null; // the AbortController of the current question

/** Begins a conversation about a captioned pair. */
export function beginDialogue(pair, model, caption) {
  endDialogue();
  subject = { pair, model };
  turns = [{ role: "assistant", content: caption }];
  $("dialogue").hidden = false;
}

export function endDialogue() {
  request?.abort();
  request = null;
  $("dialogue").hidden = true;
  $("turns").replaceChildren();
  $("question").value = "";
  $("answering").textContent = $("question-error").textContent = "";
}

async function ask(question) {
  const current = (request = new AbortController());
  $("question-error").textContent = "";
  $("answering").textContent = "Answering …";
  try {
    const asked = [...turns, { role: "user", content: question }];
    const { choices } = await askAboutPair(subject.pair, asked, subject.model, current.signal);
    if (current.signal.aborted) return;
    const [{ message, confidence, finish_reason: reason }] = choices;
    turns = [...asked, { role: "assistant", content: message.content }];
    const note = `${Math.round(100 * confidence)} %${reason === "length" ? ", cut off at the longest answer" : ""}`;
    $("turns").append(element("li", {}, element("b", {}, "You: "), question));
    const details = element("small", { className: "soft" }, ` ${note}`);
    $("turns").append(element("li", {}, element("b", {}, "Model: "), element("span", {}, message.content), details));
    $("question").value = "";
  } catch (error) {
    if (!current.signal.aborted) $("question-error").textContent = error.message;
  } finally {
    if (request === current) {
      request = null;
      $("answering").textContent = "";
    }
  }
}

$("dialogue").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = $("question").value.trim();
  if (question && !request) ask(question);
});
