// A conversation's system prompt and sampling parameters. An empty field leaves it to the server.

import { h, iconButton } from "./dom.js";

const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1, help: "0 takes the likeliest word; higher varies more" },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01, help: "only the likeliest words with this share together" },
  { name: "max_tokens", label: "Most tokens", min: 1, max: 1_000_000, step: 1, whole: true, help: "how long an answer may be" },
  { name: "seed", label: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, whole: true, help: "the same seed, the same answer" },
];
const MOST_STOPS = 16;

/** The panel for a conversation; `onChange` after each valid change. */
export function settingsPanel(conversation, onChange, onClose) {
  const system = h("textarea", {
    rows: 5, value: conversation.system, placeholder: "You are …",
    on: { input: () => ((conversation.system = system.value), onChange()) },
  });
  return [
    h("div", { class: "row" }, h("h2", { text: "Settings" }), h("span", { class: "grow" }), iconButton("close", "Close settings", onClose)),
    h("label", { class: "field" }, h("span", { text: "System prompt" }), system),
    ...NUMBERS.map((spec) => numberField(spec, conversation.params, onChange)),
    stopField(conversation.params, onChange),
    h("p", { class: "small", text: "An empty field leaves it to the server. New conversations begin with what was set last." }),
  ];
}

function numberField({ name, label, min, max, step, whole, help }, params, onChange) {
  const id = `param-${name}`;
  const note = h("span", { class: "small", id: `${id}-help`, text: help });
  const input = h("input", {
    id, type: "number", inputMode: whole ? "numeric" : "decimal", placeholder: "server's own",
    value: params[name] ?? "", "aria-describedby": note.id,
    on: {
      input: () => {
        const value = input.value === "" && !input.validity.badInput ? undefined : input.valueAsNumber;
        const valid = value === undefined || (value >= min && value <= max && (!whole || Number.isInteger(value)));
        input.setAttribute("aria-invalid", String(!valid));
        note.classList.toggle("error-text", !valid);
        note.textContent = valid ? help : `${whole ? "a whole number" : "a number"} from ${min} to ${max}`;
        if (!valid) return;
        if (value === undefined) delete params[name];
        else params[name] = value;
        onChange();
      },
    },
  });
  Object.assign(input, { min, max, step });
  return h("div", { class: "field" }, h("label", { htmlFor: id, text: label }), input, note);
}

function stopField(params, onChange) {
  const input = h("textarea", {
    id: "param-stop", rows: 2, value: (params.stop ?? []).join("\n"), "aria-describedby": "param-stop-help",
    on: {
      input: () => {
        const stops = input.value.split("\n").filter(Boolean).slice(0, MOST_STOPS);
        if (stops.length) params.stop = stops;
        else delete params.stop;
        onChange();
      },
    },
  });
  return h(
    "div",
    { class: "field" },
    h("label", { htmlFor: input.id, text: "Stop at" }),
    input,
    h("span", { class: "small", id: "param-stop-help", text: "one text per line; the answer ends before it" }),
  );
}
