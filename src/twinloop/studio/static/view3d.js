// The shapes of an episode's twin in three dimensions (WebGL 2), moved by the poses of each frame.

import { get, getFloats } from "./api.js";
import { h } from "./dom.js";
import { GlView } from "./webgl.js";

const VERTEX = `#version 300 es
uniform mat4 view;
uniform vec4 turn, place;
in vec3 corner;
out vec3 world;
void main() {
  vec3 v = corner;
  world = v + 2.0 * cross(turn.yzw, cross(turn.yzw, v) + turn.x * v) + place.xyz;
  gl_Position = view * vec4(world, 1.0);
}`;
const FRAGMENT = `#version 300 es
precision highp float;
uniform vec4 colour;
uniform vec3 eye;
uniform float grid;
in vec3 world;
out vec4 seen;
void main() {
  vec3 normal = normalize(cross(dFdx(world), dFdy(world)));
  if (dot(normal, eye - world) < 0.0) normal = -normal;
  float light = 0.55 + 0.2 * normal.z + 0.35 * max(0.0, dot(normal, normalize(vec3(0.4, -0.5, 0.9))));
  vec3 base = colour.rgb;
  if (grid > 0.0) {
    vec2 cell = abs(fract(world.xy / grid + 0.5) - 0.5) / fwidth(world.xy / grid);
    base = mix(base * 0.82, base, clamp(min(cell.x, cell.y) - 0.2, 0.0, 1.0));
  }
  seen = vec4(base * light, colour.a);
}`;

const decode = (text, Kind) => new Kind(Uint8Array.from(atob(text), (one) => one.charCodeAt(0)).buffer);

export class View3d extends GlView {
  // `scene` is the server's description of the shapes. Poses are Float32Arrays of frames × shapes × 7.
  constructor(scene) {
    super("view3d", "Three-dimensional view; drag to turn, wheel to zoom, Shift and drag to move");
    Object.assign(this, { scene, layers: [], frame: 0 });
    this.camera = { at: [...scene.center], distance: 1.7 * scene.extent, azimuth: -2.2, elevation: 0.45 };
    this.#build();
    this.#listen();
    this.begin();
  }

  // Show poses, as the episode itself or as a pale copy beside it.
  setLayer(number, poses, pale = false) {
    this.layers[number] = poses ? { poses, pale } : null;
    this.draw();
  }

  show(frame) {
    this.frame = frame;
    this.draw();
  }

  #build() {
    const { gl } = this;
    this.useProgram(VERTEX, FRAGMENT, ["view", "turn", "place", "colour", "eye", "grid"]);
    const corner = gl.getAttribLocation(this.program, "corner");
    this.shapes = this.scene.geoms.map((geom) => {
      const [x, y] = geom.plane ?? [];
      const corners = geom.plane ? new Float32Array([-x, -y, 0, x, -y, 0, x, y, 0, -x, y, 0]) : decode(geom.corners, Float32Array);
      const triangles = geom.plane ? new Uint32Array([0, 1, 2, 0, 2, 3]) : decode(geom.triangles, Uint32Array);
      const vertices = gl.createVertexArray();
      gl.bindVertexArray(vertices);
      gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
      gl.bufferData(gl.ARRAY_BUFFER, corners, gl.STATIC_DRAW);
      gl.enableVertexAttribArray(corner);
      gl.vertexAttribPointer(corner, 3, gl.FLOAT, false, 0, 0);
      gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, gl.createBuffer());
      gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, triangles, gl.STATIC_DRAW);
      return { vertices, count: triangles.length, colour: geom.rgba, grid: geom.plane ? 0.1 : 0 };
    });
    gl.enable(gl.DEPTH_TEST);
    gl.blendFunc(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA);
  }

  #listen() {
    let before = null;
    const { canvas, camera } = this;
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); before = event; });
    canvas.addEventListener("pointerup", () => (before = null));
    canvas.addEventListener("pointermove", (event) => {
      if (!before) return;
      const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
      before = event;
      if (event.shiftKey) {
        const step = camera.distance / canvas.clientHeight, [sin, cos] = [Math.sin(camera.azimuth), Math.cos(camera.azimuth)];
        camera.at[0] += step * dx * sin;
        camera.at[1] -= step * dx * cos;
        camera.at[2] += step * dy;
      } else {
        camera.azimuth -= dx * 0.008;
        camera.elevation = Math.max(-1.5, Math.min(1.5, camera.elevation + dy * 0.008));
      }
      this.draw();
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      camera.distance *= Math.exp(event.deltaY * 0.001);
      this.draw();
    }, { passive: false });
  }

  draw() {
    const { gl, canvas, camera } = this, ratio = devicePixelRatio;
    const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
    if (!width || !height) return;
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    gl.viewport(0, 0, width, height);
    gl.clearColor(0.86, 0.88, 0.9, 1);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    const away = [Math.cos(camera.elevation) * Math.cos(camera.azimuth), Math.cos(camera.elevation) * Math.sin(camera.azimuth), Math.sin(camera.elevation)];
    const eye = camera.at.map((value, axis) => value + camera.distance * away[axis]);
    gl.uniformMatrix4fv(this.at.view, false, lookAt(eye, camera.at, width / height, 0.02 * camera.distance, 40 * camera.distance));
    gl.uniform3fv(this.at.eye, eye);
    for (const layer of this.layers) if (layer && !layer.pale) this.#drawLayer(layer);
    gl.enable(gl.BLEND);
    for (const layer of this.layers) if (layer?.pale) this.#drawLayer(layer);
    gl.disable(gl.BLEND);
  }

  #drawLayer({ poses, pale }) {
    const { gl } = this, count = this.shapes.length;
    const frame = Math.min(this.frame, poses.length / (7 * count) - 1);
    this.shapes.forEach((shape, number) => {
      if (pale && shape.grid) return;
      const at = 7 * (frame * count + number);
      gl.uniform4f(this.at.place, poses[at], poses[at + 1], poses[at + 2], 0);
      gl.uniform4f(this.at.turn, poses[at + 3], poses[at + 4], poses[at + 5], poses[at + 6]);
      gl.uniform4fv(this.at.colour, pale ? [0.18, 0.44, 0.77, 0.4] : shape.colour);
      gl.uniform1f(this.at.grid, shape.grid);
      gl.bindVertexArray(shape.vertices);
      gl.drawElements(gl.TRIANGLES, shape.count, gl.UNSIGNED_INT, 0);
    });
  }
}

// Draw some frames of an episode, and return each as the address of an image. Browsers allow few views at the same time,
// so one episode is drawn after the other.
let drawn = Promise.resolve();
export function drawFrames(id, frames, signal) {
  const draw = async () => {
    const [scene, poses] = await Promise.all([get(`/api/episodes/${id}/scene`, {}, signal), getFloats(`/api/episodes/${id}/poses`, signal)]);
    const view = new View3d(scene), hidden = h("div", { class: "off-screen" }, view.canvas);
    document.body.append(hidden);
    view.setLayer(0, poses);
    const images = frames.map((frame) => (view.show(frame), view.canvas.toDataURL("image/jpeg")));
    view.close();
    hidden.remove();
    return images;
  };
  const made = drawn.then(draw);
  drawn = made.catch(() => null);
  return made;
}

// The matrix from the world to the screen, by columns; z is up, the vertical field of view is 40°.
function lookAt(eye, at, aspect, near, far) {
  const minus = (a, b) => a.map((value, axis) => value - b[axis]);
  const cross = ([a, b, c], [d, e, f]) => [b * f - c * e, c * d - a * f, a * e - b * d];
  const unit = (v) => v.map((value) => value / Math.hypot(...v));
  const dot = (a, b) => a.reduce((sum, value, axis) => sum + value * b[axis], 0);
  const back = unit(minus(eye, at)), right = unit(cross([0, 0, 1], back)), up = cross(back, right);
  const focal = 1 / Math.tan((20 * Math.PI) / 180), depth = (near + far) / (near - far), shift = (2 * near * far) / (near - far);
  const rows = [[...right, -dot(right, eye)], [...up, -dot(up, eye)], [...back, -dot(back, eye)]];
  return [0, 1, 2, 3].flatMap((column) => [
    (focal / aspect) * rows[0][column], focal * rows[1][column], depth * rows[2][column] + (column === 3 ? shift : 0), -rows[2][column]]);
}
