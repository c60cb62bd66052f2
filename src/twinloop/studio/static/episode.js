// One episode: all cameras on one transport, signals with one cursor, labels, findings, parameters and relatives.

import { get, getFloats } from "./api.js";
import { drawMark, mark } from "./compare.js";
import { fill, format, h, isTyped, notify, seconds, start } from "./dom.js";
import { LIST } from "./episodes.js";
import { choose, label, removeLabel, toggleExcluded, undo, words } from "./labels.js";
import { groupSignals, Plots, tabulate } from "./plots.js";
import { drawCsv } from "./table.js";
import { Transport } from "./transport.js";
import { View3d } from "./view3d.js";

export async function showEpisode(page, { words: [id], go, signal }) {
  const [episode, signals] = await Promise.all([get(`/api/episodes/${id}`, {}, signal), get(`/api/episodes/${id}/signals`, {}, signal)]);
  const { facts } = episode;
  const transport = new Transport({ ...facts, cameras: listCameras(episode), annotated: episode.annotated });
  const channels = groupSignals(signals.signals);
  const plots = new Plots({ frames: signals.frames, fps: signals.fps, channels, bands: listBands(episode), seek: (frame) => transport.seek(frame) });
  const twin = new TwinBeside({ id, signal, transport, plots });
  transport.onframe = (frame) => { plots.moveCursor(frame); twin.view?.show(frame); };
  signal.addEventListener("abort", () => { transport.close(); plots.close(); twin.view?.close(); });
  const side = h("aside", { "aria-label": "Facts" });
  const title = h("div", { class: "row title" });
  fill(page, h("article", { class: "episode-page" }, title, h("div", { class: "columns" },
    h("div", {}, transport.element, twin.element, plots.element, drawCsv(`${facts.batch}-${facts.episode_index}`, () => tabulate([...plots.extra, ...channels], signals.fps))), side)));
  twin.open();

  const redraw = async () => {
    Object.assign(episode, await get(`/api/episodes/${id}`, {}, signal));
    draw();
  };
  const draw = () => {
    drawTitle(title, episode, go);
    fill(side, drawLabels(episode, redraw, transport), drawFindings(episode, transport), drawFacts(episode), drawParams(episode), drawRelatives(episode));
    plots.setBands(listBands(episode));
  };
  draw();
  const given = new URLSearchParams(location.search);
  if (given.has("frame")) transport.seek(Number(given.get("frame")));
  if (given.has("twin")) twin.box.click();
  addEventListener("labelled", redraw, { signal });
  handleKeys({ episode, title, transport, redraw, go, signal });
}

// The cameras of an episode, as the transport plays them.
export const listCameras = ({ facts: { episode_id: id, frames, fps }, cameras }, before = "") =>
  cameras.map((one) => ({ ...one, id, frames, fps, label: before + one.name }));

// The episode in three dimensions, and on request the twin's replay of its commands beside it.
class TwinBeside {
  constructor({ id, signal, transport, plots }) {
    Object.assign(this, { id, signal, transport, plots, view: null });
    this.box = h("input", { type: "checkbox", onchange: () => this.toggle().catch((error) => { this.box.checked = false; notify(error.message); }) });
    this.words = h("span", { class: "soft" });
    this.element = h("div", { class: "row beside" }, h("label", {}, this.box, " the twin's replay of the same commands"), this.words);
  }

  async open() {
    const base = `/api/episodes/${this.id}`;
    try {
      const [scene, poses] = await Promise.all([get(`${base}/scene`, {}, this.signal), getFloats(`${base}/poses`, this.signal)]);
      this.view = new View3d(scene);
      const source = { states: "states of the simulation", joints: "measured joints" }[scene.source];
      this.transport.views.append(h("figure", {}, this.view.canvas, h("figcaption", {}, h("span", {}, `3-D, ${source}`), h("span", {}, scene.twin))));
      this.view.setLayer(0, poses);
      this.view.show(this.transport.frame);
    } catch (error) {
      if (!this.signal.aborted) this.words.textContent = error.message;
    }
  }

  async toggle() {
    if (!this.box.checked) {
      this.view?.setLayer(1, null);
      this.words.textContent = "";
      return this.plots.setExtra([]);
    }
    const base = `/api/episodes/${this.id}`;
    const [replay, poses] = await Promise.all([get(`${base}/replay`, {}, this.signal), this.view ? getFloats(`${base}/poses?of=twin`, this.signal) : null]);
    this.view?.setLayer(1, poses, true);
    this.words.textContent = `${replay.twin}, open loop from the first frame; units from ${replay.units}`;
    this.plots.setExtra(replay.channels.flatMap(({ name, unit, measured, predicted, rmse }) => [
      { group: "the robot and its twin", title: name, unit, lines: [{ label: "measured", values: measured }, { label: "twin", values: predicted }] },
      { group: "twin minus robot", title: `${name}, rms ${format(rmse)}`, unit, lines: [{ label: "difference", values: predicted.map((value, i) => value === null || measured[i] === null ? null : value - measured[i]) }] }]));
  }
}

export const listBands = (episode) => [
  ...episode.labels.filter((one) => one.first_frame !== null).map((one) => ({ ...one, label: one.value, tone: "" })),
  ...episode.scores.filter((one) => one.first_frame !== null && ["bad", "suspect"].includes(one.verdict)).map((one) => ({ ...one, label: one.check, tone: "bad" })),
];

const neighbours = (id) => {
  const { ids = [], address = "/episodes" } = JSON.parse(sessionStorage.getItem(LIST) ?? "{}");
  const at = ids.indexOf(id);
  return { before: at > 0 ? ids[at - 1] : null, after: at >= 0 ? ids[at + 1] ?? null : null, address };
};

function drawTitle(title, episode) {
  const { facts } = episode;
  const { before, after, address } = neighbours(facts.episode_id);
  const outcome = facts.labelled ?? (facts.success === true ? "yes" : facts.success === false ? "no" : "unknown");
  fill(title, h("a", { href: address }, "‹ list"), h("h1", {}, facts.task || "Episode"),
    h("span", { class: `chip ${{ yes: "good", no: "bad" }[outcome] ?? ""}` }, { yes: "success", no: "failure" }[outcome] ?? outcome),
    h("span", { class: "chip" }, facts.source), facts.excluded !== null ? h("span", { class: "chip bad", title: facts.excluded }, "excluded") : null,
    h("span", { class: "soft" }, `${facts.batch} · episode ${facts.episode_index} · ${facts.frames} frames · ${seconds(facts.duration_s)}`),
    h("span", { class: "grow" }),
    drawMark(facts.episode_id),
    start("scenario from-failure", { EPISODE: `${facts.batch}:${facts.episode_index}` }, "make a scenario"),
    before ? h("a", { href: `/episodes/${before}`, rel: "prev" }, "‹ previous") : null,
    after ? h("a", { href: `/episodes/${after}`, rel: "next" }, "next ›") : null);
}

function drawLabels(episode, redraw, transport) {
  const remove = (one) => removeLabel(episode.facts.episode_id, one).then(redraw).catch((error) => notify(error.message));
  const own = (one) => one.source === "hand" && one.author === episode.author;
  const where = (one) => one.first_frame === null ? null
    : h("button", { class: "link", onclick: () => transport.seek(one.first_frame) }, `${one.first_frame}–${one.last_frame ?? ""}`);
  return h("section", {}, h("h2", {}, "Labels"),
    episode.labels.length ? h("ul", { class: "labels" }, episode.labels.map((one) => h("li", {},
      h("span", {}, h("b", {}, one.kind), ` ${one.value} `, where(one)), h("span", { class: "soft", title: one.reason }, `${one.source} · ${one.author}`),
      own(one) ? h("button", { class: "quiet", "aria-label": `Remove ${one.kind} ${one.value}`, onclick: () => remove(one) }, "×") : h("span"))))
      : h("p", { class: "soft" }, "None yet. Press s for a success, f for a failure, t for a tag."),
    episode.consensus.filter((one) => one.conflict).map((one) => h("p", { class: "problem" }, `${one.kind}: ${one.conflict} (${one.decided}: ${one.value ?? "no answer"})`)));
}

function drawFindings(episode, transport) {
  const found = episode.scores.filter((one) => !["good", "unknown"].includes(one.verdict));
  const undecided = episode.scores.filter((one) => one.verdict === "unknown");
  return h("section", {}, h("h2", {}, "Quality"),
    episode.scores.length === 0 ? h("p", { class: "soft" }, "Not checked. ", h("code", {}, "twinloop curate")) : null,
    episode.scores.length && !found.length ? h("p", { class: "soft" }, `${episode.scores.length} checks, no finding.`) : null,
    h("ul", { class: "findings" }, found.map((one) => h("li", {},
      h("span", { class: `chip ${{ bad: "bad", suspect: "warn" }[one.verdict] ?? ""}` }, one.verdict),
      h("span", {}, h("b", {}, one.check), " ", one.reason, " ",
        one.first_frame !== null ? h("button", { class: "link", onclick: () => transport.seek(one.first_frame) }, `frame ${one.first_frame}`) : null)))),
    undecided.length ? h("details", {}, h("summary", { class: "soft" }, `${undecided.length} checks cannot decide`),
      h("ul", { class: "findings" }, undecided.map((one) => h("li", {}, h("b", {}, one.check), h("span", {}, one.reason))))) : null);
}

function drawTable(rows) {
  return h("dl", { class: "facts" }, rows.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function drawFacts(episode) {
  const { facts, origin } = episode;
  return h("section", {}, h("h2", {}, "Origin"), drawTable([
    ["robot", facts.robot_type], ["twin", origin.twin], ["actor", facts.actor], ["simulator", origin.sim_version], ["seed", origin.seed === null ? null : `${origin.seed}, number ${origin.number}, attempt ${origin.attempt}`],
    ["invalid", origin.invalid_reason], ["licence", origin.licence], ["folder", episode.folder], ["id", facts.episode_id.slice(0, 16)]]));
}

function drawParams(episode) {
  if (!episode.params.length) return null;
  return h("section", {}, h("details", {}, h("summary", {}, `${episode.params.length} drawn parameters`),
    h("dl", { class: "facts numbers" }, episode.params.map(({ name, value }) => [h("dt", { title: name }, name), h("dd", {}, format(value))]))));
}

function drawRelatives(episode) {
  const { facts, origin } = episode;
  const link = (id) => h("a", { href: `/episodes/${id}` }, id.slice(0, 8));
  const rows = [
    ["other copies", episode.copies.filter((one) => one.batch !== facts.batch || one.episode_index !== facts.episode_index).map((one) => `${one.batch} ${one.episode_index}`).join(", ")],
    ["derived from", origin.parents.length ? origin.parents.map(link) : null], ["derived", episode.children.length ? episode.children.map((one) => link(one.episode_id)) : null],
    ["datasets", episode.datasets.map((one) => `${one.name}@${one.version}`).join(", ")], ["trained", [...new Set(episode.policies.map((one) => one.name))].join(", ")]];
  return rows.some(([, value]) => value && value.length) ? h("section", {}, h("h2", {}, "Relatives"), drawTable(rows)) : null;
}

function handleKeys({ episode, title, transport, redraw, go, signal }) {
  let begin = null;
  const id = episode.facts.episode_id;
  const visit = (one) => one && go(`/episodes/${one}`);
  const actions = {
    " ": () => transport.toggle(), ArrowLeft: (event) => transport.seek(transport.frame - (event.shiftKey ? 10 : 1)), ArrowRight: (event) => transport.seek(transport.frame + (event.shiftKey ? 10 : 1)),
    Home: () => transport.seek(0), End: () => transport.seek(transport.frames - 1),
    n: () => visit(neighbours(id).after), p: () => visit(neighbours(id).before),
    s: () => label(id, { kind: "success", value: "yes" }).then(redraw), u: () => label(id, { kind: "success", value: "unknown" }).then(redraw),
    f: async () => {
      const { failures } = await words();
      const why = await choose("Class of the failure", failures);
      if (why) await label(id, { kind: "success", value: "no" }, { kind: "failure", value: why }).then(redraw);
    },
    c: () => { mark(id); drawTitle(title, episode); },
    t: async () => { const tag = await choose("Tag", (await words()).tags); if (tag) await label(id, { kind: "tag", value: tag }).then(redraw); },
    "[": () => { begin = transport.frame; notify(`The subtask begins at frame ${begin}; press ] where it ends.`); },
    "]": async () => {
      if (begin === null) return notify("Press [ where the subtask begins first.");
      const [first_frame, last_frame] = [begin, transport.frame].sort((a, b) => a - b);
      const name = await choose(`Subtask of frames ${first_frame} to ${last_frame}`, (await words()).subtasks);
      begin = null;
      if (name) await label(id, { kind: "subtask", value: name, first_frame, last_frame }).then(redraw);
    },
    x: () => toggleExcluded(episode.facts).then(redraw),
    z: async () => { const ids = await undo(); if (ids?.includes(id)) await redraw(); else if (ids?.length) visit(ids[0]); },
  };
  document.addEventListener("keydown", (event) => {
    if (isTyped(event)) return;
    const action = actions[event.key];
    if (!action || (event.key === " " && event.target.matches("button"))) return;
    event.preventDefault();
    Promise.resolve(action(event)).catch((error) => notify(error.message));
  }, { signal });
}
