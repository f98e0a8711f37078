// The list of conversations: choose, rename, export, delete.

import { h, iconButton, toast } from "./dom.js";
import * as store from "./store.js";

export class Sidebar {
  /** `onChoose(conversation)` also with null, when the current one has been deleted. */
  constructor(list, onChoose) {
    this.list = list;
    this.onChoose = onChoose;
    this.current = null;
    // Another tab has changed something.
    addEventListener("storage", (event) => {
      if (event.key === null || event.key.startsWith("tidemill.conversation.")) this.show();
    });
  }

  show(current = this.current) {
    this.current = current;
    if (this.renaming) return; // shown once that is over
    this.list.replaceChildren(...store.all().map((conversation) => this.item(conversation)));
  }

  item(conversation) {
    const { id, title } = conversation;
    const chosen = id === this.current;
    const open = h("button", {
      type: "button", class: "conversation", text: title, title,
      "aria-current": chosen ? "true" : undefined,
      on: { click: () => this.onChoose(store.load(id)) },
    });
    const item = h(
      "li",
      { class: chosen ? "chosen" : "" },
      open,
      h(
        "span",
        { class: "tools" },
        iconButton("edit", `Rename “${title}”`, () => this.rename(item, id)),
        iconButton("save", `Export “${title}”`, () => download(store.load(id))),
        iconButton("remove", `Delete “${title}”`, () => this.remove(id)),
      ),
    );
    return item;
  }

  rename(item, id) {
    const conversation = store.load(id);
    if (!conversation) return this.show();
    let over = false;
    const end = (keep) => {
      if (over) return;
      over = true;
      this.renaming = false;
      const title = input.value.trim();
      if (keep && title && title !== conversation.title) {
        // Loaded anew: an answer may have gone on meanwhile.
        const latest = { ...(store.load(id) ?? conversation), title, named: true };
        store.save(latest);
        this.onRename?.(latest);
      }
      this.show();
      this.list.querySelector("[aria-current]")?.focus();
    };
    const input = h("input", {
      type: "text", value: conversation.title, maxLength: 200, "aria-label": "Name of the conversation",
      on: {
        keydown: (event) => {
          if (event.key === "Enter") end(true);
          if (event.key === "Escape") end(false);
          event.stopPropagation();
        },
        blur: () => end(true),
      },
    });
    this.renaming = true;
    item.replaceChildren(input);
    input.select();
  }

  remove(id) {
    const conversation = store.load(id);
    store.remove(id);
    this.onRemove?.(id);
    if (id === this.current) this.onChoose(null);
    this.show();
    if (!conversation) return;
    toast(`“${conversation.title}” was deleted.`, () => {
      store.save(conversation);
      this.show();
    });
  }
}

/** The conversation as a JSON file. */
function download(conversation) {
  if (!conversation) return;
  const blob = new Blob([JSON.stringify(conversation, null, 2)], { type: "application/json" });
  const name = conversation.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 50).replace(/^-+|-+$/g, "");
  const link = h("a", { href: URL.createObjectURL(blob), download: `${name || "conversation"}.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
