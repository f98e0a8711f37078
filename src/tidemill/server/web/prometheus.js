// The text format of Prometheus, and what can be learnt from two looks at it.

/** {name: [{labels: {…}, value}]} */
export function parse(text) {
  const found = {};
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#") continue;
    const head = /^[\w:]+/.exec(line);
    if (!head) continue;
    let rest = line.slice(head[0].length);
    const labels = {};
    if (rest[0] === "{") {
      let at = 1;
      const pair = /\s*(\w+)="((?:[^"\\]|\\.)*)"\s*,?/y;
      for (let match; ; at = pair.lastIndex) {
        pair.lastIndex = at;
        match = pair.exec(rest);
        if (!match) break;
        labels[match[1]] = match[2].replace(/\\(.)/g, (_, char) => (char === "n" ? "\n" : char));
      }
      rest = rest.slice(rest.indexOf("}", at) + 1);
    }
    const value = numberOf(rest.trim().split(/\s+/)[0]);
    if (!Number.isNaN(value) || /nan/i.test(rest)) (found[head[0]] ??= []).push({ labels, value });
  }
  return found;
}

function numberOf(text) {
  if (text === "+Inf") return Infinity;
  return text === "-Inf" ? -Infinity : Number(text || NaN);
}

/** The sum of a metric's samples, of one model or of all (""); null if there is none. */
export function sum(metrics, name, model = "", labels = {}) {
  const samples = choose(metrics, name, model, labels);
  return samples.length ? samples.reduce((total, { value }) => total + value, 0) : null;
}

/** The largest of them. */
export function largest(metrics, name, model = "") {
  const samples = choose(metrics, name, model, {});
  return samples.length ? Math.max(...samples.map(({ value }) => value)) : null;
}

function choose(metrics, name, model, labels) {
  return (metrics[name] ?? []).filter(
    (sample) =>
      (!model || sample.labels.model_name === model) &&
      Object.entries(labels).every(([key, value]) => sample.labels[key] === value),
  );
}

/** A histogram as [[upper bound, how many up to it], …] in order; empty if there is none. */
export function histogram(metrics, name, model = "") {
  const counts = new Map();
  for (const { labels, value } of choose(metrics, `${name}_bucket`, model, {})) {
    const bound = numberOf(labels.le);
    counts.set(bound, (counts.get(bound) ?? 0) + value);
  }
  return [...counts].sort(([a], [b]) => a - b);
}

/** What came between two looks at a counter: from nothing, if it has begun anew. */
export function increase(before, after) {
  if (before === null || after === null) return after === null ? null : after;
  return after >= before ? after - before : after;
}

/** The histogram of what came between two looks at it. */
export function between(before, after) {
  const total = (buckets) => (buckets.length ? buckets[buckets.length - 1][1] : 0);
  if (total(after) < total(before)) return after;
  const earlier = new Map(before);
  return after.map(([bound, count]) => [bound, count - (earlier.get(bound) ?? 0)]);
}

/** The value below which the share `q` lies, linear within its bucket; null without observations.
 * Above the last finite bound it is that bound, as Prometheus has it. */
export function quantile(buckets, q) {
  const total = buckets.length ? buckets[buckets.length - 1][1] : 0;
  if (!total) return null;
  const rank = q * total;
  let low = 0;
  let below = 0;
  for (const [bound, count] of buckets) {
    if (count >= rank && count > below) {
      return bound === Infinity ? low : low + ((bound - low) * (rank - below)) / (count - below);
    }
    if (bound !== Infinity) low = bound;
    below = count;
  }
  return low;
}
