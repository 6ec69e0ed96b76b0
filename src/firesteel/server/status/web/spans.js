"use strict";
// Markdown inside a paragraph: text to a tree of spans. The time is linear in the text, whatever it holds.

const MAX_SPAN_TEXT = 20000, MAX_SPAN_DEPTH = 12;
const PLAIN = /[^\\`*_~[\]!<&h\n]+/y, MARKS = /\*+|_+|~+/y, TICKS = /`+/y;
const TARGET = new RegExp(
  String.raw`\([ \n]{0,8}(?:<([^<>\n]{0,2000})>|((?:[^\s()<]|\([^\s()]{0,500}\)){0,2000}))` +
  String.raw`(?:[ \n]{1,8}(?:"[^"]{0,500}"|'[^']{0,500}'))?[ \n]{0,8}\)`, "y");
const ANGLE_ADDRESS = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/iy;
const BARE_ADDRESS = /https?:\/\/[^\s<>[\]`]{1,2000}/iy;
const BREAK_TAG = /<br ?\/?>/iy, ENTITY = /&(amp|lt|gt|quot|apos|#39|nbsp);/y;
const ENTITIES = {amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", "#39": "'", nbsp: "\u00a0"};
const SPACE = /\s/, PUNCTUATION = /[\p{P}\p{S}]/u;

function parseSpans(text) {
  return text.length > MAX_SPAN_TEXT ? [{type: "text", text}] : new SpanParser(text).parse();
}

// Returns the address of a link that may be followed, or null: no script, no data, nothing relative to this page.
function safeAddress(text) {
  if (!/^(?:https?:\/\/|mailto:)/i.test(text) || !URL.canParse(text)) return null;
  return new URL(text).href;
}

class SpanParser {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.nodes = [];
    this.brackets = [];  // open ones, with their places in `nodes`
    this.ticks = new Map();  // places of runs of backticks, last first, by length
    for (const run of [...text.matchAll(/`+/g)].reverse()) {
      if (!this.ticks.has(run[0].length)) this.ticks.set(run[0].length, []);
      this.ticks.get(run[0].length).push(run.index);
    }
    this.unclosed = new Set();  // ends of formulas that do not occur any more
  }

  parse() {
    while (this.at < this.text.length) {
      const plain = this.match(PLAIN);
      if (plain) this.say(plain[0]);
      else if (!this.special(this.text[this.at])) this.say(this.text[this.at++]);
    }
    return pairMarks(this.nodes);
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    const match = pattern.exec(this.text);
    if (match) this.at += match[0].length;
    return match;
  }

  say(text) {
    const last = this.nodes.at(-1);
    if (last?.type === "text") last.text += text;
    else this.nodes.push({type: "text", text});
  }

  add(node) {
    this.nodes.push(node);
    return true;
  }

  special(letter) {
    switch (letter) {
      case "\n": this.at++; return this.add({type: "break"});
      case "\\": return this.escape();
      case "`": return this.code();
      case "*": case "_": case "~": return this.marks(letter);
      case "[": return this.open("[");
      case "!": return this.text[this.at + 1] === "[" && this.open("![");  // an image is a link: nothing is loaded
      case "]": return this.link();
      case "&": return this.entity();
      case "<": return this.angle();
      case "h": return this.bare();
    }
    return false;
  }

  escape() {
    const next = this.text[this.at + 1];
    if ((next === "(" || next === "[") && this.formula(next === "(" ? "\\)" : "\\]")) return true;
    if (next === "\n") return (this.at++, true);
    if (next === undefined || !/[!-/:-@[-`{-~]/.test(next)) return false;
    this.at += 2;
    this.say(next);
    return true;
  }

  // TeX is shown as it was written.
  formula(end) {
    if (this.unclosed.has(end)) return false;
    const place = this.text.indexOf(end, this.at + 2);
    if (place < 0) return (this.unclosed.add(end), false);
    const text = this.text.slice(this.at + 2, place).trim();
    this.at = place + 2;
    return this.add({type: "formula", text});
  }

  code() {
    const [run] = this.match(TICKS), places = this.ticks.get(run.length) ?? [];
    while (places.length && places.at(-1) < this.at) places.pop();
    if (!places.length) return (this.say(run), true);
    const text = this.text.slice(this.at, places.at(-1)).replaceAll("\n", " ");
    this.at = places.at(-1) + run.length;
    const isPadded = text.startsWith(" ") && text.endsWith(" ") && text.trim();
    return this.add({type: "code", text: isPadded ? text.slice(1, -1) : text});
  }

  marks(mark) {
    const start = this.at, count = this.match(MARKS)[0].length;
    if (mark === "~" && count !== 2) return (this.say(mark.repeat(count)), true);
    const before = this.text[start - 1] ?? " ", after = this.text[this.at] ?? " ";
    const opens = touches(after, before), closes = touches(before, after);
    const isWord = mark === "_";  // snake_case has no emphasis
    return this.add({
      type: "marks", mark, count,
      canOpen: opens && !(isWord && closes && !PUNCTUATION.test(before)),
      canClose: closes && !(isWord && opens && !PUNCTUATION.test(after)),
    });
  }

  open(bracket) {
    this.brackets.push({place: this.nodes.length, bracket});
    this.at += bracket.length;
    return this.add({type: "text", text: bracket});
  }

  link() {
    const bracket = this.brackets.pop();
    this.at++;
    const start = this.at, target = bracket && this.match(TARGET);
    const href = target && safeAddress(target[1] ?? target[2]);
    if (!href) {
      this.at = start;
      this.say("]");
      return true;
    }
    const inside = this.nodes.splice(bracket.place);
    inside[0].text = inside[0].text.slice(bracket.bracket.length);
    this.brackets.length = 0;  // links do not nest
    const children = pairMarks(inside).filter(node => node.type !== "text" || node.text);
    return this.add({type: "link", href, children: children.length ? children : [{type: "text", text: href}]});
  }

  entity() {
    const match = this.match(ENTITY);
    if (match) this.say(ENTITIES[match[1]]);
    return Boolean(match);
  }

  angle() {
    if (this.match(BREAK_TAG)) return this.add({type: "break"});
    const start = this.at, match = this.match(ANGLE_ADDRESS), href = match && safeAddress(match[1]);
    if (!href) this.at = start;
    return href ? this.add({type: "link", href, children: [{type: "text", text: match[1]}]}) : false;
  }

  bare() {
    const start = this.at;
    if (/\w/.test(this.text[start - 1] ?? "")) return false;
    const match = this.match(BARE_ADDRESS);
    if (!match) return false;
    let text = match[0];
    while (/[.,;:!?'"*_~|]$/.test(text) || (text.endsWith(")") && !text.includes("("))) text = text.slice(0, -1);
    const href = safeAddress(text);
    this.at = href ? start + text.length : start;
    return href ? this.add({type: "link", href, children: [{type: "text", text}]}) : false;
  }
}

// Returns true if marks between the two letters belong to a word on the side of `inner`.
function touches(inner, outer) {
  if (SPACE.test(inner)) return false;
  return !PUNCTUATION.test(inner) || SPACE.test(outer) || PUNCTUATION.test(outer);
}

// Turns pairs of marks into emphasis, strong emphasis and deletions; marks without a partner become text.
function pairMarks(nodes) {
  const paired = [], openers = [];
  const bottoms = new Map();  // by kind of closer: no opener for it lies below this place
  for (const node of nodes) {
    if (node.type !== "marks") {
      paired.push(node);
      continue;
    }
    const left = node.canClose ? closeMarks(node, paired, openers, bottoms) : node.count;
    if (!left) continue;
    const text = {type: "text", text: node.mark.repeat(left)};
    if (node.canOpen) openers.push({...node, left, text, place: paired.length});
    paired.push(text);
  }
  return paired;
}

// Returns how many marks of the closer found no opener.
function closeMarks(closer, paired, openers, bottoms) {
  const kind = `${closer.mark}${closer.canOpen}${closer.count % 3}`;
  let left = closer.count;
  while (left) {
    const place = findOpener(closer, openers, bottoms.get(kind) ?? 0);
    if (place < 0) {
      bottoms.set(kind, openers.length);
      break;
    }
    const opener = openers[place], width = Math.min(2, left, opener.left);
    const children = paired.splice(opener.place + 1);
    const depth = 1 + children.reduce((most, node) => Math.max(most, node.depth ?? 0), 0);
    if (depth > MAX_SPAN_DEPTH) {
      paired.push(...children);
      openers.length = 0;
      bottoms.clear();
      break;
    }
    const type = closer.mark === "~" ? "deleted" : width === 2 ? "strong" : "emphasis";
    opener.left -= width;
    left -= width;
    opener.text.text = opener.mark.repeat(opener.left);
    openers.length = opener.left ? place + 1 : place;
    if (!opener.left) paired.pop();
    paired.push({type, children, depth});
    for (const [key, bottom] of bottoms) if (bottom > openers.length) bottoms.set(key, openers.length);
  }
  return left;
}

function findOpener(closer, openers, bottom) {
  for (let place = openers.length - 1; place >= bottom; place--) {
    const opener = openers[place], sum = opener.count + closer.count;
    if (opener.mark !== closer.mark) continue;
    const isOdd = (opener.canClose || closer.canOpen) && sum % 3 === 0 && closer.count % 3 !== 0;
    if (!isOdd) return place;
  }
  return -1;
}
