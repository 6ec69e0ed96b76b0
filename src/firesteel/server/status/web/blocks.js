"use strict";
// Markdown to a tree of paragraphs, headings, lists, quotes, code and tables. Raw HTML is text like any other.

const MAX_DEPTH = 10, MAX_COLUMNS = 60, MAX_ROWS = 500;
const MAX_COST = 8000;  // of what is laid out as Markdown, in paragraphs; the rest of a text is shown as it was written
const CODE_COST = 4, CELL_COST = 0.25;
// None of these can match one stretch of text in two ways: their time is linear in the line.
const FENCE = /^(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/, HEADING = /^(#{1,6})(?=[ \t]|$)/;
const RULE = /^([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^([-*+]|\d{1,9}[.)])([ \t]+|$)/, UNDERLINE = /^(?:={3,}|-{3,})[ \t]*$/, TASK = /^\[([ xX])\][ \t]+/;
const DIVIDER = /^\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?$/;

function parseMarkdown(text) {
  return parseLines(text.replace(/\r\n?/g, "\n").split("\n"), 0, {left: MAX_COST});
}

function parseLines(lines, depth, budget) {
  if (depth > MAX_DEPTH) return [{type: "plain", text: lines.join("\n")}];
  return new BlockParser(lines, depth, budget).parse();
}

// Returns the columns of white space before a line's text.
function indentOf(line) {
  let columns = 0;
  for (const letter of line) {
    if (letter === " ") columns++;
    else if (letter === "\t") columns += 4 - columns % 4;
    else break;
  }
  return columns;
}

// Removes up to `columns` columns of white space.
function dedent(line, columns) {
  const indent = indentOf(line);
  return " ".repeat(Math.max(0, indent - columns)) + line.trimStart();
}

// Returns what a line begins if it is not more text of a paragraph, or null.
function startOf(line) {
  const text = line.trimStart();
  let match;
  if ((match = FENCE.exec(text)))
    return {type: "fence", fence: match[1], language: match[2].trim().slice(0, 40).split(/\s/, 1)[0]};
  if ((match = HEADING.exec(text))) return {type: "heading", level: match[1].length};
  if (RULE.test(text)) return {type: "rule"};
  if (text.startsWith(">")) return {type: "quote"};
  if ((match = ITEM.exec(text))) {
    const width = match[2].length > 4 || !match[2] ? 1 : match[2].length;
    return {type: "item", isOrdered: match[1].length > 1, number: parseInt(match[1], 10), marker: match[1], width};
  }
  return null;
}

// Items may begin in the middle of a paragraph only where it is plain that they are meant: not "1984." or "-".
function interrupts(start, line) {
  if (start?.type !== "item") return start !== null;
  return line.trim().length > start.marker.length && (!start.isOrdered || start.number === 1);
}

function splitCells(line) {
  const cells = [""];
  const text = line.trim().replace(/^\|/, "");
  for (let at = 0; at < text.length; at++) {
    if (text[at] === "\\" && text[at + 1] === "|") cells[cells.length - 1] += text[++at];
    else if (text[at] === "|") cells.push("");
    else cells[cells.length - 1] += text[at];
  }
  if (text.endsWith("|") && !cells.at(-1)) cells.pop();
  return cells.map(cell => cell.trim());
}

class BlockParser {
  constructor(lines, depth, budget) {
    this.lines = lines;
    this.depth = depth;
    this.budget = budget;
    this.at = 0;
  }

  parse() {
    const blocks = [];
    for (; this.at < this.lines.length && this.budget.left > 0; this.skipBlanks()) {
      const line = this.lines[this.at];
      this.budget.left--;
      if (line.trim()) blocks.push(this.read(line, startOf(line)));
    }
    if (this.at < this.lines.length) blocks.push({type: "plain", text: this.lines.slice(this.at).join("\n")});
    return blocks;
  }

  skipBlanks() {
    while (this.at < this.lines.length && !this.lines[this.at].trim()) this.at++;
  }

  read(line, start) {
    switch (start?.type) {
      case "fence": return this.readCode(line, start);
      case "heading": return this.readHeading(line, start);
      case "rule": this.at++; return {type: "rule"};
      case "quote": return this.readQuote();
      case "item": return this.readList(start);
    }
    return this.isTable() ? this.readTable() : this.readParagraph();
  }

  // A fence that is never closed holds all that follows: most often the rest is still to come.
  readCode(line, {fence, language}) {
    const indent = indentOf(line), lines = [];
    this.budget.left -= CODE_COST;
    for (this.at++; this.at < this.lines.length; this.at++) {
      const text = this.lines[this.at].trim();
      if (text.startsWith(fence) && !text.slice(fence.length).replaceAll(fence[0], "")) {
        this.at++;
        break;
      }
      lines.push(indent ? dedent(this.lines[this.at], indent) : this.lines[this.at]);
    }
    return {type: "code", language, text: lines.join("\n")};
  }

  readHeading(line, {level}) {
    this.at++;
    let text = line.trim().slice(level).trim(), end = text.length;
    while (text[end - 1] === "#") end--;
    if (end === 0 || SPACE.test(text[end - 1])) text = text.slice(0, end).trimEnd();
    return {type: "heading", level, text};
  }

  readQuote() {
    const lines = [];
    for (; this.lines[this.at]?.trimStart().startsWith(">"); this.at++)
      lines.push(this.lines[this.at].trimStart().replace(/^> ?/, ""));
    return {type: "quote", blocks: parseLines(lines, this.depth + 1, this.budget)};
  }

  readList(first) {
    const items = [];
    let start = first;
    while (start?.type === "item" && start.isOrdered === first.isOrdered && this.budget.left > 0) {
      items.push(this.readItem(start));
      this.skipBlanks();
      start = this.at < this.lines.length ? startOf(this.lines[this.at]) : null;
    }
    return {type: "list", isOrdered: first.isOrdered, start: first.isOrdered ? first.number : 1, items};
  }

  readItem({marker, width}) {
    const line = this.lines[this.at++], own = indentOf(line);
    const lines = [line.trimStart().slice(marker.length + width)], least = own + 2;
    let inner = own + marker.length + width, isFirst = true, isText = true, fence = startOf(lines[0])?.fence;
    for (; this.at < this.lines.length; this.at++) {
      const next = this.lines[this.at], indent = indentOf(next);
      if (!next.trim()) {
        isText = false;
        lines.push("");
        continue;
      }
      if (indent < Math.min(inner, least) && !(isText && !fence && startOf(next) === null)) break;
      if (isFirst && indent >= least) [inner, isFirst] = [Math.min(inner, indent), false];
      lines.push(dedent(next, inner));
      isText = true;
      if (fence) fence = next.trim().startsWith(fence) ? undefined : fence;
      else fence = startOf(next)?.fence;
    }
    const task = TASK.exec(lines[0]);
    if (task) lines[0] = lines[0].slice(task[0].length);
    return {type: "item", task: task ? task[1] !== " " : null, blocks: parseLines(lines, this.depth + 1, this.budget)};
  }

  isTable() {
    const [head, divider] = [this.lines[this.at], this.lines[this.at + 1]?.trim()];
    if (!divider || !head.includes("|") || !divider.includes("-") || !DIVIDER.test(divider)) return false;
    const count = splitCells(head).length;
    return count === splitCells(divider).length && count <= MAX_COLUMNS;
  }

  readTable() {
    const head = splitCells(this.lines[this.at]), rows = [], rest = [];
    const aligns = splitCells(this.lines[this.at + 1]).map(cell =>
      cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left");
    for (this.at += 2; this.lines[this.at]?.includes("|"); this.at++) {
      if (rows.length < MAX_ROWS) rows.push(splitCells(this.lines[this.at]).slice(0, head.length));
      else rest.push(this.lines[this.at]);
    }
    this.budget.left -= CELL_COST * rows.reduce((sum, row) => sum + row.length, head.length);
    return {type: "table", aligns, head, rows, rest: rest.join("\n")};
  }

  readParagraph() {
    const lines = [];
    for (; this.at < this.lines.length; this.at++) {
      const line = this.lines[this.at];
      if (!line.trim()) break;
      if (lines.length === 1 && UNDERLINE.test(line.trim())) {
        this.at++;
        return {type: "heading", level: line.trim()[0] === "=" ? 1 : 2, text: lines[0]};
      }
      if (lines.length && (interrupts(startOf(line), line) || this.isTable())) break;
      lines.push(line.trim());
    }
    return {type: "paragraph", text: lines.join("\n")};
  }
}
