// The chat view: the conversation that is shown, the message that is being written, and the answers
// that are under way (each conversation may have one, shown or not).

import { Answer } from "./answer.js";
import { Attachments, acceptDrops } from "./attachments.js";
import { h, icon, toast } from "./dom.js";
import { MessageView } from "./message.js";
import { settingsPanel } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import * as store from "./store.js";

const NEAR_END = 80; // pixels: a reader this near to the end follows the answer
const CURRENT = "tidemill.current";
const $ = (id) => document.getElementById(id);

export class Chat {
  /** `models`: who knows which model is chosen. `onUnauthorized(message)`: a key is needed; resolves to
   * whether there is one now. */
  constructor(models, onUnauthorized) {
    this.models = models;
    this.onUnauthorized = onUnauthorized;
    this.answers = new Map(); // by conversation
    this.views = new Map(); // by message, of the conversation that is shown
    this.attachments = new Attachments($("attachments"), (text) => this.complain(text));
    this.sidebar = new Sidebar($("conversations"), (chosen) => this.choose(chosen));
    this.sidebar.onRename = (renamed) => this.renamed(renamed);
    this.sidebar.onRemove = (id) => this.answers.get(id)?.stop();
    this.actions = {
      edit: (message, text, again) => this.edit(message, text, again),
      regenerate: (message) => this.regenerate(message),
      retry: (message) => this.regenerate(message),
      remove: (message) => this.cut(message, 1, "The message was deleted."),
    };
    this.listen();
    this.show(store.load(sessionStorage.getItem(CURRENT)) ?? store.create());
  }

  listen() {
    const prompt = $("prompt");
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.answer) this.answer.stop();
      else this.send();
    });
    prompt.addEventListener("input", () => this.fit());
    prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.answer) this.send();
    });
    prompt.addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.attachments.add(event.clipboardData.files);
    });
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.answer?.stop();
    });
    $("attach").append(icon("attach"));
    $("attach").addEventListener("click", () => $("files").click());
    $("files").addEventListener("change", async () => {
      await this.attachments.add([...$("files").files]);
      $("files").value = "";
      prompt.focus();
    });
    acceptDrops($("chat"), (files) => this.attachments.add([...files]));
    $("new").addEventListener("click", () => {
      this.show(store.create());
      prompt.focus();
    });
    this.following = true;
    $("scroll").addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = $("scroll");
      this.following = scrollHeight - scrollTop - clientHeight < NEAR_END;
    });
  }

  get answer() {
    return this.answers.get(this.conversation.id);
  }

  // ---- showing

  choose(chosen) {
    this.show(chosen ?? store.create());
    this.onChosen?.();
  }

  show(conversation) {
    // One that is being answered is at hand already, and further than what was kept of it.
    this.conversation = this.answers.get(conversation.id)?.conversation ?? conversation;
    sessionStorage.setItem(CURRENT, conversation.id);
    this.models.want(this.conversation.model, (name) => this.setModel(name));
    $("settings").replaceChildren(
      ...settingsPanel(this.conversation, () => this.settingsChanged(), () => this.onCloseSettings?.()),
    );
    this.following = true;
    this.showMessages();
    this.sidebar.show(conversation.id);
    this.complain("");
  }

  showMessages() {
    const { messages, title } = this.conversation;
    this.views = new Map(messages.map((message) => [message.id, new MessageView(message, this.actions)]));
    $("messages").replaceChildren(...[...this.views.values()].map((view) => view.element));
    if (!messages.length) $("messages").append(welcome());
    $("title").textContent = title;
    if (this.answer) this.views.get(this.answer.message.id)?.update(true);
    this.showState();
    this.follow();
  }

  showState() {
    const busy = Boolean(this.answer);
    const send = $("send");
    send.replaceChildren(icon(busy ? "stop" : "send"));
    send.setAttribute("aria-label", busy ? "Stop the answer" : "Send");
    send.title = busy ? "Stop (Esc)" : "Send (Enter)";
    $("messages").classList.toggle("busy", busy);
  }

  follow() {
    if (this.following) $("scroll").scrollTop = $("scroll").scrollHeight;
  }

  fit() {
    const prompt = $("prompt");
    prompt.style.height = "auto";
    prompt.style.height = `${prompt.scrollHeight + 2}px`;
  }

  complain(text) {
    $("composer-error").textContent = text;
    $("composer-error").hidden = !text;
  }

  renamed({ id, title }) {
    for (const conversation of [this.conversation, this.answers.get(id)?.conversation]) {
      if (conversation?.id === id) Object.assign(conversation, { title, named: true });
    }
    if (id === this.conversation.id) $("title").textContent = title;
  }

  // ---- keeping

  setModel(name) {
    this.conversation.model = name;
    this.settingsChanged();
  }

  settingsChanged() {
    store.saveDefaults(this.conversation);
    if (this.conversation.messages.length) store.save(this.conversation);
  }

  keep(conversation) {
    conversation.updated = Date.now();
    if (!conversation.named) conversation.title = store.titleOf(conversation);
    store.save(conversation);
    if (conversation === this.conversation) $("title").textContent = conversation.title;
    this.sidebar.show(this.conversation.id);
  }

  // ---- acting

  send() {
    const prompt = $("prompt");
    const content = prompt.value.trim();
    if (!content && !this.attachments.files.length) return;
    if (!this.conversation.model) return this.complain("There is no model to ask yet.");
    prompt.value = "";
    this.fit();
    const message = { id: store.newId(), role: "user", content, attachments: this.attachments.take() };
    this.conversation.messages.push(message);
    this.following = true;
    this.respond();
  }

  /** Answer the conversation as it stands. */
  async respond() {
    const { conversation } = this;
    const body = store.requestOf(conversation, conversation.messages.length);
    const message = { id: store.newId(), role: "assistant", content: "" };
    conversation.messages.push(message);
    const answer = new Answer(message, body, {
      onChange: () => this.grew(message, true),
      onSave: () => store.save(conversation),
    });
    answer.conversation = conversation;
    this.answers.set(conversation.id, answer);
    this.keep(conversation);
    this.showMessages();
    const failure = await answer.run();
    this.answers.delete(conversation.id);
    // Deleted meanwhile: it is not to come back.
    if (store.load(conversation.id)) this.keep(conversation);
    if (conversation === this.conversation) {
      this.grew(message, false);
      this.showState();
    }
    if (failure?.status === 401 && (await this.onUnauthorized(failure.message))) {
      if (conversation === this.conversation) this.regenerate(message);
    }
  }

  grew(message, growing) {
    this.views.get(message.id)?.update(growing);
    this.follow();
  }

  edit(message, text, again) {
    if (this.answer) return;
    message.content = text;
    delete message.error;
    if (again) return this.regenerate(message);
    this.keep(this.conversation);
    this.views.get(message.id)?.update(false);
  }

  /** Answer anew: what came after the message goes, and an answer itself too. */
  regenerate(message) {
    if (this.answer) return;
    const { messages } = this.conversation;
    const at = messages.indexOf(message);
    if (at < 0) return;
    const end = message.role === "user" ? at + 1 : at;
    const lost = messages.slice(end);
    const words = lost.length > 1 ? "The messages after it were removed." : "The earlier answer was removed.";
    if (lost.some(({ content }) => content)) this.cut(lost[0], lost.length, words);
    else messages.splice(end);
    this.following = true;
    this.respond();
  }

  /** Remove messages, so that it can be undone. */
  cut(message, count, words) {
    const { conversation } = this;
    if (this.answer) return;
    const before = [...conversation.messages];
    conversation.messages.splice(conversation.messages.indexOf(message), count);
    this.keep(conversation);
    this.showMessages();
    toast(words, () => {
      this.answers.get(conversation.id)?.stop();
      conversation.messages = before;
      this.keep(conversation);
      if (conversation === this.conversation) this.showMessages();
    });
  }
}

function welcome() {
  return h(
    "li",
    { class: "welcome" },
    h("img", { src: "web/icon.svg", alt: "", width: 56, height: 56 }),
    h("p", { class: "big", text: "What would you like to know?" }),
    h("p", { class: "small", text: "The model runs on this server; nothing is sent anywhere else." }),
  );
}
