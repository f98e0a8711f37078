// One message as it is shown, with what can be done to it.

import { chip } from "./attachments.js";
import { copyButton, formatSeconds, h, iconButton } from "./dom.js";
import { render } from "./markdown.js";

const FINISHED = { length: "cut off: the most tokens, or the end of the context", stopped: "stopped" };

/** `actions`: {edit(message, text, again), regenerate(message), retry(message), remove(message)}. */
export class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.body = h("div", { class: "body" });
    this.notes = h("div", { class: "notes" });
    this.foot = h("div", { class: "foot" });
    const who = message.role === "user" ? "You" : "Answer";
    this.element = h(
      "li",
      { class: `message ${message.role}`, "data-id": message.id },
      h("h2", { class: "hidden", text: who }),
      this.body,
      this.notes,
      this.foot,
    );
    this.update(false);
  }

  /** Show the message as it now is; `growing` while its answer comes. */
  update(growing) {
    const { message } = this;
    this.element.classList.toggle("growing", growing);
    if (message.role === "user") this.showUser();
    else this.showAnswer(growing);
    this.notes.replaceChildren(...this.problem());
    if (growing) this.foot.replaceChildren();
    else this.showFoot();
  }

  showUser() {
    const { content, attachments = [] } = this.message;
    this.body.replaceChildren(
      ...(attachments.length ? [h("ul", { class: "chips" }, ...attachments.map((file) => chip(file)))] : []),
      ...(content ? [h("p", { class: "as-typed", text: content })] : []),
    );
  }

  showAnswer(growing) {
    const { content, reasoning } = this.message;
    if (this.text?.parentNode !== this.body) {
      this.thoughts = h("div", { class: "as-typed" });
      this.thinking = h("details", { class: "thinking" }, h("summary", { text: "Reasoning" }), this.thoughts);
      this.text = h("div", { class: "markdown" });
      this.waiting = h("p", { class: "dots" }, h("span", { class: "hidden", text: "The answer has not begun" }), h("i"), h("i"), h("i"));
      this.body.replaceChildren(this.thinking, this.text, this.waiting);
    }
    this.thinking.hidden = !reasoning;
    if (reasoning && this.thoughts.textContent !== reasoning) this.thoughts.textContent = reasoning;
    this.waiting.hidden = !growing || Boolean(content);
    render(this.text, content);
  }

  problem() {
    const { error } = this.message;
    if (!error) return [];
    return [
      h(
        "div",
        { class: "problem", role: "alert" },
        h("p", { text: error }),
        h("button", { type: "button", class: "button", text: "Try again", on: { click: () => this.actions.retry(this.message) } }),
      ),
    ];
  }

  showFoot() {
    const { message, actions } = this;
    this.foot.replaceChildren(
      h(
        "span",
        { class: "tools" },
        copyButton(() => message.content, "Copy message"),
        iconButton("edit", "Edit message", () => this.edit()),
        iconButton("again", message.role === "user" ? "Answer this again" : "Regenerate this answer", () => actions.regenerate(message)),
        iconButton("remove", "Delete message", () => actions.remove(message)),
      ),
      h("span", { class: "stats", text: statsText(message) }),
    );
  }

  /** The message's text becomes a field to change it in. */
  edit() {
    const { message, actions } = this;
    const done = () => {
      this.text = null;
      this.element.classList.remove("editing");
      this.update(false);
      this.foot.querySelector("button")?.focus();
    };
    const keep = (again) => {
      done();
      actions.edit(message, area.value, again);
    };
    const area = h("textarea", {
      value: message.content, "aria-label": "Text of the message",
      rows: Math.min(16, message.content.split("\n").length + 1),
      on: {
        keydown: (event) => {
          if (event.isComposing) return;
          if (event.key === "Escape") (event.stopPropagation(), done());
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) keep(message.role === "user");
        },
      },
    });
    const button = (text, primary, act) =>
      h("button", { type: "button", class: primary ? "button primary" : "button", text, on: { click: act } });
    this.element.classList.add("editing");
    this.notes.replaceChildren();
    this.foot.replaceChildren();
    this.body.replaceChildren(
      area,
      h(
        "div",
        { class: "row end" },
        button("Cancel", false, done),
        button("Save", message.role !== "user", () => keep(false)),
        message.role === "user" ? button("Save and answer", true, () => keep(true)) : null,
      ),
    );
    area.focus();
  }
}

function statsText({ role, stats, finish }) {
  if (role === "user") return "";
  const parts = [];
  if (stats?.rate) parts.push(`${stats.rate.toFixed(stats.rate < 10 ? 1 : 0)} tok/s`);
  if (stats?.ttft !== undefined) parts.push(`first token after ${formatSeconds(stats.ttft)}`);
  if (stats?.tokens) parts.push(`${stats.exact ? "" : "about "}${stats.tokens} ${stats.tokens === 1 ? "token" : "tokens"}`);
  if (FINISHED[finish]) parts.push(FINISHED[finish]);
  return parts.join(" · ");
}
