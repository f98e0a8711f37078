// The page: its two views, the choice of a model, the key.

import * as api from "./api.js";
import { Chat } from "./chat.js";
import { h, icon } from "./dom.js";
import { Live } from "./live.js";

const $ = (id) => document.getElementById(id);
const VIEWS = ["chat", "live"];
const MODELS_AGAIN_MS = 5000;
const wide = matchMedia("(min-width: 900px)");

/** The choice of a model. */
class Models {
  constructor(select) {
    this.select = select;
    this.wanted = "";
    select.addEventListener("change", () => {
      this.wanted = select.value;
      this.onChoose?.(select.value);
    });
  }

  /** Choose a conversation's model, or the first if there is none of that name (any more). */
  want(name, onChoose) {
    this.wanted = name;
    this.onChoose = onChoose;
    this.choose();
  }

  choose() {
    const names = [...this.select.options].map((option) => option.value).filter(Boolean);
    if (!names.length) return;
    this.select.value = names.includes(this.wanted) ? this.wanted : names[0];
    if (this.select.value !== this.wanted) {
      this.wanted = this.select.value;
      this.onChoose?.(this.wanted);
    }
  }

  async load() {
    try {
      const found = await api.models();
      this.select.replaceChildren(...found.map(({ id }) => h("option", { value: id, text: id })));
      if (!found.length) this.none("no models");
      this.choose();
    } catch (error) {
      this.none(error.status === 401 ? "needs a key" : "not reachable");
      if (error.status === 401) {
        askForKey(error.message); // loads them when it has one
      } else setTimeout(() => this.load(), MODELS_AGAIN_MS);
    }
  }

  none(why) {
    this.select.replaceChildren(h("option", { value: "", text: why }));
  }
}

let asking = null;

/** Ask for an API key; resolves to whether one was given. Several who ask at once share the dialog. */
function askForKey(message) {
  $("key").hidden = false;
  asking ??= new Promise((resolve) => {
    const dialog = $("key-dialog");
    $("key-message").textContent = message;
    $("key-input").value = api.key.get();
    dialog.returnValue = "";
    dialog.addEventListener(
      "close",
      () => {
        asking = null;
        const value = $("key-input").value.trim();
        if (dialog.returnValue !== "use" || !value) return resolve(false);
        api.key.set(value);
        models.load();
        resolve(true);
      },
      { once: true },
    );
    dialog.showModal();
  });
  return asking;
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  $("key-dialog").close("use");
});
$("key-cancel").addEventListener("click", () => $("key-dialog").close(""));

const models = new Models($("model"));
const chat = new Chat(models, askForKey);
const live = new Live($("live"), askForKey);

$("key").hidden = !api.key.get();
$("key").addEventListener("click", () => askForKey(""));

// ---- views and panels

function showView() {
  const view = VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat";
  for (const name of VIEWS) {
    $(name).hidden = name !== view;
    if (name === view) $(`tab-${name}`).setAttribute("aria-current", "page");
    else $(`tab-${name}`).removeAttribute("aria-current");
  }
  document.body.dataset.view = view;
  document.title = view === "live" ? "Live · Tidemill" : "Tidemill";
  if (view === "live") live.open();
  else chat.follow();
}

/** A panel that its button shows and hides; beside the conversation if there is room, else over it. */
function panel(element, button, name, open) {
  const show = (visible) => {
    element.hidden = !visible;
    button.setAttribute("aria-expanded", String(visible));
  };
  button.append(icon(name));
  button.addEventListener("click", () => {
    show(element.hidden);
    if (!element.hidden) element.querySelector("button, textarea, input")?.focus();
  });
  // Over the conversation, Escape and a click beside it close it.
  const leave = (event) => {
    if (element.hidden || wide.matches) return;
    if (event.type === "keydown" ? event.key !== "Escape" : element.contains(event.target) || button.contains(event.target)) return;
    show(false);
    if (event.type === "keydown") button.focus();
  };
  document.addEventListener("keydown", leave);
  document.addEventListener("pointerdown", leave);
  show(open);
  return show;
}

const showSidebar = panel($("sidebar"), $("menu"), "menu", wide.matches);
const showSettings = panel($("settings"), $("settings-toggle"), "sliders", false);
wide.addEventListener("change", () => showSidebar(wide.matches));
chat.onChosen = () => wide.matches || showSidebar(false);
$("new").addEventListener("click", () => wide.matches || showSidebar(false));
chat.onCloseSettings = () => {
  showSettings(false);
  $("settings-toggle").focus();
};

addEventListener("hashchange", showView);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // its target is no view
  $("main").focus();
});
showView();
models.load();
if (wide.matches && document.body.dataset.view === "chat") $("prompt").focus();
