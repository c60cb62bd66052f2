// The gap between robot and twin: measurements over time, causes, and the identified parameters.

import { get } from "./api.js";
import { drawClip } from "./clips.js";
import { empty, fill, format, h, start, unit } from "./dom.js";
import { day, interval, strip, table } from "./table.js";

const run = (id, text) => h("a", { href: `/runs/${id}` }, text);

export async function showGap(page, { signal }) {
  const { kinds, causes, worst, fit, damaged } = await get("/api/gap", {}, signal);
  if (!kinds.length && !fit && !damaged.length) return fill(page, empty("The gap is not measured yet", "Replay a log of the robot in its twin; each later measurement appears here beside the earlier ones:", h("pre", {}, "twinloop gap dynamics --data data/real --output runs/gap"), start("gap dynamics", {}, "Start it here")));
  fill(page, h("article", { class: "text-page" }, h("h1", {}, "Gap"),
    damaged.length ? h("p", { class: "problem", role: "alert" }, "The results of these runs cannot be read; measure again: ", damaged.map((id) => [run(id, id), " "])) : null,
    fit ? drawFit(fit) : null,
    kinds.map(({ kind, runs }) => [h("h2", {}, { dynamics: "Motion", vision: "Images", sensors: "Sensors", policies: "Policies" }[kind] ?? kind), drawHistory(kind, runs)]),
    worst.length ? [h("h2", {}, "Where the twin errs most"), h("div", { class: "clips" }, worst.map((one) => drawClip(one, `${one.channel.replace("position/", "")}: ${format(one.error)} (${unit(one.unit)})`, { twin: "yes" })))] : null,
    causes ? [h("h2", {}, "Causes of the error"), h("p", { class: "soft" }, "Shares of the squared error with nominal parameters; see ", run(causes.run_id, "the report"), "."), causes.explanations.map(drawCause)] : null));
}

// What identification changed, on the episodes that it did not see.
function drawFit({ run_id, made, twins, channels }) {
  return [h("h2", {}, "Before and after identification"), h("p", { class: "soft" }, "Error on held-out episodes, of ", run(run_id, `the fit of ${day(made)}`), "."),
    table(["channel", "unit", ...twins], channels.map((one) => {
      const errors = twins.map((name) => one.errors[name]), to = Math.max(...errors.map((error) => error.high ?? error.estimate));
      return [one.name.replace("position/", ""), unit(one.unit), ...errors.map((error) => ({ text: interval(error), element: h("div", {}, interval(error), strip({ ...error, from: 0, to })) }))];
    }), { csv: "identification" })];
}

// One row per run, the newest first; the rows of one log share a scale.
function drawHistory(kind, runs) {
  const names = [...new Set(runs.flatMap((one) => Object.keys(one.metrics)))];
  const main = names.filter((name) => !name.includes("/"));
  const shown = main.length ? main : names;
  const meaning = (name) => runs.map((one) => one.metrics[name]).find(Boolean);
  const cell = (one, name) => {
    const metric = one.metrics[name];
    if (!metric) return "";
    const values = runs.filter((other) => other.data_hash === one.data_hash && other.metrics[name]).flatMap((other) => [other.metrics[name].estimate, other.metrics[name].low, other.metrics[name].high]).filter(Number.isFinite);
    const [from, to] = [Math.min(0, ...values), Math.max(...values)];
    return { text: interval(metric), element: h("div", { title: metric.method }, interval(metric), metric.unit ? ` ${metric.unit}` : "", strip({ ...metric, from, to })) };
  };
  const rows = (columns) => [...runs].reverse().map((one) => [{ text: one.run, element: run(one.run_id, one.run) }, day(one.made), one.twin, { text: one.data, element: h("span", { title: one.data_hash }, one.data) }, ...columns.map((name) => cell(one, name))]);
  const head = (columns) => ["run", "made", "twin", "data", ...columns.map((name) => h("span", { title: meaning(name).meaning }, name, h("span", { class: "soft" }, meaning(name).better === "lower" ? " ↓" : " ↑")))];
  const rest = names.filter((name) => !shown.includes(name));
  return [table(head(shown), rows(shown), { csv: `gap-${kind}` }),
    h("p", { class: "soft" }, "↓ lower is better, ↑ higher is better. Only runs on the same data can be compared; they share a scale."),
    rest.length ? h("details", {}, h("summary", {}, `${rest.length} more figures`), table(["run", ...head(rest).slice(4)], rows(rest).map((row) => [row[0], ...row.slice(4)]), { csv: `gap-${kind}-all` })) : null];
}

function drawCause({ channel, sentence, causes, left }) {
  const rows = [...causes.map((one) => ({ name: one.groups.join(" with "), ...one })), { name: "not explained by the twin", ...left, significant: true }];
  const from = Math.min(0, ...rows.map((one) => one.low ?? one.estimate)), to = Math.max(1, ...rows.map((one) => one.high ?? one.estimate));
  return h("details", { class: "decision" }, h("summary", {}, h("b", {}, channel), " ", h("span", { class: "soft" }, sentence)),
    table(["group", "share", ""], rows.map((one) => [one.name, interval(one), h("span", { class: one.significant ? "" : "faint" }, strip({ ...one, mark: 0, from, to }))])));
}

export async function showParameters(page, { signal, go }) {
  const query = Object.fromEntries(new URLSearchParams(location.search));
  const found = await get("/api/parameters", query, signal);
  if (!found.runs.length) return fill(page, empty("No parameter is identified yet", "Fit the twin to a log of the robot:", h("pre", {}, "twinloop identify --twin TWIN --data data/real --holdout last:10 --output runs/fit"), start("identify", {}, "Start it here")));
  const open = found.parameters.filter((one) => !one.determined);
  const choose = h("select", { "aria-label": "Run", onchange: (event) => go(`/parameters?run=${event.target.value}`) }, found.runs.map((one) => h("option", { value: one.run_id, selected: one.run_id === found.run_id }, `${one.folder ?? one.run_id}, ${day(one.made)}`)));
  fill(page, h("article", { class: "text-page" }, h("div", { class: "row" }, h("h1", {}, "Parameters"), choose, run(found.run_id, "report")),
    h("p", {}, `${found.parameters.length - open.length} of ${found.parameters.length} parameters of ${found.twin?.name ?? "the twin"} are determined by the data. `,
      h("span", { class: "soft" }, `Grey: 95 % of the prior. Line: nominal value. Blue: estimate and ${Math.round(100 * (found.level ?? 0.95))} % interval.`)),
    table(["parameter", "unit", "nominal", "95 % of the prior", "identified", "", ""], found.parameters.map(drawParameter), { csv: "parameters" }),
    found.notes.map((note) => h("p", {}, note)),
    open.length || found.directions.length ? [h("h2", {}, "What would determine the rest"),
      found.directions.length ? h("ul", {}, found.directions.map((text) => h("li", {}, text))) : null,
      h("p", {}, "A motion that is computed for the undetermined parameters, to be recorded on the robot: ",
        start("identify", { "--twin": found.twin?.name ?? "", "--plan": "yes", "--excitation": "excitation.yaml" }, "plan the excitation"), ".")] : null));
}

function drawParameter(one) {
  const ends = [one.prior_low, one.prior_high, one.nominal, one.value, one.low, one.high].filter(Number.isFinite);
  const [from, to] = [Math.min(...ends), Math.max(...ends)], margin = 0.04 * (to - from) || 1;
  const prior = Number.isFinite(one.prior_low) ? `${Number(one.prior_low.toPrecision(3))} to ${Number(one.prior_high.toPrecision(3))}` : "";
  const found = one.side ? `${format(one.value)}, ${one.side} ${format(one.side === "at most" ? one.high : one.low)}` : interval({ estimate: one.value, low: one.low, high: one.high });
  const line = (text, name = "") => ({ text, element: h("span", { class: `line ${name}` }, text) });
  return [h("code", {}, one.name), one.unit, one.nominal, line(prior), one.determined ? line(found) : line(format(one.value), "soft"),
    strip({ estimate: one.determined ? one.value : NaN, low: one.low, high: one.high, band: [one.prior_low, one.prior_high], mark: one.nominal, from: from - margin, to: to + margin }),
    one.determined ? (one.conditional ? h("span", { class: "chip warn", title: "The residuals that determine it are correlated in time: the interval holds only if the twin's physics is right." }, "if the physics is right") : "") : h("span", { class: "chip warn", title: one.reason }, `not determined: ${one.reason}`)];
}
