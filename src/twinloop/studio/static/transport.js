// Play all cameras of one or two episodes together. The first video is the clock; the others follow it.

import { h, seconds } from "./dom.js";

const SPEEDS = [0.25, 0.5, 1, 2, 4];

export class Transport {
  // Each camera has a name, a label, the episode's id, frames and fps, and the time at which its video begins in the file.
  constructor({ frames, fps, cameras, annotated = false }) {
    Object.assign(this, { frames, fps, drawn: false, frame: 0, playing: false, speed: 1, onframe: () => {} });
    this.videos = cameras.map((camera) => this.#video(camera));
    this.slider = h("input", { type: "range", min: 0, max: Math.max(0, frames - 1), value: 0, step: 1, "aria-label": "Frame", oninput: () => this.seek(Number(this.slider.value)) });
    this.button = h("button", { class: "play", "aria-label": "Play", onclick: () => this.toggle() }, "▶");
    this.clock = h("span", { class: "clock" });
    const speed = h("select", { "aria-label": "Speed", onchange: (event) => this.#setSpeed(Number(event.target.value)) },
      SPEEDS.map((value) => h("option", { value: String(value), selected: value === 1 }, `${value}×`)));
    this.element = h("div", { class: "transport" },
      (this.views = h("div", { class: "cameras" }, this.videos.map((one) => one.element))),
      h("div", { class: "row" }, this.button, this.slider, this.clock, speed,
        annotated ? h("label", {}, h("input", { type: "checkbox", onchange: (event) => this.#setDrawn(event.target.checked) }), " annotations") : null));
    this.#show();
  }

  #video({ id, name, label, start_s, frames, fps }) {
    const base = `/media/${id}/${encodeURIComponent(name)}`;
    const video = h("video", { muted: true, playsInline: true, preload: "auto", src: `${base}.mp4`, "aria-label": `Camera ${label}` });
    const still = h("img", { alt: `Camera ${label}`, hidden: true });
    const one = { name, start: start_s, frames, fps, video, still, broken: false, base,
      element: h("figure", {}, video, still, h("figcaption", {}, h("span", {}, label), h("a", { download: "", onclick: (event) => { event.currentTarget.href = `${base}/${this.#own(one)}.jpg?width=1280`; }, href: `${base}/0.jpg?width=1280` }, "image"))) };
    video.addEventListener("loadedmetadata", () => this.#place(one));
    // A browser without the codec gets single images instead.
    video.addEventListener("error", () => { one.broken = true; video.hidden = true; still.hidden = false; this.#place(one); });
    return one;
  }

  // The frame of a camera at the moment that is shown: another episode can have another rate, or be shorter.
  #own = (one, frame = this.frame) => Math.min(one.frames - 1, Math.round((frame * one.fps) / this.fps));

  // Times are the middle of a frame: at its beginning, rounding would show the frame before.
  #place(one) {
    if (one.broken || this.drawn) one.still.src = this.#address(one, this.frame);
    if (!one.broken && one.video.readyState) one.video.currentTime = one.start + (this.#own(one) + 0.5) / one.fps;
  }

  // Show single images with their annotations instead of the videos.
  #setDrawn(drawn) {
    this.drawn = drawn;
    for (const one of this.videos) {
      [one.video.hidden, one.still.hidden] = [drawn || one.broken, !(drawn || one.broken)];
      this.#place(one);
    }
  }

  #address = (one, frame) => `${one.base}/${this.#own(one, frame)}.jpg${this.drawn ? "?annotated=yes" : ""}`;

  #setSpeed(speed) {
    this.speed = speed;
    for (const one of this.videos) one.video.playbackRate = speed;
  }

  seek(frame) {
    this.frame = Math.max(0, Math.min(this.frames - 1, frame));
    if (this.playing) this.started = { frame: this.frame, at: performance.now() };
    for (const one of this.videos) this.#place(one);
    this.#show();
  }

  toggle() {
    this.playing = !this.playing;
    this.button.textContent = this.playing ? "❚❚" : "▶";
    this.button.setAttribute("aria-label", this.playing ? "Pause" : "Play");
    if (!this.playing) {
      for (const one of this.videos) one.video.pause();
      return this.seek(this.frame);
    }
    if (this.frame >= this.frames - 1) this.frame = 0;
    this.seek(this.frame);
    this.#setSpeed(this.speed);
    for (const one of this.videos) if (!one.broken) one.video.play().catch(() => {});
    requestAnimationFrame(this.#step);
  }

  #step = (now) => {
    if (!this.playing) return;
    const lead = this.videos.find((one) => !one.broken && !one.video.paused && one.video.readyState > 2);
    const frame = lead ? Math.floor((lead.video.currentTime - lead.start) * this.fps)
      : Math.floor(this.started.frame + ((now - this.started.at) / 1000) * this.fps * this.speed);
    for (const one of this.videos) {
      if ((one.broken || this.drawn) && frame !== this.frame) one.still.src = this.#address(one, frame);
      if (!one.broken && lead && one !== lead) this.#follow(one, lead.video.currentTime - lead.start);
    }
    if (frame >= this.frames - 1) {
      this.frame = this.frames - 1;
      return this.toggle();
    }
    this.frame = Math.max(0, frame);
    this.#show();
    requestAnimationFrame(this.#step);
  };

  #follow(one, time) {
    const last = (one.frames - 0.5) / one.fps;
    if (time >= last && !one.video.paused) one.video.pause();
    const wanted = one.start + Math.min(time, last);
    if (Math.abs(one.video.currentTime - wanted) > 1.5 / one.fps) one.video.currentTime = wanted;
  }

  #show() {
    this.slider.value = this.frame;
    this.clock.textContent = `${this.frame} / ${this.frames - 1} · ${seconds(this.frame / this.fps)}`;
    this.onframe(this.frame);
  }

  close() {
    this.playing = false;
    for (const one of this.videos) {
      one.video.pause();
      one.video.removeAttribute("src");
      one.video.load();
    }
  }
}
