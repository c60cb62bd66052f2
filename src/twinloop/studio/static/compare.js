// Compare two episodes: their cameras on one transport, their signals in the same plots, and what differs in their origin.

import { get } from "./api.js";
import { empty, fill, h, seconds } from "./dom.js";
import { listBands, listCameras } from "./episode.js";
import { groupSignals, Plots } from "./plots.js";
import { table } from "./table.js";
import { Transport } from "./transport.js";

const MARKED = "twinloop-marked"; // id of the episode with which another is to be compared
export const marked = () => sessionStorage.getItem(MARKED);

// Mark an episode for comparison, or remove its mark.
export const mark = (id) => (marked() === id ? sessionStorage.removeItem(MARKED) : sessionStorage.setItem(MARKED, id));

// What the page of an episode says of the mark: the way to the comparison if another one is marked.
export function drawMark(id) {
  const other = marked();
  if (other === id) return h("span", { class: "chip" }, "marked for comparison");
  return other ? h("a", { href: `/compare?${new URLSearchParams({ a: other, b: id })}` }, "compare with the marked one") : null;
}

export async function showComparison(page, { signal }) {
  const ids = ["a", "b"].map((name) => new URLSearchParams(location.search).get(name));
  if (ids.includes(null)) return fill(page, empty("Choose two episodes", "Mark one with the key c on its page, then open the other one.", h("a", { href: "/episodes" }, "All episodes")));
  const [a, b] = await Promise.all(ids.map(async (id) => ({ ...(await get(`/api/episodes/${id}`, {}, signal)), signals: await get(`/api/episodes/${id}/signals`, {}, signal) })));
  const rate = a.facts.fps, frames = Math.max(a.facts.frames, Math.round((b.facts.frames * rate) / b.facts.fps));
  const transport = new Transport({ frames, fps: rate, cameras: [...listCameras(a, "A: "), ...listCameras(b, "B: ")] });
  const plots = new Plots({ frames, fps: rate, channels: pairChannels(a, b), bands: listBands(a), seek: (frame) => transport.seek(frame) });
  transport.onframe = (frame) => plots.moveCursor(frame);
  signal.addEventListener("abort", () => { transport.close(); plots.close(); });
  fill(page, h("article", { class: "episode-page" },
    h("div", { class: "row title" }, h("h1", {}, "Two episodes"), [["A", a], ["B", b]].map(([name, { facts }]) => h("a", { href: `/episodes/${facts.episode_id}` }, `${name}: ${facts.batch} · episode ${facts.episode_index}`)), h("span", { class: "soft" }, "A is drawn first, B second.")),
    h("div", { class: "columns" }, h("div", {}, transport.element, plots.element), h("aside", { "aria-label": "Differences" }, drawDifferences(a, b)))));
  plots.draw();
}

// The channels of both, each with the measured values of A and of B; values of B are moved to the frames of A.
function pairChannels(a, b) {
  const key = (channel) => `${channel.group}/${channel.title}/${channel.unit}`;
  const others = new Map(groupSignals(b.signals.signals).map((channel) => [key(channel), channel]));
  const moved = (values) => Array.from({ length: Math.round((values.length * a.facts.fps) / b.facts.fps) }, (_, frame) => values[Math.round((frame * b.facts.fps) / a.facts.fps)]);
  return groupSignals(a.signals.signals).map((channel) => {
    const other = others.get(key(channel));
    return { ...channel, lines: [{ label: "A", values: channel.lines[0].values }, ...(other ? [{ label: "B", values: moved(other.lines[0].values) }] : [])] };
  });
}

function drawDifferences(a, b) {
  const outcome = ({ facts }) => facts.labelled ?? (facts.success === null ? "unknown" : facts.success ? "yes" : "no");
  const facts = [["outcome", outcome(a), outcome(b)], ["source", a.facts.source, b.facts.source], ["task", a.facts.task, b.facts.task], ["actor", a.facts.actor, b.facts.actor], ["twin", a.origin.twin, b.origin.twin],
    ["duration", seconds(a.facts.duration_s), seconds(b.facts.duration_s)], ["findings", String(a.facts.bad ?? 0), String(b.facts.bad ?? 0)]];
  const values = new Map(b.params.map(({ name, value }) => [name, value]));
  const changes = a.params.filter(({ name, value }) => values.has(name) && values.get(name) !== value).map(({ name, value }) => [name, value, values.get(name)]);
  const size = ([, one, other]) => Math.abs(one - other) / (Math.abs(one) + Math.abs(other));
  return [h("h2", {}, "Origin"), table(["", "A", "B"], facts.map(([name, one, other]) => [name, one ?? "", one === other ? other ?? "" : h("b", {}, other ?? "")])),
    changes.length ? [h("h2", {}, "Parameters that differ"), table(["parameter", "A", "B"], changes.sort((one, other) => size(other) - size(one)).map(([name, one, other]) => [h("code", {}, name), one, other]), { csv: "parameters" })] : null];
}
