// The recorded runs of commands, and one run with its report and its results.

import { get } from "./api.js";
import { empty, fill, format, h, notify } from "./dom.js";
import { day, interval } from "./table.js";

const PER_PAGE = 200;

function duration(run) {
  const took = (Date.parse(run.ended) - Date.parse(run.started)) / 1000;
  if (took < 100) return `${took.toFixed(1)} s`;
  return took < 6000 ? `${(took / 60).toFixed(1)} min` : `${(took / 3600).toFixed(1)} h`;
}

// Words that a shell would change are quoted, so that the line can be pasted.
export const quote = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
const line = (run) => run.command.map(quote).join(" ");

export async function showRuns(page, { signal }) {
  const query = Object.fromEntries(new URLSearchParams(location.search));
  const list = await get("/api/runs", query, signal);
  const address = (changed) => {
    const words = new URLSearchParams(Object.entries({ ...query, ...changed }).filter(([, value]) => value));
    return words.size ? `/runs?${words}` : "/runs";
  };
  const last = list.offset + list.rows.length;
  fill(page, h("div", { class: "list-page" },
    h("aside", { "aria-label": "Filters" }, h("details", { class: "filter", open: true }, h("summary", {}, "Command"),
      h("ul", {}, list.verbs.map(({ value, n }) => h("li", {},
        h("a", { href: address({ verb: value === query.verb ? "" : value, offset: "" }), "aria-current": value === query.verb ? "true" : null },
          h("span", {}, value), h("span", { class: "count" }, n))))))),
    h("section", { class: "list" },
      h("div", { class: "row tools" }, h("b", {}, `${list.total.toLocaleString("en")} ${list.total === 1 ? "run" : "runs"}`), h("span", { class: "grow" }),
        list.offset ? h("a", { href: address({ offset: Math.max(0, list.offset - PER_PAGE) }) }, "‹ newer") : null,
        last < list.total ? h("a", { href: address({ offset: last }) }, "older ›") : null),
      list.rows.length ? h("div", { class: "rows" }, list.rows.map((run) => h("a", { class: "run", href: `/runs/${run.run_id}` },
        h("span", { class: "soft number" }, day(run.started)), h("b", {}, run.verb), h("code", {}, line(run)),
        h("span", { class: "number" }, duration(run)), drawState(run))))
        : empty("No runs yet", "Commands that run in this workspace are recorded here.", h("pre", {}, "twinloop gap --data data/real")))));
}

function drawState(run) {
  if (run.exit_code) return h("span", { class: "chip bad", title: `exit code ${run.exit_code}` }, run.exit_code === 1 ? "a check said no" : `exit ${run.exit_code}`);
  return h("span", { class: run.report ? "chip" : "" }, run.report ? "report" : "");
}

export async function showRun(page, { words: [id], signal }) {
  const run = await get(`/api/runs/${encodeURIComponent(id)}`, {}, signal);
  const copy = () => navigator.clipboard.writeText(line(run)).then(() => notify("Copied."), () => notify("The browser does not allow copying."));
  fill(page, h("article", { class: "run-page" },
    h("div", { class: "row title" }, h("a", { href: "/runs" }, "‹ runs"), h("h1", {}, run.verb), drawState({ ...run, report: false }),
      h("span", { class: "soft" }, `${day(run.started)} · ${duration(run)}`, run.folder ? ` · ${run.folder}` : "")),
    h("div", { class: "row command" }, h("code", {}, line(run)), h("button", { onclick: copy }, "Copy")),
    run.report ? h("iframe", { class: "report", title: "Report", sandbox: "allow-scripts allow-downloads", src: `/reports/${encodeURIComponent(run.run_id)}.html` }) : null,
    h("h2", {}, "Result"), drawValue(run.result, 0)));
}

// A result as a tree: an interval as one line, short lists in a row, everything else folded from the third level on.
function drawValue(value, depth) {
  if (value === null || typeof value !== "object") return h("span", { class: typeof value === "number" ? "number" : "" }, format(value));
  if (isInterval(value)) return h("span", { class: "number" }, interval(value));
  const rows = Object.entries(value);
  if (!rows.length) return h("span", { class: "soft" }, Array.isArray(value) ? "none" : "empty");
  if (Array.isArray(value) && value.length <= 12 && value.every((one) => one === null || typeof one !== "object")) return h("span", { class: "number" }, value.map(format).join(", "));
  const shown = rows.slice(0, 500);
  const list = h("dl", { class: "tree" }, shown.map(([name, one]) => [h("dt", {}, name), h("dd", {}, drawValue(one, depth + 1))]),
    rows.length > shown.length ? [h("dt", {}, "…"), h("dd", { class: "soft" }, `${rows.length - shown.length} more in result.json`)] : null);
  return depth < 2 && rows.length <= 40 ? list : h("details", {}, h("summary", { class: "soft" }, `${rows.length} ${rows.length === 1 ? "entry" : "entries"}`), list);
}

const isInterval = (value) => "estimate" in value && "low" in value && "high" in value && typeof value.estimate === "number";
