"use strict";
// Nodes of the page. Text only ever enters it as text, never as markup.

const find = id => document.getElementById(id);

function element(tag, {text = "", kind = "", ...attributes} = {}, ...children) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (kind) made.className = kind;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function button(text, act, attributes = {}) {
  const made = element("button", {text, type: "button", ...attributes});
  made.addEventListener("click", act);
  return made;
}

// Appends to the node's text, which is a beginning of `text`.
function growText(node, text) {
  if (!node.firstChild) node.append(document.createTextNode(""));
  if (node.firstChild.length < text.length) node.firstChild.appendData(text.slice(node.firstChild.length));
}

// A button that copies what `read` returns, and says for a moment whether it did.
function copyButton(read, label) {
  const made = button("Copy", async () => {
    made.textContent = (await copy(read())) ? "Copied" : "Not allowed";
    find("progress").textContent = made.textContent;
    setTimeout(() => { made.textContent = "Copy"; }, 1500);
  }, {kind: "small", "aria-label": label});
  return made;
}

// Without HTTPS a browser offers navigator.clipboard on this machine only; elsewhere the older command works.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", {kind: "unseen"});
    const focused = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return isCopied;
  }
}

// Paints at most every 40 ms, and rests four times as long as a painting took: typing and scrolling stay smooth.
class Painter {
  constructor(paint) {
    this.paint = paint;
    this.rest = 40;
    this.timer = null;
  }

  ask() {
    this.timer ??= setTimeout(() => this.now(), this.rest);
  }

  now() {
    clearTimeout(this.timer);
    this.timer = null;
    const start = performance.now();
    this.paint();
    this.rest = Math.max(40, 4 * (performance.now() - start));
  }
}
