// A map of many points (WebGL 2): drag to move it, wheel to zoom, click to choose the nearest point.

import { GlView } from "./webgl.js";

const VERTEX = `#version 300 es
uniform vec3 window;
uniform vec4 palette[4];
uniform float size, shown;
in vec3 point;
out vec4 colour;
void main() {
  int kind = int(point.z);
  colour = shown < 0.0 ? vec4(palette[kind].rgb, 1.0) : palette[kind];
  bool hidden = shown >= 0.0 && (int(shown) & (1 << kind)) == 0;
  gl_Position = hidden ? vec4(2.0, 2.0, 2.0, 1.0) : vec4((point.xy - window.xy) * window.z * 0.95, 0.0, 1.0);
  gl_PointSize = size;
}`;
const FRAGMENT = `#version 300 es
precision mediump float;
in vec4 colour;
out vec4 seen;
void main() {
  float from = length(gl_PointCoord - 0.5);
  if (from > 0.5) discard;
  float cover = colour.a * smoothstep(0.5, 0.35, from);
  seen = vec4(colour.rgb * cover, cover);
}`;

export class Scatter extends GlView {
  // Points are x, y and the number of a kind. `colours` has a CSS colour and an opacity for each kind.
  constructor({ points, colours, onpick }) {
    super("scatter", `Map of ${points.length / 3} clips; drag to move it, wheel to zoom, click a point`);
    Object.assign(this, { points, colours, onpick, count: points.length / 3, marked: [], kinds: 15, window: { x: 0, y: 0, zoom: 1 } });
    this.#build();
    this.#listen();
    this.begin();
  }

  // Show only the kinds whose bits are set.
  setKinds(kinds) {
    this.kinds = kinds;
    this.draw();
  }

  // Draw some points larger, above the others.
  mark(rows) {
    this.marked = rows;
    const { gl } = this;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.markBuffer);
    gl.bufferData(gl.ARRAY_BUFFER, Float32Array.from(rows.flatMap((row) => [...this.points.subarray(3 * row, 3 * row + 3)])), gl.DYNAMIC_DRAW);
    this.draw();
  }

  #build() {
    const { gl } = this;
    this.useProgram(VERTEX, FRAGMENT, ["window", "palette", "size", "shown"]);
    [this.buffer, this.markBuffer] = [gl.createBuffer(), gl.createBuffer()];
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffer);
    gl.bufferData(gl.ARRAY_BUFFER, this.points, gl.STATIC_DRAW);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  }

  draw() {
    const { gl, canvas } = this, ratio = devicePixelRatio;
    if (!canvas.clientWidth) return;
    canvas.width = Math.round(canvas.clientWidth * ratio);
    canvas.height = Math.round(canvas.clientHeight * ratio);
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    const { x, y, zoom } = this.window;
    gl.uniform3f(this.at.window, x, y, zoom);
    gl.uniform4fv(this.at.palette, this.colours.flatMap(([name, opacity]) => [...parseColour(name), opacity]));
    const draw = (buffer, count, size, shown) => {
      if (!count) return;
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      const place = gl.getAttribLocation(this.program, "point");
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, 3, gl.FLOAT, false, 0, 0);
      gl.uniform1f(this.at.size, size * ratio);
      gl.uniform1f(this.at.shown, shown);
      gl.drawArrays(gl.POINTS, 0, count);
    };
    draw(this.buffer, this.count, (this.count > 20000 ? 3 : 5) * Math.min(2, Math.sqrt(zoom)), this.kinds);
    draw(this.markBuffer, this.marked.length, 11, -1);
  }

  #place(event) {
    const box = this.canvas.getBoundingClientRect(), { x, y, zoom } = this.window;
    return [((event.clientX - box.left) / box.width * 2 - 1) / (0.95 * zoom) + x, (1 - (event.clientY - box.top) / box.height * 2) / (0.95 * zoom) + y];
  }

  #listen() {
    const { canvas } = this;
    let from = null;
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); from = { at: [event.clientX, event.clientY], place: this.#place(event), moved: false }; });
    canvas.addEventListener("pointermove", (event) => {
      if (!from || !event.buttons || Math.hypot(event.clientX - from.at[0], event.clientY - from.at[1]) < 4) return;
      from.moved = true;
      const [x, y] = this.#place(event);
      this.window.x += from.place[0] - x;
      this.window.y += from.place[1] - y;
      this.draw();
    });
    canvas.addEventListener("pointerup", (event) => { if (from && !from.moved) this.#pick(this.#place(event)); from = null; });
    canvas.addEventListener("wheel", (event) => { event.preventDefault(); this.#zoom(Math.exp(-event.deltaY / 400), this.#place(event)); }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const step = 0.15 / this.window.zoom;
      const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
      if (event.key in moves) { this.window.x += moves[event.key][0]; this.window.y += moves[event.key][1]; this.draw(); }
      else if (event.key === "+" || event.key === "-") this.#zoom(event.key === "+" ? 1.3 : 1 / 1.3, [this.window.x, this.window.y]);
      else if (event.key === "Enter") this.#pick([this.window.x, this.window.y]);
      else return;
      event.preventDefault();
    });
  }

  #zoom(factor, [x, y]) {
    const zoom = Math.max(0.8, Math.min(400, this.window.zoom * factor)), share = this.window.zoom / zoom;
    Object.assign(this.window, { x: x + (this.window.x - x) * share, y: y + (this.window.y - y) * share, zoom });
    this.draw();
  }

  #pick([x, y]) {
    let best = -1, nearest = Infinity;
    for (let row = 0; row < this.count; row++) {
      if (!(this.kinds & (1 << this.points[3 * row + 2]))) continue;
      const distance = (this.points[3 * row] - x) ** 2 + (this.points[3 * row + 1] - y) ** 2;
      if (distance < nearest) [best, nearest] = [row, distance];
    }
    if (best >= 0) this.onpick(best);
  }
}

// A colour of the page's style as red, green and blue from 0 to 1.
function parseColour(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const digits = text.length === 4 ? [...text.slice(1)].map((one) => one + one).join("") : text.slice(1);
  return [0, 2, 4].map((at) => parseInt(digits.slice(at, at + 2), 16) / 255);
}
