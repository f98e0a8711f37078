// Markdown to DOM nodes. Made for what models write, and for text that means harm: markup in it stays
// text, links lead to http and https only, nothing is loaded, and the time taken is linear.

import { copyButton, h } from "./dom.js";
import { inline } from "./inline.js";

const DEEPEST = 8; // lists and quotations within one another; beyond that they are text

/** Show `text` in `container`. Blocks that are there already stay as they are, so that an answer can
 * be shown while it grows: only its end is built anew, and a selection above it is kept. */
export function render(container, text) {
  const found = blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
  let same = 0;
  const shown = container.childNodes;
  while (same < found.length && same < shown.length && shown[same].source === found[same].source) same++;
  while (shown.length > same) shown[shown.length - 1].remove();
  for (const block of found.slice(same)) {
    const node = block.build();
    node.source = block.source;
    container.append(node);
  }
}

function nodesOf(lines, depth) {
  return blocks(lines, depth).map((block) => block.build());
}

/** [{source, build()}]: what each block is made from, and how. */
function blocks(lines, depth) {
  const found = [];
  let at = 0;
  const add = (kind, end, build) => {
    found.push({ source: `${kind}\n${lines.slice(at, end).join("\n")}`, build });
    at = end;
  };
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) {
      at++;
      continue;
    }
    const fence = fenceOf(line);
    if (fence) {
      addFence(lines, at, fence, add);
      continue;
    }
    const heading = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/.exec(line);
    if (heading) {
      const text = (heading[2] ?? "").trimEnd().replace(/(?:^|[ \t])#+$/, "");
      // Below the page's own headings, which end with the second.
      const level = Math.min(6, heading[1].length + 2);
      add("heading", at + 1, () => h(`h${level}`, { class: `h${heading[1].length}` }, ...inline(text)));
    } else if (isRule(line)) {
      add("rule", at + 1, () => h("hr"));
    } else if (/^ {0,3}>/.test(line) && depth < DEEPEST) {
      let end = at;
      while (end < lines.length && /^ {0,3}>/.test(lines[end])) end++;
      const inner = lines.slice(at, end).map((l) => l.replace(/^ {0,3}> ?/, ""));
      add("quote", end, () => h("blockquote", {}, ...nodesOf(inner, depth + 1)));
    } else if (markerOf(line) && depth < DEEPEST) {
      addList(lines, at, depth, add);
    } else if (isTable(lines, at)) {
      addTable(lines, at, add);
    } else {
      let end = at + 1;
      while (end < lines.length && lines[end].trim() && !startsBlock(lines, end, depth)) end++;
      const text = lines.slice(at, end).map((l) => l.trim()).join("\n");
      add("text", end, () => h("p", {}, ...inline(text)));
    }
  }
  return found;
}

function startsBlock(lines, at, depth) {
  const line = lines[at];
  const nested = depth < DEEPEST && (/^ {0,3}>/.test(line) || (markerOf(line) && !markerOf(line).empty));
  return nested || fenceOf(line) || /^ {0,3}#{1,6}[ \t]/.test(line) || isRule(line) || isTable(lines, at);
}

function isRule(line) {
  const marks = line.replace(/[ \t]/g, "");
  return marks.length >= 3 && /^(?:-+|\*+|_+)$/.test(marks);
}

// ---- code

function fenceOf(line) {
  const found = /^([ \t]*)(`{3,}|~{3,})(.*)$/.exec(line);
  if (!found || (found[2][0] === "`" && found[3].includes("`"))) return null;
  return { indent: found[1].length, mark: found[2], language: found[3].trim().split(/\s/)[0] };
}

function addFence(lines, at, fence, add) {
  let end = at + 1;
  const closes = (line) => {
    const text = line.trim();
    return text.length >= fence.mark.length && text === fence.mark[0].repeat(text.length);
  };
  while (end < lines.length && !closes(lines[end])) end++;
  const code = lines.slice(at + 1, end).map((line) => {
    const indent = line.length - line.trimStart().length;
    return line.slice(Math.min(indent, fence.indent));
  });
  const text = code.join("\n");
  add("code", Math.min(end + 1, lines.length), () =>
    h(
      "figure",
      { class: "code" },
      h("figcaption", {}, h("span", { text: fence.language || "text" }), copyButton(() => text, "Copy code")),
      h("pre", { tabIndex: 0 }, h("code", { text })),
    ),
  );
}

// ---- lists

/** {indent, width, ordered, start, empty} of a line that begins a list's item. */
function markerOf(line) {
  const found = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*))?$/.exec(line);
  if (!found || isRule(line)) return null;
  const indent = found[1].length;
  const gap = found[3] && found[3].length <= 4 ? found[3].length : 1;
  const ordered = /\d/.test(found[2]);
  return {
    indent,
    width: indent + found[2].length + gap,
    ordered,
    start: ordered ? parseInt(found[2], 10) : 1,
    empty: !found[4],
  };
}

function addList(lines, at, depth, add) {
  const first = markerOf(lines[at]);
  const items = [];
  let end = at;
  let item = null;
  for (; end < lines.length; end++) {
    const line = lines[end];
    const indent = line.length - line.trimStart().length;
    const marker = markerOf(line);
    const blankBefore = end > at && !lines[end - 1].trim();
    if (marker && indent < (item?.width ?? Infinity) && indent >= first.indent - 1) {
      if (marker.ordered !== first.ordered) break;
      item = { width: Math.max(marker.width, indent + 2), lines: [line.slice(marker.width)] };
      items.push(item);
    } else if (!line.trim()) {
      item.lines.push("");
    } else if (indent >= item.width || indent >= first.indent + 2) {
      item.lines.push(line.slice(Math.min(indent, item.width)));
    } else if (blankBefore || startsBlock(lines, end, depth)) {
      break;
    } else {
      item.lines.push(line.trimStart()); // a paragraph that goes on without its indentation
    }
  }
  while (!lines[end - 1].trim()) end--;
  add("list", end, () => {
    const list = h(first.ordered ? "ol" : "ul");
    if (first.ordered && first.start !== 1) list.start = first.start;
    for (const { lines: content } of items) {
      const nodes = nodesOf(content, depth + 1);
      // A line alone needs no paragraph, and is closer to its neighbours without.
      const [head, ...rest] = nodes;
      if (head?.tagName === "P") list.append(h("li", {}, ...head.childNodes, ...rest));
      else list.append(h("li", {}, ...nodes));
    }
    return list;
  });
}

// ---- tables

/** A row's cells: split at bars that are not escaped. */
function cellsOf(line) {
  const text = line.trim().replace(/^\|/, "");
  const cells = [""];
  for (let i = 0; i < text.length; i++) {
    if (text[i] === "\\" && text[i + 1] === "|") (cells[cells.length - 1] += "|"), i++;
    else if (text[i] === "|") cells.push("");
    else cells[cells.length - 1] += text[i];
  }
  if (cells.length > 1 && !cells[cells.length - 1].trim()) cells.pop();
  return cells.map((cell) => cell.trim());
}

function isTable(lines, at) {
  const under = lines[at + 1];
  if (under === undefined || !lines[at].includes("|") || !/^[\s|:-]+$/.test(under)) return false;
  const marks = cellsOf(under);
  return marks.every((mark) => /^:?-+:?$/.test(mark)) && marks.length === cellsOf(lines[at]).length;
}

function addTable(lines, at, add) {
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes("|")) end++;
  const aligned = cellsOf(lines[at + 1]).map((mark) =>
    mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : "left",
  );
  const row = (line, tag) => {
    const cells = cellsOf(line);
    return h("tr", {}, ...aligned.map((side, i) => h(tag, { class: side }, ...inline(cells[i] ?? ""))));
  };
  const body = lines.slice(at + 2, end);
  add("table", end, () =>
    h(
      "div",
      { class: "table", tabIndex: 0, role: "region", "aria-label": "Table" },
      h("table", {}, h("thead", {}, row(lines[at], "th")), h("tbody", {}, ...body.map((l) => row(l, "td")))),
    ),
  );
}
