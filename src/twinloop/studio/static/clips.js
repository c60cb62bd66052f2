// Short parts of episodes as small films, with a link to the moment.

import { h } from "./dom.js";
import { drawFrames } from "./view3d.js";

const SHARES = [0.02, 0.26, 0.5, 0.74, 0.98]; // moments of a film strip

// Moments of a whole episode side by side: images of its first camera, or its twin drawn in three dimensions.
export function filmStrip({ episode_id, cameras: [camera], frames }, signal) {
  const numbers = SHARES.map((share) => Math.round(share * (frames - 1)));
  const images = numbers.map((frame) => h("img", { src: camera && `/media/${episode_id}/${encodeURIComponent(camera)}/${frame}.jpg?width=160`, alt: "", width: 160, height: 120, loading: "lazy" }));
  const made = h("span", { class: "film" }, images);
  if (!camera) {
    const fail = (error) => signal.aborted || made.replaceChildren(error.message);
    drawFrames(episode_id, numbers, signal).then((pictures) => pictures.forEach((picture, at) => (images[at].src = picture)), fail);
  }
  return made;
}

// The middle image of the first camera; while the pointer rests on it, 16 images of these frames in turn.
export function film({ episode_id, cameras: [camera] }, first, last) {
  if (!camera) return h("span", { class: "preview none" }, "no images");
  const address = (share) => `/media/${episode_id}/${encodeURIComponent(camera)}/${Math.round(first + share * (last - first))}.jpg?width=160`;
  const image = h("img", { src: address(0.5), loading: "lazy", alt: "", width: 96, height: 72 });
  const preview = h("span", { class: "preview" }, image);
  let timer = 0, number = 0;
  const step = () => { image.src = address((number++ % 16) / 15); };
  preview.addEventListener("pointerenter", () => { number = 0; step(); timer = setInterval(step, 250); });
  preview.addEventListener("pointerleave", () => { clearInterval(timer); image.src = address(0.5); });
  return preview;
}

// A clip with its film, and a link to its first frame; `more` are further words of the address.
export function drawClip(row, words, more = {}) {
  return h("a", { class: "clip", href: `/episodes/${row.episode_id}?${new URLSearchParams({ frame: row.first_frame, ...more })}` }, film(row, row.first_frame, row.last_frame),
    h("span", { class: "what" }, h("b", {}, `${row.source}, frames ${row.first_frame}–${row.last_frame}`), h("span", { class: "soft" }, `${row.batch} · episode ${row.episode_index}`), words ? h("span", { class: "soft" }, words) : null));
}
