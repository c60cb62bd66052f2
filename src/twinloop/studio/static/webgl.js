// A canvas with WebGL 2 that is drawn again when its size changes.

import { h } from "./dom.js";

export class GlView {
  constructor(name, label) {
    this.canvas = h("canvas", { class: name, tabIndex: 0, role: "img", "aria-label": label });
    this.gl = this.canvas.getContext("webgl2", { antialias: true, preserveDrawingBuffer: true });
    if (!this.gl) throw new Error("This browser has no WebGL 2.");
    this.watcher = new ResizeObserver(() => this.draw());
  }

  // Call this when everything that `draw` needs is made.
  begin() {
    this.watcher.observe(this.canvas);
  }

  close() {
    this.watcher.disconnect();
    this.gl.getExtension("WEBGL_lose_context")?.loseContext();
  }

  // Link a program, use it, and return the locations of its uniforms by name.
  useProgram(vertex, fragment, uniforms) {
    const { gl } = this, program = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program) || "The shader failed.");
    gl.useProgram(program);
    this.program = program;
    this.at = Object.fromEntries(uniforms.map((name) => [name, gl.getUniformLocation(program, name)]));
  }
}
