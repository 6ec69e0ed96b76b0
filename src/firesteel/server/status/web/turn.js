"use strict";
// The turns of a conversation on the page: questions, answers with their reasoning and calls, results of tools.

function showUser(turn) {
  append(element("article", {kind: "turn user", "aria-label": "You"}, element("p", {text: turn.content})));
}

function showResult(turn) {
  const head = element("figcaption", {}, element("span", {}, "Result of ", element("b", {text: turn.name})));
  append(element("article", {kind: "turn tool", "aria-label": `Result of ${turn.name}`},
    element("figure", {kind: "code"}, head, element("pre", {text: turn.content, tabindex: "0"}))));
}

// An answer that has not ended yet; if the page is left before it does, this is what remains.
function newAnswer() {
  return {role: "assistant", content: "", reasoning: "", calls: [], figures: "broken off", error: "", isCut: true};
}

// Shows an answer while it grows; `turn` holds its text and is what is saved.
class AnswerView {
  constructor(turn) {
    this.turn = turn;
    this.started = performance.now();
    this.first = this.last = this.tokens = this.reason = null;
    this.calls = [];  // shown ones
    this.places = new Map();  // of calls, by the numbers that the server gives them
    this.content = element("div", {kind: "content"});
    this.markdown = new MarkdownView(this.content);
    this.box = element("article", {kind: "turn assistant", "aria-label": "Answer"}, this.content);
    this.painter = new Painter(() => this.paint());
    append(this.box);
  }

  push(chunk) {
    if (chunk.error) throw new Error(chunk.error.message || "the server broke off");
    if (chunk.usage) this.tokens = chunk.usage.completion_tokens;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    this.reason = choice.finish_reason || this.reason;
    const delta = choice.delta || {}, reasoning = delta.reasoning_content || delta.reasoning || "";
    if (!delta.content && !reasoning && !delta.tool_calls) return;
    this.last = performance.now();
    this.first ??= this.last;
    this.turn.reasoning += reasoning;
    this.turn.content += delta.content || "";
    for (const call of delta.tool_calls || []) this.pushCall(call);
    this.painter.ask();
  }

  pushCall(delta) {
    if (!this.places.has(delta.index))
      this.places.set(delta.index, this.turn.calls.push({id: "", name: "", arguments: ""}) - 1);
    const call = this.turn.calls[this.places.get(delta.index)];
    call.id ||= delta.id || "";
    call.name += delta.function?.name || "";
    call.arguments += delta.function?.arguments || "";
  }

  paint() {
    if (this.turn.reasoning) this.paintReasoning();
    this.markdown.update(this.turn.content);
    this.turn.calls.forEach((call, place) => this.paintCall(call, place));
    follow();
  }

  paintReasoning() {
    if (!this.thought) {
      this.summary = element("summary");
      this.thought = element("p", {kind: "reasoning"}, "");
      this.details = element("details", {}, this.summary, this.thought);
      this.details.open = state.showsReasoning;
      this.summary.addEventListener("click", () => { state.showsReasoning = !this.details.open; save(); });
      this.box.prepend(this.details);
    }
    growText(this.thought, this.turn.reasoning);
    const isThinking = this.box.classList.contains("busy") && !this.turn.content && !this.turn.calls.length;
    const words = this.turn.reasoning.trim().split(/\s+/).length, noun = words === 1 ? "word" : "words";
    this.summary.textContent = `${isThinking ? "Reasoning …" : "Reasoning"} · ${words.toLocaleString("en")} ${noun}`;
  }

  paintCall(call, place) {
    if (!this.calls[place]) {
      const name = element("b"), text = element("pre", {tabindex: "0"}, "");
      const head = element("figcaption", {}, element("span", {}, "Call of ", name),
        copyButton(() => text.textContent, "Copy arguments"));
      this.calls[place] = {name, text};
      this.content.after(...this.box.querySelectorAll(".call"), element("figure", {kind: "code call"}, head, text));
    }
    this.calls[place].name.textContent = call.name;
    growText(this.calls[place].text, call.arguments);
  }

  // Paints what came last and adds the figures, what a user may do now and, for calls, a form for their results.
  end() {
    this.box.classList.remove("busy");
    this.painter.now();
    this.turn.calls.forEach((call, place) => { this.calls[place].text.textContent = prettyJson(call.arguments); });
    if (this.turn.error) this.box.append(element("p", {text: this.turn.error, kind: "error", role: "alert"}));
    if (callsOf(this.turn).length) this.box.append(resultForm(this.turn));
    const bar = element("footer", {}, element("span", {text: this.turn.figures, kind: "figures"}));
    if (this.turn.content) bar.append(copyButton(() => this.turn.content, "Copy answer"));
    bar.append(button(this.turn.error ? "Try again" : "Regenerate", regenerate, {kind: "small again"}));
    this.box.append(bar);
    follow();
  }

  countFigures(word) {
    const figures = [], {tokens, first, last} = this;
    if (tokens !== null) figures.push(`${tokens} tokens`);
    if (tokens > 1 && last > first) figures.push(`${(1000 * (tokens - 1) / (last - first)).toFixed(1)} tokens/s`);
    if (first) figures.push(`first after ${((first - this.started) / 1000).toFixed(2)} s`);
    if (this.reason === "length") figures.push("cut at the most tokens allowed");
    if (word) figures.push(word);
    this.turn.figures = figures.join(" · ");
  }
}

function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function resultForm(turn) {
  const areas = turn.calls.map(call => {
    const label = `Result of ${call.name}`;
    return element("textarea", {rows: "2", placeholder: label, "aria-label": label});
  });
  const form = element("form", {kind: "results"}, ...areas, element("button", {text: "Send results"}));
  form.addEventListener("submit", event => {
    event.preventDefault();
    sendResults(turn.calls.map((call, place) => ({call, text: areas[place].value})));
  });
  return form;
}

function append(box) {
  find("hint").hidden = true;
  find("talk").append(box);
  find("talk").scrollTop = find("talk").scrollHeight;
}

// Keeps the end in view unless the reader has scrolled away from it.
function follow() {
  const talk = find("talk"), end = talk.scrollHeight;  // the layout is part of what a Painter measures
  if (state.isFollowing) talk.scrollTop = end;
}
