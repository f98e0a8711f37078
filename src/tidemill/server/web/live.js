// The live view: what /metrics says, each second, for the last five minutes.

import * as api from "./api.js";
import { LineChart } from "./chart.js";
import { formatCount, formatNumber, formatSeconds, formatShare, h } from "./dom.js";
import { between, histogram, increase, largest, parse, quantile, sum } from "./prometheus.js";

const EVERY_MS = 1000;
const SPAN_MS = 5 * 60 * 1000;
const PATIENCE_MS = 5000;
const RATE_MS = 3000; // rates are over so long before each point,
const SHARE_MS = 15_000; // percentiles and shares over so long
const QUANTILES = [0.5, 0.9, 0.99];
const STATES = { ok: "Ready", loading: "Loading", draining: "Shutting down" };

const rate = (value) => formatNumber(value);

/** The cards: `names` of the values they show; without the value that one `needs` it is not there. */
const CARDS = [
  { id: "load", title: "Requests", unit: "now", names: ["running", "waiting"], format: formatNumber, least: 4 },
  { id: "tokens", title: "Tokens per second", unit: "now", names: ["generated", "read"], format: rate, least: 10 },
  { id: "kv", title: "KV cache in use", unit: "now", names: ["used"], format: formatShare, top: 1 },
  { id: "hits", title: "Prefix hits", unit: "share of prompt tokens", names: ["hits"], format: formatShare, top: 1, sticky: true },
  { id: "ttft", title: "Time to first token", unit: "", names: ["p50", "p90", "p99"], format: formatSeconds, least: 0.01, sticky: true },
  { id: "itl", title: "Time between tokens", unit: "", names: ["p50", "p90", "p99"], format: formatSeconds, least: 0.001, sticky: true },
  { id: "joules", title: "Energy per token generated", unit: "", names: ["energy"], format: (value) => `${formatNumber(value)} J`, least: 0.01, sticky: true, needs: "energy" },
];

export class Live {
  constructor(root, onUnauthorized) {
    this.onUnauthorized = onUnauthorized;
    this.samples = []; // {time, metrics}
    this.model = "";
    this.status = h("strong", { text: "Connecting" });
    this.dot = h("span", { class: "dot", "aria-hidden": "true" });
    this.states = h("ul", { class: "chips", "aria-label": "Models" });
    this.facts = h("p", { class: "facts" });
    this.choice = h("select", { on: { change: () => ((this.model = this.choice.value), this.show()) } }, h("option", { value: "", text: "All models" }));
    this.problem = h("div", { class: "problem", role: "alert", hidden: true });
    this.cards = CARDS.map((spec) => card(spec));
    root.append(
      h("h1", { class: "hidden", text: "Live" }),
      h(
        "div",
        { class: "summary" },
        h("p", { class: "state" }, this.dot, this.status),
        this.states,
        h("span", { class: "grow" }),
        h("label", {}, h("span", { class: "hidden", text: "Show" }), this.choice),
      ),
      this.problem,
      h("div", { class: "cards" }, ...this.cards.map(({ element }) => element)),
      this.facts,
    );
    document.addEventListener("visibilitychange", () => this.running && !document.hidden && this.wake());
  }

  /** Begin, with the first visit; it goes on while another view is shown. */
  open() {
    if (!this.running) {
      this.running = true;
      this.poll();
    } else this.show();
  }

  wake() {
    clearTimeout(this.timer);
    if (!this.polling) this.poll();
  }

  async poll() {
    this.polling = true;
    const began = performance.now();
    try {
      const [text, ready] = await Promise.all([
        api.metrics(AbortSignal.timeout(PATIENCE_MS)),
        api.readiness(AbortSignal.timeout(PATIENCE_MS)),
      ]);
      this.take(parse(text), ready);
    } catch (error) {
      this.fail(error);
    }
    this.polling = false;
    // A page that nobody sees asks for nothing.
    if (!document.hidden && !this.halted) this.timer = setTimeout(() => this.poll(), Math.max(100, EVERY_MS - (performance.now() - began)));
  }

  take(metrics, ready) {
    const now = performance.now();
    this.problem.hidden = true;
    this.samples.push({ time: now, metrics: slim(metrics) });
    while (now - this.samples[0].time > SPAN_MS + SHARE_MS) this.samples.shift();
    this.state(STATES[ready.status] ?? ready.status, ready.status);
    const states = Object.entries(ready.models ?? {});
    const shown = JSON.stringify(states);
    if (shown !== this.shownStates) {
      this.shownStates = shown;
      this.states.replaceChildren(...states.map(([name, state]) => h("li", { class: "chip" }, h("span", { class: "chip-name", text: name }), h("span", { class: "small", text: state }))));
      const options = [["", "All models"], ...states.map(([name]) => [name, name])];
      this.choice.replaceChildren(...options.map(([value, text]) => h("option", { value, text })));
      this.model = states.some(([name]) => name === this.model) ? this.model : "";
      this.choice.value = this.model;
      this.choice.hidden = states.length < 2;
    }
    this.show();
  }

  state(text, kind) {
    this.dot.className = `dot ${kind}`;
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  fail(error) {
    this.state("Not reachable", "lost");
    const unauthorized = error.status === 401;
    this.halted = unauthorized;
    const words = unauthorized ? error.message : "The server does not answer; this page keeps asking.";
    if (!this.problem.hidden && this.words === words) return;
    this.words = words;
    this.problem.hidden = false;
    const again = async () => {
      if (unauthorized && !(await this.onUnauthorized(error.message))) return;
      this.halted = false;
      this.wake();
    };
    this.problem.replaceChildren(
      h("p", { text: words }),
      h("button", { type: "button", class: "button", text: unauthorized ? "Enter a key" : "Try now", on: { click: again } }),
    );
  }

  show() {
    if (!this.samples.length || document.body.dataset.view !== "live") return;
    const looks = this.samples.map(({ time, metrics }) => look(time, metrics, this.model));
    const now = looks[looks.length - 1].time;
    const points = looks.map((current, i) => derive(current, before(looks, i, RATE_MS), before(looks, i, SHARE_MS)));
    const whole = derive(looks[looks.length - 1], looks[0], looks[0]);
    const ever = derive(looks[looks.length - 1], NOTHING, NOTHING);
    for (const { spec, chart, update, element } of this.cards) {
      element.hidden = spec.needs !== undefined && looks[looks.length - 1][spec.needs] === null;
      chart.update(points.map((point) => ({ time: point.time, values: point[spec.id] })), now);
      update(points[points.length - 1][spec.id], whole[spec.id], ever[spec.id]);
    }
    this.facts.textContent = factsOf(this.samples[this.samples.length - 1].metrics, this.model);
  }
}

// ---- from samples to values

const KEPT = /^tidemill:energy_joules_total$|^vllm:(num_requests_(running|waiting)|kv_cache_usage_perc|(prompt|generation)_tokens_total|prefix_cache_(hits|queries)_total|(time_to_first_token|inter_token_latency)_seconds_bucket|request_success_total|num_preemptions_total|spec_decode_num_(draft|accepted)_tokens_total)$/;

/** Only what is shown, so that five minutes of many models stay small. */
function slim(metrics) {
  return Object.fromEntries(Object.entries(metrics).filter(([name]) => KEPT.test(name)));
}

const NOTHING = { energy: null, everywhere: null, generated: null, read: null, hits: null, queries: null, ttft: [], itl: [] };

/** One sample's values of a model, or of all. */
function look(time, metrics, model) {
  return {
    time,
    running: sum(metrics, "vllm:num_requests_running", model),
    waiting: sum(metrics, "vllm:num_requests_waiting", model),
    used: largest(metrics, "vllm:kv_cache_usage_perc", model),
    generated: sum(metrics, "vllm:generation_tokens_total", model),
    // The machine's energy is for whatever model runs.
    energy: sum(metrics, "tidemill:energy_joules_total"),
    everywhere: sum(metrics, "vllm:generation_tokens_total"),
    read: sum(metrics, "vllm:prompt_tokens_total", model),
    hits: sum(metrics, "vllm:prefix_cache_hits_total", model),
    queries: sum(metrics, "vllm:prefix_cache_queries_total", model),
    ttft: histogram(metrics, "vllm:time_to_first_token_seconds", model),
    itl: histogram(metrics, "vllm:inter_token_latency_seconds", model),
  };
}

/** The latest of the looks that is at least so long before the one at `index`, or the first. */
function before(looks, index, ms) {
  let i = index;
  while (i > 0 && looks[index].time - looks[i].time < ms - EVERY_MS / 2) i--;
  return looks[i];
}

/** What the cards show at a time, by their ids. */
function derive(current, soon, long) {
  const seconds = (current.time - (soon.time ?? current.time)) / 1000;
  const perSecond = (name) => (seconds > 0 && current[name] !== null ? increase(soon[name], current[name]) / seconds : null);
  const queries = increase(long.queries, current.queries);
  const hits = increase(long.hits, current.hits);
  const tokens = increase(long.everywhere, current.everywhere);
  const quantiles = (name) => {
    const buckets = between(long[name], current[name]);
    return QUANTILES.map((q) => quantile(buckets, q));
  };
  return {
    time: current.time,
    load: [current.running, current.waiting],
    tokens: [perSecond("generated"), perSecond("read")],
    kv: [current.used],
    hits: [queries ? Math.min(1, hits / queries) : null],
    ttft: quantiles("ttft"),
    itl: quantiles("itl"),
    joules: [current.energy !== null && tokens ? increase(long.energy, current.energy) / tokens : null],
  };
}

function factsOf(metrics, model) {
  const count = (name, labels) => sum(metrics, `vllm:${name}_total`, model, labels) ?? 0;
  const failed = count("request_success", { finished_reason: "error" });
  const left = count("request_success", { finished_reason: "abort" });
  const drafted = count("spec_decode_num_draft_tokens");
  const facts = [
    formatCount(count("request_success") - failed - left, "answer"),
    `${formatNumber(left)} abandoned`,
    `${formatNumber(failed)} failed`,
    `${formatCount(count("generation_tokens"), "token")} generated`,
    formatCount(count("num_preemptions"), "preemption"),
  ];
  if (drafted) facts.push(`${formatShare(count("spec_decode_num_accepted_tokens") / drafted)} of guessed tokens right`);
  return `Since the start: ${facts.join(" · ")}`;
}

// ---- cards

function card(spec) {
  const chart = new LineChart({ ...spec, label: `${spec.title} of late`, series: spec.names, spanMs: SPAN_MS });
  const values = spec.names.map(() => h("dd", { text: "–" }));
  const note = h("span", { class: "small", text: spec.unit });
  const element = h(
    "section",
    { class: `card ${spec.id}`, hidden: spec.needs !== undefined, "aria-labelledby": `card-${spec.id}` },
    h("div", { class: "row" }, h("h2", { id: `card-${spec.id}`, text: spec.title }), h("span", { class: "grow" }), note),
    h("dl", {}, ...spec.names.map((name, i) => h("div", { class: name }, h("dt", { text: name }), values[i]))),
    chart.element,
  );
  // What comes in bursts stays readable between them: then it is the whole time's, or the server's.
  const update = (now, whole, ever) => {
    const some = (list) => list.some((value) => value !== null);
    const [shown, when] = !spec.sticky || some(now) ? [now, spec.sticky ? "last 15 s" : spec.unit] : some(whole) ? [whole, "last 5 min"] : [ever, some(ever) ? "since the start" : "nothing yet"];
    shown.forEach((value, i) => (values[i].textContent = value === null ? "–" : spec.format(value)));
    note.textContent = when;
  };
  return { spec, chart, update, element };
}
