// Lines over the last minutes, as SVG that stretches with its card; words around it are HTML.

import { h, svg } from "./dom.js";

const WIDTH = 1000;
const HEIGHT = 100;
const MINUTE_MS = 60_000;

export class LineChart {
  /** `series`: names of classes for colours, in order. `format(value)`: for labels. `top`: the scale's
   * end, if it is fixed; `least`: the smallest that it may be otherwise. `spanMs`: time that is shown at
   * most; as many whole minutes as there is something to show of. */
  constructor({ label, series, format, top = null, least = 1, spanMs }) {
    Object.assign(this, { label, series, format, top, least, mostMs: spanMs, spanMs: MINUTE_MS });
    this.area = svg("path", { class: `area ${series[0]}` });
    this.lines = series.map((name) => svg("path", { class: `line ${name}` }));
    this.cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
    const grid = [0, 0.5, 1].map((y) => svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: y * HEIGHT, y2: y * HEIGHT }));
    this.picture = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      ...grid, this.area, ...this.lines, this.cursor,
    );
    this.most = h("span", { class: "most" });
    this.caption = h("span", { class: "caption" });
    this.begin = h("span");
    this.element = h(
      "div",
      { class: "chart" },
      this.most,
      this.picture,
      h("div", { class: "times", "aria-hidden": "true" }, this.begin, this.caption, h("span", { text: "now" })),
    );
    this.picture.addEventListener("pointermove", (event) => this.point(event));
    this.picture.addEventListener("pointerleave", () => {
      this.pointed = null;
      this.showPointed();
    });
  }

  /** `points`: [{time, values: [number or null for each series]}], oldest first. */
  update(points, now) {
    this.points = points;
    this.now = now;
    const minutes = Math.ceil((now - (points[0]?.time ?? now)) / MINUTE_MS);
    this.spanMs = Math.min(this.mostMs, Math.max(1, minutes) * MINUTE_MS);
    this.begin.textContent = `${this.spanMs / MINUTE_MS} min ago`;
    const largest = Math.max(0, ...points.flatMap(({ values }) => values.filter((value) => value !== null)));
    this.scale = this.top ?? niceAbove(Math.max(largest, this.least));
    this.most.textContent = this.format(this.scale);
    this.lines.forEach((line, i) => line.setAttribute("d", this.path(i, false)));
    this.area.setAttribute("d", this.path(0, true));
    const last = points[points.length - 1]?.values ?? [];
    const said = last.map((value, i) => (value === null ? "" : `${this.series[i]} ${this.format(value)}`)).filter(Boolean);
    this.picture.setAttribute("aria-label", `${this.label}: ${said.join(", ") || "nothing yet"}; most ${this.format(largest)}`);
    this.showPointed();
  }

  x(time) {
    return WIDTH * (1 - (this.now - time) / this.spanMs);
  }

  y(value) {
    return HEIGHT * (1 - Math.min(value, this.scale) / this.scale);
  }

  /** One series, broken where there is nothing to show. */
  path(index, filled) {
    const parts = [];
    let run = [];
    const end = () => {
      if (run.length) {
        // A value alone is a dot: a line of no length with round ends.
        const line = run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(2)}`);
        if (line.length === 1) line.push(line[0]);
        const [from, to] = [run[0][0], run[run.length - 1][0]];
        parts.push(filled ? `M${from.toFixed(1)} ${HEIGHT}L${line.join("L")}L${to.toFixed(1)} ${HEIGHT}Z` : `M${line.join("L")}`);
      }
      run = [];
    };
    for (const { time, values } of this.points) {
      const value = values[index];
      if (value === null || value === undefined) end();
      else run.push([this.x(time), this.y(value)]);
    }
    end();
    return parts.join("");
  }

  point(event) {
    const box = this.picture.getBoundingClientRect();
    this.pointed = (event.clientX - box.left) / box.width;
    this.showPointed();
  }

  /** Values at the place that is pointed at. */
  showPointed() {
    const { pointed } = this;
    if (pointed === null || pointed === undefined || !this.points?.length) {
      this.cursor.setAttribute("visibility", "hidden");
      this.caption.textContent = "";
      return;
    }
    const time = this.now - (1 - pointed) * this.spanMs;
    const near = this.points.reduce((a, b) => (Math.abs(b.time - time) < Math.abs(a.time - time) ? b : a));
    for (const side of ["x1", "x2"]) this.cursor.setAttribute(side, this.x(near.time));
    this.cursor.setAttribute("visibility", "visible");
    const values = near.values.map((value) => (value === null ? "–" : this.format(value)));
    this.caption.textContent = `${values.join(" / ")}, ${Math.round((this.now - near.time) / 1000)} s ago`;
  }
}

/** The next of 1, 2, 5 × 10ⁿ at or above a value. */
export function niceAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 5, 10].find((n) => n * power >= value * 0.9999);
  return step * power;
}
