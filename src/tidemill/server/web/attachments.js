// Text files that go along with a message.

import { formatBytes, h, icon, iconButton } from "./dom.js";

export const MOST_BYTES = 1_000_000; // of one message's attachments together
const MOST_FILES = 20;

/** A file as {name, size, text}. Throws an Error that says why it cannot be one. */
async function read(file, room) {
  if (file.size > room) {
    throw new Error(`${file.name} (${formatBytes(file.size)}) is too large: attachments may have ${formatBytes(MOST_BYTES)} together`);
  }
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return { name: file.name, size: file.size, text };
  } catch {
    // said below
  }
  throw new Error(`${file.name} is not a text file (in UTF-8)`);
}

/** The attachments of the message that is being written. */
export class Attachments {
  /** `list`: the element that shows them. `onError(text)`: with "" when there is none any more. */
  constructor(list, onError) {
    this.files = [];
    this.list = list;
    this.onError = onError;
    this.show();
  }

  async add(files) {
    const problems = [];
    for (const file of files) {
      const taken = this.files.reduce((sum, { size }) => sum + size, 0);
      try {
        if (this.files.length >= MOST_FILES) throw new Error(`No more than ${MOST_FILES} files`);
        this.files.push(await read(file, MOST_BYTES - taken));
      } catch (error) {
        problems.push(error.message);
      }
    }
    this.onError(problems.join(". "));
    this.show();
  }

  /** What is attached, which then is no longer. */
  take() {
    return this.replace([]);
  }

  replace(files) {
    const before = this.files;
    this.files = files;
    this.onError("");
    this.show();
    return before;
  }

  show() {
    this.list.hidden = !this.files.length;
    this.list.replaceChildren(
      ...this.files.map((file) =>
        chip(file, iconButton("close", `Remove ${file.name}`, () => {
          this.files = this.files.filter((other) => other !== file);
          this.show();
        })),
      ),
    );
  }
}

/** How one attachment is shown. */
export function chip({ name, size }, button = null) {
  return h("li", { class: "chip" }, icon("file"), h("span", { class: "chip-name", text: name }), h("span", { class: "small", text: formatBytes(size) }), button);
}

/** Files can be dropped anywhere on `area`. */
export function acceptDrops(area, onFiles) {
  let depth = 0;
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const mark = (change) => {
    depth = Math.max(0, change);
    area.classList.toggle("dropping", depth > 0);
  };
  area.addEventListener("dragenter", (event) => hasFiles(event) && mark(depth + 1));
  area.addEventListener("dragleave", (event) => hasFiles(event) && mark(depth - 1));
  area.addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  area.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    mark(0);
    onFiles(event.dataTransfer.files);
  });
}
