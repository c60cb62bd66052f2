// Tables with numbers and intervals, and their content as CSV.

import { format, h } from "./dom.js";

export const day = (text) => new Date(text).toLocaleString("sv").slice(0, 16);
// An estimate with its interval, with as many decimals as the width of the interval needs.
export function interval({ estimate, low, high }) {
  if (!Number.isFinite(low) || !Number.isFinite(high) || !Number.isFinite(estimate)) return format(estimate ?? null);
  const width = high - low || Math.abs(estimate) || 1, decimals = Math.max(0, Math.min(12, 1 - Math.floor(Math.log10(width))));
  return `${estimate.toFixed(decimals)} [${low.toFixed(decimals)}, ${high.toFixed(decimals)}]`;
}

// A table. A cell is a text, a number, an element, or { text, element } where a CSV file has another text than the page.
export function table(heads, rows, { csv } = {}) {
  const shown = (cell) => (typeof cell === "number" ? format(cell) : cell?.element ?? cell);
  const made = h("table", {}, h("thead", {}, h("tr", {}, heads.map((head) => h("th", {}, head)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", { class: typeof cell === "number" ? "number" : "" }, shown(cell)))))));
  return csv ? h("div", { class: "with-csv" }, made, drawCsv(csv, () => [heads, rows])) : made;
}

// A link that downloads a table as CSV; `make` returns its heads and rows when it is used.
export const drawCsv = (name, make) => h("a", { class: "csv", href: "#", download: `${name}.csv`, onclick: (event) => { event.currentTarget.href = toCsv(...make()); } }, "CSV");

function toCsv(heads, rows) {
  const words = (cell) => (cell?.text ?? (cell instanceof Node ? cell.textContent : cell ?? ""));
  // A spreadsheet would compute a cell that begins with one of these signs.
  const safe = (text) => (/^[=+@\t\r]|^-(?![\d.])/.test(text) ? `'${text}` : text);
  const quoted = (cell) => `"${(typeof cell === "number" ? String(cell) : safe(String(words(cell)))).replaceAll('"', '""')}"`;
  return URL.createObjectURL(new Blob([[heads, ...rows].map((row) => row.map(quoted).join(",")).join("\r\n")], { type: "text/csv" }));
}

// An interval with its estimate on a scale from `from` to `to`; optionally a band, such as a prior, and a mark, such as
// a nominal value.
export function strip({ estimate, low, high, band, mark, from, to, title }) {
  const at = (value) => 100 * Math.max(0, Math.min(1, (value - from) / (to - from || 1)));
  const span = (name, [a, b]) => h("span", { class: name, style: `left:${at(a)}%;width:${at(b) - at(a)}%` });
  const known = Number.isFinite;
  return h("span", { class: "rate", title }, band && band.every(known) ? span("band", band) : null, known(low) && known(high) ? span("", [low, high]) : null,
    known(mark) ? h("i", { class: "mark", style: `left:${at(mark)}%` }) : null, known(estimate) ? h("i", { style: `left:${at(estimate)}%` }) : null);
}
