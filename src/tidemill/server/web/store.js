// Conversations, kept in this browser: each under a key of its own, so that two tabs do not overwrite
// one another's.
//
// A conversation is {id, title, named, created, updated, model, system, params, messages}; `named` once
// a person has given the title. A message is {id, role, content, attachments: [{name, size, text}],
// reasoning, error, finish, stats: {ttft, tokens, rate, exact}}.

import { toast } from "./dom.js";

const PREFIX = "tidemill.conversation.";
const DEFAULTS = "tidemill.defaults";
const TITLE_LENGTH = 60;

/** All conversations, latest first. */
export function all() {
  const found = [];
  for (let i = 0; i < localStorage.length; i++) {
    const name = localStorage.key(i);
    if (name.startsWith(PREFIX)) found.push(load(name.slice(PREFIX.length)));
  }
  return found.filter(Boolean).sort((a, b) => b.updated - a.updated);
}

export function load(id) {
  try {
    const value = JSON.parse(localStorage.getItem(PREFIX + id));
    return Array.isArray(value?.messages) ? value : null;
  } catch {
    return null; // not ours, or damaged
  }
}

export function save(conversation) {
  try {
    localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
  } catch {
    toast("This browser's storage is full: the conversation is not kept. Delete or export old ones.");
  }
}

export function remove(id) {
  localStorage.removeItem(PREFIX + id);
}

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** An empty conversation with the settings that were used last; it is kept from its first message. */
export function create() {
  const now = Date.now();
  const { model = "", system = "", params = {} } = defaults();
  return { id: newId(), title: "New conversation", named: false, created: now, updated: now, model, system, params: { ...params }, messages: [] };
}

function defaults() {
  try {
    return JSON.parse(localStorage.getItem(DEFAULTS)) ?? {};
  } catch {
    return {};
  }
}

export function saveDefaults({ model, system, params }) {
  try {
    localStorage.setItem(DEFAULTS, JSON.stringify({ model, system, params }));
  } catch {
    // full: `save` says so where it matters
  }
}

/** What the conversation is called as long as nobody has named it: the beginning of its first words. */
export function titleOf(conversation) {
  const first = conversation.messages.find((message) => message.role === "user");
  const words = (first?.content || first?.attachments?.[0]?.name || "").trim().replace(/\s+/g, " ");
  if (!words) return "New conversation";
  return words.length > TITLE_LENGTH ? `${words.slice(0, TITLE_LENGTH - 1).trimEnd()}…` : words;
}

/** What the server is asked: the conversation up to `count` messages, with its settings. */
export function requestOf(conversation, count) {
  const messages = [];
  for (const message of conversation.messages.slice(0, count)) {
    const { role } = message;
    const content = contentOf(message);
    const last = messages[messages.length - 1];
    if (role === "assistant" && !content) continue; // it failed
    // Many templates want the roles to alternate.
    if (last?.role === role) last.content += `\n\n${content}`;
    else messages.push({ role, content });
  }
  if (conversation.system.trim()) messages.unshift({ role: "system", content: conversation.system });
  return { model: conversation.model, messages, ...conversation.params };
}

/** A message's words with its attachments before them, each in a fence that it does not contain. */
function contentOf({ content, attachments = [] }) {
  const parts = attachments.map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    return `File ${name}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
  });
  return [...parts, content].filter(Boolean).join("\n\n");
}
