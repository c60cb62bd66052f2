// Plots of signals over time: one canvas per channel, with one cursor for all of them.

import { fill, format, h, unit } from "./dom.js";

const LEFT = 54, RIGHT = 8, TOP = 20, BOTTOM = 4;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Channels of the page: each has a title, a unit, and lines with a label, values and a style.
export function groupSignals(signals) {
  const state = signals.find((one) => one.feature === "observation.state");
  const action = signals.find((one) => one.feature === "action");
  const channels = [];
  const paired = state && action && state.names.every((name, i) => name === action.names[i]);
  for (const one of signals) {
    if (paired && one === action) continue;
    one.names.forEach((name, i) => {
      const lines = [{ label: "measured", values: one.values[i] }];
      if (paired && one === state) lines.push({ label: "commanded", values: action.values[i], dashed: true });
      channels.push({ group: paired && one === state ? "joints" : one.feature, title: name, unit: one.units[i], lines });
    });
  }
  return channels;
}

// All values of some channels as the heads and rows of a table, a row per frame.
export function tabulate(channels, fps) {
  const lines = channels.flatMap(({ title, unit, lines: all }) => all.map(({ label, values }) => ({ head: `${title} ${label}${unit ? ` (${unit})` : ""}`, values })));
  const frames = Math.max(0, ...lines.map((line) => line.values.length));
  return [["frame", "time (s)", ...lines.map((line) => line.head)], Array.from({ length: frames }, (_, frame) => [frame, frame / fps, ...lines.map((line) => line.values[frame] ?? "")])];
}

// A list of plots. `bands` are {first_frame, last_frame, tone}: those of the tone "bad" are lines below the plots, others
// areas. `seek(frame)` is called on a click or a drag.
export class Plots {
  constructor({ frames, fps, channels, bands, seek }) {
    Object.assign(this, { frames, fps, channels, bands, seek, cursor: 0 });
    this.element = h("div", { class: "plots" });
    this.extra = [];
    this.#build();
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.element);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.scheme.addEventListener("change", this.draw);
  }

  // Show further channels above the others.
  setExtra(channels) {
    this.extra = channels;
    this.#build();
    this.draw();
  }

  #build() {
    this.rows = [...this.extra, ...this.channels].map((channel) => this.#row(channel));
    fill(this.element, this.#grouped());
  }

  close() {
    this.watcher.disconnect();
    this.scheme.removeEventListener("change", this.draw);
  }

  #grouped() {
    const groups = new Map();
    for (const row of this.rows) groups.set(row.channel.group, [...(groups.get(row.channel.group) ?? []), row]);
    return [...groups].map(([title, rows]) => h("section", {}, h("h3", {}, title), h("div", { class: "grid" }, rows.map((row) => row.element))));
  }

  #row(channel) {
    const canvas = h("canvas", { role: "img", "aria-label": `${channel.title} over time` });
    const reading = h("span", { class: "reading" });
    const element = h("figure", { class: "plot" },
      h("figcaption", {}, h("b", {}, channel.title), channel.unit ? h("span", { class: "soft" }, unit(channel.unit)) : null, reading,
        h("a", { class: "save", href: "#", download: `${channel.title}.png`, onclick: (event) => { event.currentTarget.href = canvas.toDataURL("image/png"); } }, "image")), canvas);
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      return Math.max(0, Math.min(this.frames - 1, Math.round(share * (this.frames - 1))));
    };
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); this.seek(at(event)); });
    canvas.addEventListener("pointermove", (event) => { if (event.buttons) this.seek(at(event)); });
    const finite = channel.lines.flatMap((line) => line.values).filter(Number.isFinite);
    const [low, high] = finite.length ? [min(finite), max(finite)] : [0, 1];
    const margin = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
    return { channel, canvas, reading, element, low: low - margin, high: high + margin, still: null };
  }

  setBands(bands) {
    this.bands = bands;
    this.draw();
  }

  // Draw the lines of all plots, and then the cursor.
  draw = () => {
    for (const row of this.rows) row.still = this.#drawLines(row);
    this.moveCursor(this.cursor);
  };

  moveCursor(frame) {
    this.cursor = frame;
    for (const row of this.rows) {
      if (!row.still) continue;
      const context = row.canvas.getContext("2d");
      context.putImageData(row.still, 0, 0);
      const ratio = devicePixelRatio;
      const x = (LEFT + this.#share(frame) * (row.canvas.width / ratio - LEFT - RIGHT)) * ratio;
      context.fillStyle = colour("--ink");
      context.fillRect(Math.round(x), TOP * ratio, Math.max(1, Math.round(ratio)), row.canvas.height - (TOP + BOTTOM) * ratio);
      row.reading.textContent = row.channel.lines.map((line) => format(line.values[frame])).join("  ·  ");
    }
  }

  #share = (frame) => (this.frames > 1 ? frame / (this.frames - 1) : 0);

  #drawLines({ canvas, channel, low, high }) {
    const ratio = devicePixelRatio, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width || !height) return null;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.scale(ratio, ratio);
    const x = (frame) => LEFT + this.#share(frame) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - (value - low) / (high - low)) * (height - TOP - BOTTOM);
    for (const band of this.bands) {
      const from = x(band.first_frame), wide = Math.max(1.5, x(band.last_frame) - from);
      context.fillStyle = colour(band.tone === "bad" ? "--bad" : "--mark-band");
      if (band.tone === "bad") context.fillRect(from, height - BOTTOM, wide, BOTTOM - 1);
      else context.fillRect(from, TOP, wide, height - TOP - BOTTOM);
    }
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colour("--soft");
    context.strokeStyle = colour("--line");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of ticks(low, high, 3)) {
      context.beginPath();
      context.moveTo(LEFT, Math.round(y(value)) + 0.5);
      context.lineTo(width - RIGHT, Math.round(y(value)) + 0.5);
      context.stroke();
      context.fillText(format(value), LEFT - 6, y(value));
    }
    channel.lines.forEach((line, number) => {
      context.strokeStyle = colour(number ? "--second" : "--accent");
      context.lineWidth = line.dashed ? 1 : 1.5;
      context.beginPath();
      let down = false;
      const step = Math.max(1, Math.floor(this.frames / (4 * width)));
      for (let frame = 0; frame < line.values.length; frame += step) {
        const value = line.values[frame];
        if (!Number.isFinite(value)) { down = false; continue; }
        if (down) context.lineTo(x(frame), y(value)); else context.moveTo(x(frame), y(value));
        down = true;
      }
      context.stroke();
    });
    return context.getImageData(0, 0, canvas.width, canvas.height);
  }
}

const min = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const max = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

// Round numbers in a range: steps of 1, 2 or 5 times a power of ten.
export function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}
