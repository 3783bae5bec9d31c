"use strict";
// Small SVG drawings: a panel with axes, lines, points, and a tip for what is nearest to the pointer.
const SVG_NAMES = "http://www.w3.org/2000/svg";
const DASHES = ["", "6 2", "2 2", "8 2 2 2", "4 2 1 2 1 2"];
const COLOURS = 8;
const TIP_DISTANCE = 26;

const make = (name, className, text = "") => {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = text;
  return made;
};
const draw = (name, attributes, parent) => {
  const made = document.createElementNS(SVG_NAMES, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
};
const short = (value) => Number(value.toPrecision(3)).toString();
// Smallest and largest of positive values; Math.min(...values) would take each as an argument.
const extent = (values) =>
  values.length ? values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, 0]) : [1, 2];
const colour = (index) => `var(--c${index % COLOURS})`;

const LOG_STEPS = [1, 2, 5];
const logTicks = (low, high) => {
  const found = [];
  const steps = high / low > 300 ? [1] : high / low > 4 ? LOG_STEPS : [1, 1.2, 1.5, 2, 3, 4, 5, 7];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const step of steps) {
      const value = step * 10 ** power;
      if (value >= low && value <= high) found.push(value);
    }
  }
  return found;
};
const linearTicks = (low, high) => {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) || 10);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(value);
  return found;
};

// An axis from `low` to `high`: `label` with its unit, `log` for a log scale.
const axis = (label, low, high, { log = false, ticks = null } = {}) => {
  if (!(high > low)) [low, high] = log ? [low / 2, low * 2] : [low, low + 1];
  const bend = log ? Math.log : (value) => value;
  const [first, last] = [bend(low), bend(high)];
  return {
    label,
    ticks: ticks || (log ? logTicks(low, high) : linearTicks(low, high)),
    share: (value) => Math.min(1, Math.max(0, (bend(value) - first) / (last - first))),
  };
};

const tip = make("div", "tip");
tip.hidden = true;
document.body.append(tip);
const showTip = (event, text) => {
  tip.textContent = text;
  tip.hidden = false;
  const right = Math.max(0, Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 6));
  tip.style.left = `${right}px`;
  tip.style.top = `${Math.max(0, event.clientY - tip.offsetHeight - 10)}px`;
};

class Panel {
  constructor(place, { title = "", note = "", x, y, width = 300, height = 190 }) {
    [this.x, this.y, this.hits] = [x, y, []];
    const figure = make("figure", "panel");
    if (title) {
      const caption = make("figcaption", "", title);
      caption.append(make("span", "soft", note));
      figure.append(caption);
    }
    [this.left, this.right, this.top, this.bottom] = [34, width - 8, 16, height - 30];
    const label = `${title} ${note}: ${y.label} against ${x.label}`;
    this.svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, figure);
    this.#axes(width, height);
    this.mark = draw("circle", { cx: this.left, cy: this.top, r: 5, class: "mark", visibility: "hidden" }, this.svg);
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerdown", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => this.#leave());
    place.append(figure);
  }

  at(x, y) {
    return [
      this.left + this.x.share(x) * (this.right - this.left),
      this.bottom - this.y.share(y) * (this.bottom - this.top),
    ];
  }

  // A line through [x, y, text] points; `steps` as of a distribution. Points with a text have a tip.
  line(points, { stroke, dash = "", steps = false, width = 1.8 }) {
    const path = points.map(([x, y], index) => {
      const [h, v] = this.at(x, y).map((number) => number.toFixed(1));
      return index && steps ? `H${h}V${v}` : `${index ? "L" : "M"}${h} ${v}`;
    });
    const look = { d: path.join(""), fill: "none", stroke, "stroke-width": width, "stroke-dasharray": dash };
    draw("path", { ...look, "stroke-linejoin": "round" }, this.svg);
    this.#remember(points);
  }

  // All points as one path of circles: a page may have tens of thousands.
  dots(points, { stroke, size = 4, opacity = 0.75 }) {
    const half = size / 2;
    const circle = `m${-half} 0a${half} ${half} 0 1 0 ${size} 0a${half} ${half} 0 1 0 ${-size} 0z`;
    const path = points.map(([x, y]) => `M${this.at(x, y).map((number) => number.toFixed(1)).join(" ")}${circle}`);
    draw("path", { d: path.join(""), fill: stroke, opacity }, this.svg);
    this.#remember(points);
  }

  // A mark on a curve: a diamond.
  cross(x, y, { stroke, tip = "" }) {
    const [h, v] = this.at(x, y);
    draw("path", { d: `M${h - 5} ${v}L${h} ${v - 5}L${h + 5} ${v}L${h} ${v + 5}Z`, class: "cross", fill: stroke }, this.svg);
    this.#remember([[x, y, tip]]);
  }

  rule(value, { vertical = true, className = "rule" } = {}) {
    const [h, v] = vertical ? this.at(value, 0) : [0, this.at(0, value)[1]];
    const ends = vertical
      ? { x1: h, x2: h, y1: this.top, y2: this.bottom }
      : { x1: this.left, x2: this.right, y1: v, y2: v };
    draw("line", { ...ends, class: className }, this.svg);
  }

  say(text) {
    const look = { x: (this.left + this.right) / 2, y: this.top + 12, class: "empty" };
    draw("text", look, this.svg).textContent = text;
  }

  #axes(width, height) {
    for (const value of this.x.ticks) {
      const h = this.left + this.x.share(value) * (this.right - this.left);
      draw("line", { x1: h, x2: h, y1: this.top, y2: this.bottom, class: "grid" }, this.svg);
      draw("text", { x: h, y: this.bottom + 12, class: "tick" }, this.svg).textContent = short(value);
    }
    for (const value of this.y.ticks) {
      const v = this.bottom - this.y.share(value) * (this.bottom - this.top);
      draw("line", { x1: this.left, x2: this.right, y1: v, y2: v, class: "grid" }, this.svg);
      draw("text", { x: this.left - 4, y: v + 3.5, class: "tick end" }, this.svg).textContent = short(value);
    }
    draw("text", { x: (this.left + this.right) / 2, y: height - 4, class: "label" }, this.svg).textContent = this.x.label;
    draw("text", { x: 2, y: 9, class: "label start" }, this.svg).textContent = this.y.label;
  }

  #remember(points) {
    for (const [x, y, text] of points) if (text) this.hits.push([...this.at(x, y), text]);
  }

  #point(event) {
    const box = this.svg.getBoundingClientRect();
    const zoom = this.svg.viewBox.baseVal.width / box.width;
    const [h, v] = [(event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom];
    let [best, distance] = [null, TIP_DISTANCE];
    for (const hit of this.hits) {
      const far = Math.hypot(hit[0] - h, hit[1] - v);
      if (far < distance) [best, distance] = [hit, far];
    }
    if (!best) return this.#leave();
    this.mark.setAttribute("cx", best[0]);
    this.mark.setAttribute("cy", best[1]);
    this.mark.setAttribute("visibility", "visible");
    return showTip(event, best[2]);
  }

  #leave() {
    tip.hidden = true;
    this.mark.setAttribute("visibility", "hidden");
  }
}

// A legend of names with the colours and dashes of their lines.
const legend = (place, names) => {
  place.replaceChildren();
  names.forEach(([name, index]) => {
    const entry = make("span", "entry");
    const line = draw("svg", { width: 26, height: 8, "aria-hidden": "true" }, entry);
    const look = { x1: 0, x2: 26, y1: 4, y2: 4, stroke: colour(index), "stroke-width": 2.5 };
    draw("line", { ...look, "stroke-dasharray": DASHES[index % DASHES.length] }, line);
    entry.append(name);
    place.append(entry);
  });
};
