// How much of reality simulation covers: a map of real and simulated clips, the holes, and the way to fill them.

import { get, getFloats } from "./api.js";
import { drawClip } from "./clips.js";
import { empty, fill, format, h, notify, start } from "./dom.js";
import { Scatter } from "./scatter.js";
import { day, interval, table } from "./table.js";

const COLOURS = [["--accent", 0.35], ["--bad", 0.55], ["--ink", 0.8], ["--second", 0.9]];

export async function showCoverage(page, { signal, go }) {
  const query = Object.fromEntries(new URLSearchParams(location.search));
  const found = await get("/api/coverage", { encoder: query.encoder ?? "" }, signal);
  if (!found.encoders.length) return fill(page, empty("The coverage is not measured yet", "With real and simulated episodes in the workspace, this compares their clips:", h("pre", {}, "twinloop coverage --output runs/coverage"), start("coverage", { "--output": "runs/coverage" }, "Start it here")));
  const points = await getFloats(`/api/coverage/${found.encoder_hash}/points`, signal);
  const side = h("aside", { "aria-label": "Chosen clips" });
  const address = (changed) => history.replaceState(null, "", `/coverage?${new URLSearchParams(Object.entries({ ...query, ...changed }).filter(([, value]) => value !== null))}`);
  const pick = async (row) => {
    address({ clip: row, hole: null });
    map.mark([row]);
    const { clips } = await get(`/api/coverage/${found.encoder_hash}/clips/${row}`, {}, signal);
    fill(side, h("h2", {}, "This clip"), drawClip(clips[0]), h("h2", {}, "The nearest of other episodes"), clips.slice(1).map((one) => drawClip(one, `distance ${format(one.distance)}`)));
  };
  const map = new Scatter({ points, colours: COLOURS, onpick: (row) => pick(row).catch((error) => notify(error.message)) });
  signal.addEventListener("abort", () => map.close());
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", () => map.draw(), { signal });
  const openHole = (number) => {
    address({ hole: number + 1, clip: null });
    map.mark(found.hole_rows[number] ?? []);
    fill(side, drawHole(found.measured.holes[number], number));
  };
  const legend = h("div", { class: "row legend" }, found.kinds.map(({ kind, clips }, number) => clips ? h("label", {}, h("input", { type: "checkbox", checked: true, "data-kind": number, onchange: () => map.setKinds([...legend.querySelectorAll("input:checked")].reduce((sum, one) => sum | (1 << Number(one.dataset.kind)), 0)) }),
    h("i", { class: "dot", style: `background: var(${COLOURS[number][0]})` }), `${kind} `, h("span", { class: "soft number" }, clips.toLocaleString("en"))) : null),
    h("span", { class: "grow" }), found.encoders.length > 1 ? h("select", { "aria-label": "Encoder", onchange: (event) => go(`/coverage?encoder=${event.target.value}`) }, found.encoders.map((one) => h("option", { value: one.encoder_hash, selected: one.encoder_hash === found.encoder_hash }, `${one.encoder}, ${one.clips.toLocaleString("en")} clips`))) : null,
    h("a", { href: "#", download: "coverage.png", onclick: (event) => { event.currentTarget.href = map.canvas.toDataURL("image/png"); } }, "image"));
  fill(page, h("article", { class: "coverage-page" },
    h("div", { class: "row title" }, h("h1", {}, "Coverage"), drawMeasured(found.measured), h("span", { class: "grow" }), start("coverage", { "--output": "runs/coverage" }, "measure again"), start("plan", { "--output": "next.yaml" }, "plan the next data")),
    h("div", { class: "columns" }, h("div", {}, map.canvas, legend, h("p", { class: "soft" }, "Two principal components of the clips' features: clips that are close on the map can be far from each other."), drawHoles(found.measured, openHole)), side)));
  if (query.clip !== undefined) await pick(Number(query.clip));
  else if (found.measured?.holes.length) openHole(Math.max(0, Math.min(found.measured.holes.length - 1, Number(query.hole ?? 1) - 1)));
  else fill(side, h("p", { class: "soft" }, "Click a point to see its clip."));
}

function drawMeasured(measured) {
  if (!measured) return h("span", { class: "soft" }, "The clips were encoded, but no coverage is recorded.");
  return h("span", {}, `${interval(scale(measured.metrics.coverage))} % of reality covered `, h("a", { href: `/runs/${measured.run_id}` }, `report of ${day(measured.started)}`));
}

const scale = ({ estimate, low, high }) => ({ estimate: 100 * estimate, low: low === null ? null : 100 * low, high: high === null ? null : 100 * high });
const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);

function drawHoles(measured, open) {
  if (!measured) return null;
  if (!measured.holes.length) return h("p", {}, "There is no hole: every real clip has a simulated one near it.");
  return [h("h2", {}, "Holes: real clips without simulated ones near them"),
    table(["hole", "share of reality", "episodes", "failing", "distance", "in its middle"], measured.holes.slice(0, 50).map((hole, number) => [
      { text: number + 1, element: h("button", { class: "link", onclick: () => open(number) }, `hole ${number + 1}`) }, percent(hole.mass), hole.episodes, hole.judged ? percent(hole.failure) : "unknown", hole.distance, hole.middle]), { csv: "holes" })];
}

function drawHole(hole, number) {
  const ids = [...new Set((hole.places ?? []).map((one) => one.episode))].slice(0, 200);
  const sql = `SELECT episode_id FROM episodes WHERE episode_id IN (${ids.map((id) => `'${id.replaceAll("'", "''")}'`).join(", ")})`;
  return [h("h2", {}, `Hole ${number + 1}`),
    h("p", {}, `${percent(hole.mass)} of reality, ${hole.places?.length ?? hole.clips.length} clips of ${hole.episodes} ${hole.episodes === 1 ? "episode" : "episodes"}, ${format(hole.distance)} times as far from the nearest simulated clip as from real neighbours.`,
      hole.judged ? ` ${percent(hole.failure)} of its ${hole.judged} judged episodes failed.` : ""),
    ids.length ? h("p", {}, h("a", { href: `/episodes?${new URLSearchParams({ sql })}` }, ids.length === 1 ? "its episode" : `its ${ids.length} episodes`)) : null,
    h("p", {}, "The plan draws worlds for the holes by their weight, and writes a generate file: ", start("plan", { "--output": "next.yaml" }, "plan the next data"), ". Then ", start("generate", { FILE: "next.yaml", "--output": "data/next" }, "generate it"), ".")];
}
