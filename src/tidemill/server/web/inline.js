// What is within a paragraph: emphasis, code, links. One pass from left to right, with a stack of what
// has been opened; what is never closed is text. See markdown.js.

import { h } from "./dom.js";

const DEEPEST = 16;
const LONGEST_LINK = 4000;
const SPACE = /\s/;
const WORD = /[\p{L}\p{N}]/u;
const TAGS = { "*1": "em", "*2": "strong", _1: "em", _2: "strong", "~2": "del" };

/** The nodes of a piece of text. */
export function inline(text) {
  return new Inline(text).nodes();
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.open = [{ mark: "", nodes: [] }];
    this.plain = "";
    this.unclosed = new Set(); // lengths of backtick runs that have no counterpart further on
  }

  nodes() {
    const { text } = this;
    while (this.at < text.length) {
      const char = text[this.at];
      if (char === "\\") this.escape();
      else if (char === "`") this.code();
      else if (char === "*" || char === "_" || char === "~") this.emphasis(char);
      else if (char === "[" || (char === "!" && text[this.at + 1] === "[")) this.link();
      else if (char === "<") this.autolink();
      else if (char === "h" && !WORD.test(text[this.at - 1] ?? "")) this.bareLink();
      else if (char === "\n") {
        this.push(h("br"));
        this.at++;
      } else this.take(1);
    }
    while (this.open.length > 1) this.abandon();
    this.flush();
    return this.open[0].nodes;
  }

  take(length) {
    this.plain += this.text.slice(this.at, this.at + length);
    this.at += length;
  }

  flush() {
    if (this.plain) this.open[this.open.length - 1].nodes.push(document.createTextNode(this.plain));
    this.plain = "";
  }

  push(node) {
    this.flush();
    this.open[this.open.length - 1].nodes.push(node);
  }

  /** The innermost opened mark has no end: it is text after all. */
  abandon() {
    this.flush();
    const { mark, nodes } = this.open.pop();
    this.open[this.open.length - 1].nodes.push(document.createTextNode(mark), ...nodes);
  }

  escape() {
    if (/[!-/:-@[-`{-~]/.test(this.text[this.at + 1] ?? "")) this.at++;
    this.take(1);
  }

  code() {
    const run = runAt(this.text, this.at);
    const start = this.at + run.length;
    if (!this.unclosed.has(run.length)) {
      for (let end = this.text.indexOf(run, start); end >= 0; ) {
        const closing = runAt(this.text, end);
        if (closing.length === run.length) {
          const code = this.text.slice(start, end).replaceAll("\n", " ");
          const padded = /^ .* $/.test(code) && code.trim();
          this.push(h("code", { text: padded ? code.slice(1, -1) : code }));
          this.at = end + closing.length;
          return;
        }
        end = this.text.indexOf(run, end + closing.length);
      }
      this.unclosed.add(run.length);
    }
    this.take(run.length);
  }

  emphasis(char) {
    const run = runAt(this.text, this.at);
    const before = this.text[this.at - 1] ?? " ";
    const after = this.text[this.at + run.length] ?? " ";
    let opens = !SPACE.test(after);
    let closes = !SPACE.test(before);
    if (char === "_") {
      opens &&= !WORD.test(before);
      closes &&= !WORD.test(after);
    }
    if (run.length > 3 || (char === "~" && run.length !== 2)) opens = closes = false;
    let left = run.length;
    while (closes && left) {
      const length = this.close(char, left);
      if (!length) break;
      left -= length;
    }
    while (opens && left && this.open.length < DEEPEST) {
      const length = left >= 2 ? 2 : 1;
      this.flush();
      this.open.push({ mark: char.repeat(length), nodes: [] });
      left -= length;
    }
    this.at += run.length - left;
    this.take(left);
  }

  /** Close the innermost mark of that character, if it is no longer than `most`: its length, or 0. */
  close(char, most) {
    for (let i = this.open.length - 1; i > 0; i--) {
      const { mark } = this.open[i];
      if (mark[0] !== char || mark.length > most) continue;
      while (this.open.length - 1 > i) this.abandon();
      this.flush();
      const { nodes } = this.open.pop();
      this.push(h(TAGS[`${char}${mark.length}`], {}, ...nodes));
      return mark.length;
    }
    return 0;
  }

  /** `[words](address "title")`; an image is shown as a link to it: nothing is loaded. */
  link() {
    const { text } = this;
    const start = text.indexOf("[", this.at) + 1;
    const near = text.slice(start, start + LONGEST_LINK);
    const found = /^((?:[^[\]\\\n]|\\.){0,1000})\]\(<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)?)>?(?:[ \t]+"[^"\n]*")?\)/.exec(near);
    const address = found && safeAddress(found[2]);
    if (!address) return this.take(1);
    const words = found[1] || found[2];
    // Links hold no links, so their words are only unescaped, and emphasis in them is rare.
    const nodes = words.includes("http") || words.includes("[") ? [words] : inline(words);
    this.push(anchor(address, nodes));
    this.at = start + found[0].length;
  }

  autolink() {
    const found = /^<(https?:\/\/[^\s<>]+)>/i.exec(this.text.slice(this.at, this.at + LONGEST_LINK));
    const address = found && safeAddress(found[1]);
    if (!address) return this.take(1);
    this.push(anchor(address, [found[1]]));
    this.at += found[0].length;
  }

  bareLink() {
    const found = /^https?:\/\/[^\s<>"'`*[\]{}|\\]+/.exec(this.text.slice(this.at, this.at + LONGEST_LINK));
    let shown = found?.[0].replace(/[.,:;!?_~]{1,50}$/, "");
    if (shown?.endsWith(")") && !shown.includes("(")) shown = shown.slice(0, -1);
    const address = shown && safeAddress(shown);
    if (!address) return this.take(1);
    this.push(anchor(address, [shown]));
    this.at += shown.length;
  }
}

function runAt(text, at) {
  let end = at;
  while (text[end] === text[at]) end++;
  return text.slice(at, end);
}

/** The address, if it is one of the web in full; a relative one would lead to this server. */
function safeAddress(text) {
  if (!/^https?:\/\//i.test(text)) return null;
  try {
    const url = new URL(text);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}

function anchor(address, nodes) {
  return h("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, ...nodes);
}
