// Say something of an episode from the keyboard or a button. Every step can be undone, also after a reload.

import { get, post } from "./api.js";
import { h, notify } from "./dom.js";

const STACK = "twinloop-undo";
const stack = () => JSON.parse(sessionStorage.getItem(STACK) ?? "[]");

// Send a change; the answer is the change that undoes it.
async function send(change, what) {
  const back = await post("/api/labels", change);
  sessionStorage.setItem(STACK, JSON.stringify([...stack(), { back, what }].slice(-100)));
  notify(what, { label: "Undo", run: () => undo().then(() => dispatchEvent(new Event("labelled"))) });
}

export async function undo() {
  const steps = stack();
  const last = steps.pop();
  if (!last) return notify("Nothing to undo."), null;
  await post("/api/labels", last.back);
  sessionStorage.setItem(STACK, JSON.stringify(steps));
  notify(`Undone: ${last.what}`);
  return Object.keys(last.back);
}

const fields = ({ kind, value, first_frame, last_frame, confidence, reason }) => ({ kind, value, first_frame, last_frame, confidence, reason });

export const label = (id, ...labels) =>
  send({ [id]: { add: labels } }, `Labelled: ${labels.map((one) => `${one.kind} ${one.value}`).join(", ")}.`);

export const removeLabel = (id, gone) => send({ [id]: { remove: [fields(gone)] } }, `Removed: ${gone.kind} ${gone.value}.`);

export async function toggleExcluded({ episode_id, excluded }) {
  if (excluded !== null) return send({ [episode_id]: { excluded: null } }, "Included again.");
  const reason = await choose("Why is it excluded?", null, "by hand");
  if (reason) await send({ [episode_id]: { excluded: reason } }, "Excluded; its data is kept.");
}

// Ask for a word: one of a list, or any text if there is no list. Resolves to null if the person cancels.
export function choose(title, words, given = "") {
  return new Promise((resolve) => {
    const list = words ? h("datalist", { id: "words" }, Object.entries(words).map(([word, meaning]) => h("option", { value: word }, meaning))) : null;
    const field = h("input", { value: given, list: words ? "words" : null, required: true, autocomplete: "off" });
    const meaning = h("p", { class: "soft" });
    field.addEventListener("input", () => (meaning.textContent = words?.[field.value] ?? ""));
    const dialog = h("dialog", { onclose: () => { resolve(dialog.returnValue === "ok" ? field.value.trim() : null); dialog.remove(); } },
      h("form", { method: "dialog" }, h("label", {}, title, field), list, meaning,
        h("div", { class: "row" }, h("button", { value: "ok" }, "Save"), h("button", { value: "", type: "button", onclick: () => dialog.close("") }, "Cancel"))));
    document.body.append(dialog);
    dialog.showModal();
    field.select();
  });
}

export const words = () => get("/api/words");
