// One episode: all cameras on one transport, signals with one cursor, labels, findings, parameters and relatives.

import { get } from "./api.js";
import { fill, format, h, notify, seconds } from "./dom.js";
import { LIST } from "./episodes.js";
import { choose, label, removeLabel, toggleExcluded, undo, words } from "./labels.js";
import { groupSignals, Plots } from "./plots.js";
import { Transport } from "./transport.js";

export async function showEpisode(page, { words: [id], go, signal }) {
  const [episode, signals] = await Promise.all([get(`/api/episodes/${id}`, {}, signal), get(`/api/episodes/${id}/signals`, {}, signal)]);
  const { facts } = episode;
  const transport = new Transport({ id, frames: facts.frames, fps: facts.fps, cameras: episode.cameras });
  const plots = new Plots({ frames: signals.frames, fps: signals.fps, channels: groupSignals(signals.signals), bands: listBands(episode), seek: (frame) => transport.seek(frame) });
  transport.onframe = (frame) => plots.moveCursor(frame);
  signal.addEventListener("abort", () => { transport.close(); plots.close(); });
  const side = h("aside", { "aria-label": "Facts" });
  const title = h("div", { class: "row title" });
  fill(page, h("article", { class: "episode-page" }, title, h("div", { class: "columns" },
    h("div", {}, transport.element, plots.element), side)));

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
  addEventListener("labelled", redraw, { signal });
  handleKeys({ episode, transport, redraw, go, signal });
}

const listBands = (episode) => [
  ...episode.labels.filter((one) => one.first_frame !== null).map((one) => ({ ...one, label: one.value, tone: "" })),
  ...episode.scores.filter((one) => one.first_frame !== null && one.verdict !== "good").map((one) => ({ ...one, label: one.check, tone: "bad" })),
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
  const found = episode.scores.filter((one) => one.verdict !== "good");
  return h("section", {}, h("h2", {}, "Quality"),
    episode.scores.length === 0 ? h("p", { class: "soft" }, "Not checked. ", h("code", {}, "twinloop curate")) : null,
    episode.scores.length && !found.length ? h("p", { class: "soft" }, `${episode.scores.length} checks, no finding.`) : null,
    h("ul", { class: "findings" }, found.map((one) => h("li", {},
      h("span", { class: `chip ${{ bad: "bad", suspect: "warn" }[one.verdict] ?? ""}` }, one.verdict),
      h("span", {}, h("b", {}, one.check), " ", one.reason, " ",
        one.first_frame !== null ? h("button", { class: "link", onclick: () => transport.seek(one.first_frame) }, `frame ${one.first_frame}`) : null)))));
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

function handleKeys({ episode, transport, redraw, go, signal }) {
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
    if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog")) return;
    const action = actions[event.key];
    if (!action || (event.key === " " && event.target.matches("button"))) return;
    event.preventDefault();
    Promise.resolve(action(event)).catch((error) => notify(error.message));
  }, { signal });
}
