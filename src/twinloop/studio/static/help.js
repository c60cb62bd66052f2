// Show the keys.

import { h } from "./dom.js";

const KEYS = [
  ["List", [["j, k", "next, previous episode"], ["Enter", "open it"], ["/", "go to the SQL"]]],
  ["Episode", [["Space", "play or pause"], ["← →", "one frame back or on; with Shift ten"], ["Home, End", "first, last frame"],
    ["n, p", "next, previous episode of the list"], ["c", "mark it, to compare it with another"]]],
  ["Labels", [["s", "success"], ["f", "failure, with its class"], ["u", "outcome unknown"], ["t", "tag"],
    ["[ and ]", "begin and end of a subtask"], ["x", "exclude, or include again"], ["z", "undo"]]],
];

export function openHelp() {
  const dialog = h("dialog", { class: "help", onclose: () => dialog.remove() },
    KEYS.map(([title, rows]) => [h("h2", {}, title),
      h("dl", {}, rows.map(([key, what]) => [h("dt", {}, key), h("dd", {}, what)]))]),
    h("form", { method: "dialog" }, h("button", {}, "Close")));
  document.body.append(dialog);
  dialog.showModal();
}
