// The list of episodes: filters with counts, the SQL behind them, and previews.

import { get } from "./api.js";
import { film } from "./clips.js";
import { empty, fill, h, isTyped, notify, seconds, start } from "./dom.js";
import { label, toggleExcluded, undo } from "./labels.js";

const PER_PAGE = 60;
const TITLES = { source: "Source", batch: "Dataset", outcome: "Outcome", verdict: "Quality", task: "Task", tag: "Tag", failure: "Failure",
  robot: "Robot", twin: "Twin", actor: "Actor", parameter: "Parameter", excluded: "Excluded" };
const ORDERS = { place: "as stored", longest: "longest first", shortest: "shortest first", suspect: "most suspect first" };
const OUTCOMES = { yes: ["success", "good"], no: ["failure", "bad"], unknown: ["unknown", ""] };

export const LIST = "twinloop-list"; // ids of the list that was shown last, for next and previous

export async function showEpisodes(page, { go, signal }) {
  const query = Object.fromEntries(new URLSearchParams(location.search));
  const list = await get("/api/episodes", { ...query, limit: PER_PAGE }, signal)
    .catch((error) => signal.aborted ? Promise.reject(error) : ({ problem: error.message, sql: query.sql ?? "", rows: [], total: 0, offset: 0 }));
  const address = (changed) => {
    const kept = { ...query, ...changed };
    if (!("offset" in changed)) delete kept.offset;
    const words = new URLSearchParams(Object.entries(kept).filter(([, value]) => value !== null && value !== ""));
    return words.size ? `/episodes?${words}` : "/episodes";
  };
  sessionStorage.setItem(LIST, JSON.stringify({ ids: list.rows.map((row) => row.episode_id), address: location.pathname + location.search }));

  const rows = list.rows.map((row) => drawRow(row));
  const filters = h("aside", { "aria-label": "Filters" });
  fill(page, h("div", { class: "list-page" }, filters,
    h("section", { class: "list" },
      drawSql(list, go),
      list.problem ? h("p", { class: "problem", role: "alert" }, list.problem) : null,
      h("div", { class: "row tools" },
        h("b", { id: "total" }, `${list.total.toLocaleString("en")} ${list.total === 1 ? "episode" : "episodes"}`),
        query.sql ? h("a", { href: "/episodes" }, "back to filters") : h("label", {}, "Order ", h("select", { onchange: (event) => go(address({ order: event.target.value })) },
          Object.entries(ORDERS).map(([value, text]) => h("option", { value, selected: value === (query.order ?? "place") }, text)))),
        h("span", { class: "grow" }), drawPages(list, address),
        start("datasets freeze", { "--sql": list.sql }, "freeze"),
        h("a", { href: `/api/episodes.csv?${new URLSearchParams(query)}`, download: "episodes.csv" }, "CSV")),
      rows.length ? h("div", { class: "rows" }, rows)
        : list.problem ? null : drawNothing(query))));
  handleKeys(rows, list, go, signal);
  const values = await get("/api/values", {}, signal);
  fill(filters, Object.keys(TITLES).map((name) => drawFilter(name, values[name] ?? [], query, address, go)));
}

function drawNothing(query) {
  if (Object.keys(query).length) return empty("No episode meets these filters", "Remove one on the left, or change the SQL.", h("a", { href: "/episodes" }, "All episodes"));
  return empty("There are no episodes yet", "Import a robot's log, or generate simulated episodes, in the folder of this workspace:",
    h("pre", {}, "twinloop import LOG --output data/real\ntwinloop generate generate.yaml --output data/sim --episodes 100"));
}

function drawFilter(name, values, query, address, go) {
  const set = query[name];
  if (name === "parameter") return drawParameters(values, query, address, go);
  if (!values.length && set === undefined) return null;
  const shown = values.some((one) => one.value === set) || set === undefined ? values : [{ value: set, n: 0 }, ...values];
  return h("details", { class: "filter", open: shown.length <= 8 || set !== undefined },
    h("summary", {}, TITLES[name]),
    h("ul", {}, shown.map(({ value, n }) => h("li", {},
      h("a", { href: address({ [name]: value === set ? null : value, sql: null }), "aria-current": value === set ? "true" : null, title: value },
        h("span", {}, name === "outcome" ? OUTCOMES[value]?.[0] ?? value : value), h("span", { class: "count" }, n.toLocaleString("en")))))));
}

function drawParameters(values, query, address, go) {
  if (!values.length) return null;
  const [, name = "", low = "", high = ""] = /^(.*):([^:]*):([^:]*)$/.exec(query.parameter ?? "") ?? [];
  const fields = { name: h("select", { "aria-label": "Parameter" }, h("option", { value: "" }, "any"), values.map((one) => h("option", { value: one.value, selected: one.value === name }, one.value))),
    low: h("input", { "aria-label": "from", value: low, inputMode: "decimal", placeholder: "from" }), high: h("input", { "aria-label": "to", value: high, inputMode: "decimal", placeholder: "to" }) };
  const range = () => values.find((one) => one.value === fields.name.value);
  fields.name.addEventListener("change", () => { const found = range(); fields.low.value = found?.low ?? ""; fields.high.value = found?.high ?? ""; });
  const apply = (event) => { event.preventDefault(); go(address({ parameter: fields.name.value ? `${fields.name.value}:${fields.low.value}:${fields.high.value}` : null, sql: null })); };
  return h("details", { class: "filter", open: query.parameter !== undefined }, h("summary", {}, TITLES.parameter),
    h("form", { class: "range", onsubmit: apply }, fields.name, h("div", { class: "row" }, fields.low, fields.high), h("button", {}, "Filter")));
}

function drawSql(list, go) {
  const text = h("textarea", { id: "sql", spellcheck: false, rows: Math.min(8, list.sql.split("\n").length), "aria-label": "SQL that selects the episodes" });
  const run = () => go(`/episodes?${new URLSearchParams({ sql: text.value })}`);
  text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } });
  text.value = list.sql;
  return h("form", { class: "sql", onsubmit: (event) => { event.preventDefault(); run(); } }, text, h("button", { title: "Ctrl+Enter" }, "Run"));
}

function drawPages(list, address) {
  const last = Math.min(list.offset + list.rows.length, list.total);
  return [
    list.offset > 0 ? h("a", { href: address({ offset: Math.max(0, list.offset - PER_PAGE) || null }), rel: "prev" }, "‹ before") : null,
    h("span", { class: "soft" }, list.total ? `${list.offset + 1}–${last}` : ""),
    last < list.total ? h("a", { href: address({ offset: list.offset + PER_PAGE }), rel: "next" }, "more ›") : null,
  ];
}

function drawRow(row) {
  const [text, tone] = OUTCOMES[row.labelled ?? (row.success === true ? "yes" : row.success === false ? "no" : "unknown")] ?? [row.labelled, ""];
  const link = h("a", { class: "episode", href: `/episodes/${row.episode_id}`, "data-id": row.episode_id },
    film(row, 0, row.frames - 1),
    h("span", { class: "what" }, h("b", {}, row.task || "no task"), h("span", { class: "soft" }, `${row.batch} · episode ${row.episode_index}`)),
    h("span", { class: `chip ${tone}`, title: row.labelled ? "by labels" : row.success === null ? "nobody judged it" : "by the task's own condition" }, text),
    h("span", { class: "chip" }, row.source),
    h("span", { class: "number" }, seconds(row.duration_s)),
    h("span", { class: "quality" }, row.bad ? h("span", { class: "chip bad" }, `${row.bad} bad`) : null,
      row.suspect ? h("span", { class: "chip warn" }, `${row.suspect} suspect`) : null,
      row.checks && !row.bad && !row.suspect ? h("span", { class: "soft" }, "no finding") : null),
    h("span", { class: "tags" }, row.excluded !== null ? h("span", { class: "chip bad", title: row.excluded }, "excluded") : null,
      row.tags.map((tag) => h("span", { class: "chip" }, tag))));
  return link;
}

function handleKeys(rows, list, go, signal) {
  const focused = () => rows.indexOf(document.activeElement);
  const moves = { j: 1, k: -1 };
  document.addEventListener("keydown", async (event) => {
    if (isTyped(event)) return;
    const at = focused();
    if (event.key in moves) rows[Math.max(0, Math.min(rows.length - 1, at + moves[event.key]))]?.focus();
    else if (event.key === "/") { event.preventDefault(); document.getElementById("sql").focus(); }
    else if (at >= 0 && ["s", "u", "x", "z"].includes(event.key)) {
      const { episode_id: id } = list.rows[at];
      try {
        if (event.key === "z") await undo();
        else if (event.key === "x") await toggleExcluded(list.rows[at]);
        else await label(id, { kind: "success", value: event.key === "s" ? "yes" : "unknown" });
        go(location.pathname + location.search, { replace: true });
      } catch (error) {
        notify(error.message);
      }
    }
  }, { signal });
}
