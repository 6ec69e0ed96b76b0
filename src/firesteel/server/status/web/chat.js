"use strict";
// The conversation: what the user does, what the server is asked, what is kept.

const state = {turns: [], showsReasoning: false, controller: null, isFollowing: true, isLeaving: false};
const KEPT_FIELDS = ["effort", "most", "system", "tools"];

function notify(text) {
  find("notice").textContent = text;
  find("notice").hidden = !text;
}

function save() {
  if (state.isLeaving) return;  // the end of the page cuts the answer; what was saved before is the truth
  const {turns, showsReasoning} = state;
  const fields = Object.fromEntries(KEPT_FIELDS.map(id => [id, find(id).value]));
  try {
    saveChat({turns, showsReasoning, ...fields});
  } catch (error) {
    notify(`This conversation will not survive a reload: ${error.message}`);
  }
}

function restore() {
  let chat = null;
  try {
    chat = loadChat();
  } catch (error) {
    notify(`The saved conversation cannot be shown: ${error.message}`);
  }
  if (!chat) return;
  state.showsReasoning = chat.showsReasoning === true;
  for (const id of KEPT_FIELDS) if (typeof chat[id] === "string") find(id).value = chat[id];
  for (const name of ["system", "tools"]) reveal(name, find(name).value !== "");
  show(chat.turns);
}

function show(turns) {
  state.turns = turns;
  find("talk").replaceChildren(find("hint"));
  find("hint").hidden = turns.length > 0;
  for (const turn of turns) {
    if (turn.role === "user") showUser(turn);
    else if (turn.role === "tool") showResult(turn);
    else new AnswerView(turn).end();
  }
}

// Asks the model for the next turn.
async function answer(tools) {
  const {turns} = state;
  const messages = messagesOf(turns, find("system").value.trim());
  const turn = newAnswer(), view = new AnswerView(turn), controller = state.controller = new AbortController();
  turns.push(turn);
  view.box.classList.add("busy");
  showBusy(true);
  save();
  let word = "";
  try {
    await listen(view, messages, tools, controller.signal);
    turn.isCut = false;
  } catch (error) {
    if (error.name === "AbortError") word = "stopped";
    else turn.error = error.message;
  }
  view.countFigures(word);
  view.end();
  if (state.controller !== controller) return;  // the conversation was cleared
  state.controller = null;
  showBusy(false);
  save();
}

async function listen(view, messages, tools, signal) {
  const most = Number(find("most").value);
  const body = {
    model: served.model, messages, tools, reasoning_effort: find("effort").value,
    stream: true, stream_options: {include_usage: true},
  };
  if (most) body.max_completion_tokens = most;
  const response = await ask("/v1/chat/completions", {
    method: "POST", body: JSON.stringify(body), headers: {"Content-Type": "application/json"}, signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    view.push(JSON.parse(data));
  }
  throw new Error("the server ended the answer in the middle");
}

function showBusy(isBusy) {
  find("talk").setAttribute("aria-busy", String(isBusy));
  find("send").hidden = isBusy;
  find("stop").hidden = !isBusy;
  find("progress").textContent = isBusy ? "The model is answering." : "The answer is complete.";
  if (!isBusy && [document.body, find("stop")].includes(document.activeElement)) find("text").focus();
}

// Returns true and the tools that the user has pasted, or false after saying what is wrong with them.
function checkTools() {
  const area = find("tools");
  try {
    const tools = readTools(area.value);
    area.removeAttribute("aria-invalid");
    notify("");
    return [true, tools];
  } catch (error) {
    notify(`Not sent: ${error.message}`);
    area.setAttribute("aria-invalid", "true");
    reveal("tools", true);
    return [false];
  }
}

function send() {
  const text = find("text").value.trim();
  if (!text || state.controller) return;
  const [isReady, tools] = checkTools();
  if (!isReady) return;
  find("text").value = "";
  state.isFollowing = true;
  state.turns.push({role: "user", content: text});
  showUser(state.turns.at(-1));
  answer(tools);
}

function sendResults(results) {
  const [isReady, tools] = checkTools();
  if (!isReady || state.controller) return;
  for (const {call, text} of results) {
    state.turns.push({role: "tool", id: call.id, name: call.name, content: text});
    showResult(state.turns.at(-1));
  }
  answer(tools);
}

function regenerate() {
  const [isReady, tools] = checkTools();
  if (!isReady || state.controller || state.turns.at(-1)?.role !== "assistant") return;
  state.turns.pop();
  find("talk").lastChild.remove();
  state.isFollowing = true;
  answer(tools);
}

function stop() {
  state.controller?.abort();
}

function clear() {
  stop();
  state.controller = null;
  showBusy(false);
  show([]);
  notify("");
  try {
    forgetChat();
  } catch (error) {
    notify(`The saved conversation cannot be removed: ${error.message}`);
  }
  find("text").focus();
}

function reveal(name, isShown) {
  find(name).hidden = !isShown;
  find(`show-${name}`).setAttribute("aria-expanded", String(isShown));
}

find("ask").addEventListener("submit", event => { event.preventDefault(); send(); });
find("text").addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", event => {
  if (event.key !== "Escape" || event.isComposing) return;
  if (state.controller) stop();
  else find("text").focus();
});
find("talk").addEventListener("scroll", () => {
  const talk = find("talk");
  state.isFollowing = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 60;
});
new ResizeObserver(follow).observe(find("talk"));
find("stop").addEventListener("click", stop);
find("new").addEventListener("click", clear);
for (const name of ["system", "tools"])
  find(`show-${name}`).addEventListener("click", () => reveal(name, find(name).hidden));
for (const id of KEPT_FIELDS) find(id).addEventListener("change", save);
find("key-form").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem("key", find("key").value.trim());
  find("key-form").hidden = true;
  findModel();
  pollLedger();
});
window.addEventListener("pagehide", () => {
  if (state.controller) save();
  state.isLeaving = true;
});
window.addEventListener("pageshow", () => { state.isLeaving = false; });
// Another tab went on with the conversation, or cleared it.
window.addEventListener("storage", event => {
  if (event.key === STORE_KEY && !state.controller) event.newValue === null ? show([]) : restore();
});

restore();
