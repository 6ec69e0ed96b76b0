"use strict";
// Markdown as nodes. Of a text that grows only the blocks that changed are made again.

const SPAN_TAGS = {emphasis: "em", strong: "strong", deleted: "del"};
const CONTAINERS = {quote: patchQuote, list: patchList, table: patchTable, code: patchCode, plain: patchPlain};

class MarkdownView {
  constructor(box) {
    this.box = box;
    this.blocks = [];
  }

  update(text) {
    const blocks = parseMarkdown(text);
    patchBlocks(this.box, this.blocks, blocks);
    this.blocks = blocks;
  }
}

// Brings the children of `box`, which show `before`, to show `after`.
function patchBlocks(box, before, after) {
  patchChildren(box, before, after, makeBlock, (node, old, block) => {
    if (old.type !== block.type) return false;
    if (CONTAINERS[block.type]) return CONTAINERS[block.type](node, old, block);
    return old.text === block.text && old.level === block.level;
  });
}

// `patch` changes a node so that it shows another value, or returns false: then the node is made anew.
function patchChildren(box, before, after, make, patch) {
  let node = box.firstChild;
  after.forEach((value, place) => {
    const next = node?.nextSibling ?? null;
    if (!node) box.append(make(value));
    else if (!patch(node, before[place], value)) node.replaceWith(make(value));
    node = next;
  });
  while (node) {
    const next = node.nextSibling;
    node.remove();
    node = next;
  }
}

function makeBlock(block) {
  switch (block.type) {
    case "heading": return makeHeading(block);
    case "rule": return element("hr");
    case "code": return makeCode(block);
    case "quote": return filled(element("blockquote"), node => patchQuote(node, {blocks: []}, block));
    case "list": return makeList(block);
    case "table": return makeTable(block);
    case "plain": return element("p", {text: block.text, kind: "plain"});
  }
  return element("p", {}, ...spansOf(block.text));
}

// The page itself has the headings of levels 1 and 2.
function makeHeading({level, text}) {
  return element(`h${Math.min(6, level + 2)}`, {kind: `level-${level}`}, ...spansOf(text));
}

function filled(node, fill) {
  fill(node);
  return node;
}

function spansOf(text) {
  return makeSpans(parseSpans(text), false);
}

function makeSpans(nodes, isInLink) {
  return nodes.flatMap(node => {
    if (node.type === "text") return [document.createTextNode(node.text)];
    if (node.type === "break") return [element("br")];
    if (node.children === undefined) return [element("code", {text: node.text, kind: node.type})];
    if (node.type !== "link") return [element(SPAN_TAGS[node.type], {}, ...makeSpans(node.children, isInLink))];
    const inside = makeSpans(node.children, true);
    if (isInLink) return inside;
    const attributes = {href: node.href, title: node.href, target: "_blank", rel: "noopener noreferrer nofollow"};
    return [element("a", attributes, ...inside)];
  });
}

function makeCode(block) {
  const code = element("code", {text: block.text});
  const head = element("figcaption", {}, element("span", {text: block.language || "text"}),
    copyButton(() => code.textContent, "Copy code"));
  return element("figure", {kind: "code"}, head, element("pre", {tabindex: "0"}, code));
}

function patchCode(node, old, block) {
  if (old.language !== block.language) return false;
  if (old.text === block.text) return true;
  if (!block.text.startsWith(old.text)) return false;
  growText(node.querySelector("pre code"), block.text);
  return true;
}

function patchPlain(node, old, block) {
  if (!old.text || !block.text.startsWith(old.text)) return false;
  growText(node, block.text);
  return true;
}

function patchQuote(node, old, block) {
  patchBlocks(node, old.blocks, block.blocks);
  return true;
}

function makeList(block) {
  const list = element(block.isOrdered ? "ol" : "ul");
  if (block.start !== 1) list.setAttribute("start", String(block.start));
  patchList(list, {...block, items: []}, block);
  return list;
}

function patchList(node, old, block) {
  if (old.isOrdered !== block.isOrdered || old.start !== block.start) return false;
  patchChildren(node, old.items, block.items, makeItem, (item, before, after) => {
    if (before.task !== after.task) return false;
    return patchQuote(item, before, after);
  });
  return true;
}

function makeItem(item) {
  const node = element("li", {kind: item.task === null ? "" : item.task ? "task done" : "task"});
  return filled(node, () => patchQuote(node, {blocks: []}, item));
}

function makeTable(block) {
  const head = element("thead", {}, makeRow(block.head, block.aligns, "th")), body = element("tbody");
  const table = element("div", {kind: "scroll", tabindex: "0", role: "group", "aria-label": "Table"},
    element("table", {}, head, body));
  return filled(table, () => patchTable(table, {...block, rows: [], rest: ""}, block));
}

function makeRow(cells, aligns, tag = "td") {
  return element("tr", {}, ...cells.map((cell, place) => element(tag, {kind: aligns[place]}, ...spansOf(cell))));
}

// Rows beyond the most that a table shows follow it as they were written.
function patchTable(node, old, block) {
  if (old.head.join("|") !== block.head.join("|") || old.aligns.join() !== block.aligns.join()) return false;
  patchChildren(node.querySelector("tbody"), old.rows, block.rows, row => makeRow(row, block.aligns),
    (row, before, after) => before.length === after.length && before.every((cell, place) => cell === after[place]));
  if (!block.rest) return !old.rest;
  if (!old.rest) node.append(element("pre", {text: block.rest}));
  else if (block.rest.startsWith(old.rest)) growText(node.lastChild, block.rest);
  else return false;
  return true;
}
