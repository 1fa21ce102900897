// Questions about the displayed pair, for models that answer them. The conversation begins with the pair and its
// caption, and ends with the pair's result; it is stored nowhere.

import { answer } from "./api.js";

const $ = (id) => document.getElementById(id);

let about = null; // {pair, model} of the displayed result
let turns = []; // {role, content} after the pair, the caption first
let asking = null; // the AbortController of the current question

/** Begins a conversation about a pair, or shows none if the model does not answer. */
export function begin(pair, model, caption, answers) {
  end();
  $("dialogue").hidden = !answers;
  about = { pair, model };
  turns = [{ role: "assistant", content: caption }];
}

/** Ends the conversation. */
export function end() {
  asking?.abort();
  asking = about = null;
  turns = [];
  $("turns").replaceChildren();
  $("question").value = "";
  $("question-waiting").textContent = $("question-fault").textContent = "";
}

/** Sends the question. `failed(error)` handles an error that is not of the question: it returns whether it did. */
async function ask(failed) {
  const text = $("question").value.trim();
  if (!text || asking || !about) return;
  const current = (asking = new AbortController());
  $("question-fault").textContent = "";
  $("question-waiting").textContent = "Answering …";
  try {
    const asked = [...turns, { role: "user", content: text }];
    const { choices } = await answer(about.pair, asked, about.model, current.signal);
    if (current.signal.aborted) return;
    const [{ message, confidence, finish_reason: reason }] = choices;
    turns = [...asked, { role: "assistant", content: message.content }];
    const cut = reason === "length" ? ", cut off at the longest answer" : "";
    draw("You", text);
    draw("Model", message.content, `${Math.round(100 * confidence)} %${cut}`);
    $("question").value = "";
  } catch (error) {
    if (current.signal.aborted || failed(error)) return;
    $("question-fault").textContent = error.message;
  } finally {
    if (asking === current) {
      asking = null;
      $("question-waiting").textContent = "";
    }
  }
}

function draw(who, text, note = "") {
  const item = document.createElement("li");
  for (const [name, content] of [["b", `${who}: `], ["span", text], ["small", note && ` ${note}`]]) {
    const part = document.createElement(name);
    part.textContent = content;
    if (name === "small") part.className = "soft";
    item.append(part);
  }
  $("turns").append(item);
}

/** Connects the form. */
export function listenToQuestions(failed) {
  $("dialogue").addEventListener("submit", (event) => {
    event.preventDefault();
    ask(failed);
  });
}
