// Building the page. Text always becomes a text node: nothing here, or elsewhere, parses markup.

/** An element. `options`: its properties ("class", "text", "on" for listeners, "aria-…" and others
 * with a hyphen as attributes); `children`: nodes or strings, empty ones left out. */
export function h(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null) continue;
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element with attributes. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Drawn on a grid of 24, as strokes.
const ICONS = {
  menu: "M4 7h16M4 12h16M4 17h10",
  sliders: "M4 8h8m4 0h4M4 16h3m4 0h9M14 5.5v5M9 13.5v5",
  attach: "M19 11l-7.5 7.5a4.5 4.5 0 0 1-6.4-6.4L13 4.3a3 3 0 0 1 4.2 4.2l-7.7 7.8a1.5 1.5 0 0 1-2.1-2.1L14 7.5",
  send: "M12 20V5m-6 6 6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  done: "M5 13l4 4L19 7",
  edit: "M5 19h3L19 8l-3-3L5 16zM14 7l3 3",
  again: "M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4",
  remove: "M5 7h14M9 7V4h6v3M7 7l1 13h8l1-13",
  save: "M12 4v11m-5-5 5 5 5-5M5 20h14",
  close: "M6 6l12 12M18 6L6 18",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
};

export function icon(name) {
  return svg(
    "svg",
    { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: ICONS[name] }),
  );
}

/** A small button with an icon; `label` is its name and tooltip. */
export function iconButton(name, label, onClick, className = "") {
  return h(
    "button",
    { type: "button", class: `icon-button ${className}`, title: label, "aria-label": label, on: { click: onClick } },
    icon(name),
  );
}

/** A button that copies `text()` and shows for a moment that it has. */
export function copyButton(text, label = "Copy") {
  const button = iconButton("copy", label, async () => {
    const copied = await copy(text());
    button.replaceChildren(icon(copied ? "done" : "close"));
    say(copied ? "Copied" : "Copying is not allowed here");
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // No clipboard without https: the old way, through a selection.
    const area = h("textarea", { value: text, class: "hidden" });
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return copied;
  }
}

/** Tell those who listen to the page rather than see it. */
export function say(text) {
  document.getElementById("spoken").textContent = text;
}

let toastTimer;

/** A message at the bottom, for some seconds; with `undo`, a button that takes it back. */
export function toast(text, undo) {
  const element = document.getElementById("toast");
  clearTimeout(toastTimer);
  const hide = () => element.replaceChildren();
  const button = undo && h("button", { type: "button", class: "button", text: "Undo", on: { click: () => (hide(), undo()) } });
  element.replaceChildren(h("span", { text }), ...(button ? [button] : []));
  toastTimer = setTimeout(hide, undo ? 12000 : 6000);
}

/** 1234567 bytes as "1.2 MB". */
export function formatBytes(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const units = ["kB", "MB", "GB"];
  let value = bytes / 1000;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) (value /= 1000), (unit += 1);
  return `${value < 10 ? value.toFixed(1) : value.toFixed(0)} ${units[unit]}`;
}

/** 0.0123 seconds as "12 ms", 3.21 as "3.2 s". */
export function formatSeconds(seconds) {
  if (seconds < 0.001) return "< 1 ms";
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(0)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  return seconds < 600 ? `${seconds.toFixed(0)} s` : `${(seconds / 60).toFixed(0)} min`;
}

/** A share in percent: what is not none is not told as none, what is not all not as all. */
export function formatShare(value) {
  if (value > 0 && value < 0.0005) return "< 0.1 %";
  if (value < 1) return `${value > 0 && value < 0.0995 ? (100 * value).toFixed(1) : Math.min(99, Math.round(100 * value))} %`;
  return `${(100 * value).toFixed(0)} %`;
}

/** `what` is the name of one. */
export function formatCount(value, what) {
  return `${formatNumber(value)} ${what}${value === 1 ? "" : "s"}`;
}

export function formatNumber(value) {
  if (value >= 999_500) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(0)} k`;
  return value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
}
