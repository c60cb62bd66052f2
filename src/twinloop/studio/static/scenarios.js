// Stored failures, and what-if questions: change parameters of the world, and see which outcomes flip.

import { get, post } from "./api.js";
import { empty, fill, format, h, notify, start } from "./dom.js";
import { quote } from "./runs.js";
import { interval, strip, table } from "./table.js";

const TRIES = [4, 8, 16, 32];
const failed = ({ evidence }) => (evidence?.expected && "failures" in evidence.expected ? `${evidence.expected.failures} of ${evidence.expected.trials}` : "–");
const tasks = (name) => [start("scenario ablate", { NAME: name }, "find the cause"), " · ", start("scenario augment", { NAME: name }, "make data near it"), " · ", start("scenario regress", { NAME: name }, "try a policy")];

export async function showScenarios(page, { signal }) {
  const scenarios = await get("/api/scenarios", {}, signal);
  if (!scenarios.length) return fill(page, empty("No scenario yet", "A scenario is the world of one failure, stored so that it can be repeated and changed. Open a failed episode and choose “make a scenario”, or:", h("pre", {}, "twinloop scenario from-failure EPISODE")));
  fill(page, h("article", { class: "text-page" }, h("h1", {}, "Scenarios"),
    table(["scenario", "from", "twin", "failed", "why", "own parameters", ""], scenarios.map((one) => one.error ? [one.scenario, h("span", { class: "problem" }, one.error), "", "", "", "", ""]
      : [{ text: one.scenario, element: h("a", { href: `/scenarios/${encodeURIComponent(one.scenario)}` }, one.scenario) }, `${one.origin.source}, episode ${one.origin.episode}`, one.twin, failed(one), one.meaning || one.reason || "–", Object.keys(one.parameters).length,
        h("span", {}, tasks(one.scenario))]), { csv: "scenarios" })));
}

export async function showScenario(page, { words: [name], signal }) {
  const scenario = await get(`/api/scenarios/${encodeURIComponent(name)}`, {}, signal);
  const changes = new Map(); // parameter → value
  const line = h("code", {}), answer = h("div", { "aria-live": "polite" }), chosen = h("div", { class: "sliders" });
  const tries = h("select", { "aria-label": "Worlds", onchange: () => show() }, TRIES.map((count) => h("option", { selected: count === 8 }, count)));
  const policy = h("input", { "aria-label": "Policy", placeholder: "the stored one", autocomplete: "off", oninput: () => show() });
  const words = () => ["scenario", "counterfactual", name, ...[...changes].flatMap(([one, value]) => ["--change", `${one}=${Number(value.toPrecision(5))}`]), "--tries", tries.value, ...(policy.value.trim() ? ["--policy", policy.value.trim()] : [])];
  const show = () => (line.textContent = `twinloop ${words().map(quote).join(" ")}`);
  const row = (one) => {
    const value = h("output", { class: "number" }, format(one.value)), range = h("input", { type: "range", "aria-label": one.name, min: one.low, max: one.high, step: "any", value: one.value });
    const draw = () => { value.textContent = format(changes.get(one.name) ?? one.value); element.classList.toggle("changed", changes.has(one.name)); show(); };
    range.addEventListener("input", () => { changes.set(one.name, Number(range.value)); draw(); });
    const back = h("button", { class: "quiet", title: "As it was", "aria-label": `${one.name} as it was`, onclick: () => { changes.delete(one.name); range.value = one.value; draw(); } }, "×");
    const element = h("div", { class: "slider" }, h("code", {}, one.name), range, value, h("span", { class: "soft" }, `${one.unit} · was ${format(one.value)}, nominal ${format(one.nominal)}`), back);
    return element;
  };
  const others = scenario.world.filter((one) => !one.own);
  const add = h("select", { "aria-label": "Another parameter", onchange: () => { const one = others.find(({ name: other }) => other === add.value); if (one) { chosen.prepend(row(one)); add.selectedOptions[0].remove(); add.value = ""; } } },
    h("option", { value: "" }, "another parameter…"), others.map((one) => h("option", {}, one.name)));
  const ask = async (event) => {
    event.preventDefault();
    if (!changes.size) return notify("Move a slider first.");
    fill(answer, h("p", { class: "soft" }, "The worlds are simulated…"));
    try {
      drawAnswer(answer, await run([...words(), "--json"], signal));
    } catch (error) {
      if (!signal.aborted) fill(answer, h("p", { class: "problem", role: "alert" }, error.message));
    }
  };
  fill(chosen, scenario.world.filter((one) => one.own).map(row));
  fill(page, h("article", { class: "text-page" }, h("div", { class: "row title" }, h("a", { href: "/scenarios" }, "‹ scenarios"), h("h1", {}, name), h("span", { class: "soft" }, `${scenario.task} on ${scenario.twin} · ${scenario.meaning || scenario.reason || "no reason given"}`)),
    h("p", {}, `It failed in ${failed(scenario)} worlds like it. `, tasks(name)),
    h("h2", {}, "What if?"), h("form", { onsubmit: ask, noValidate: true }, h("div", { class: "row command" }, line, h("button", { class: "primary" }, "Try")),
      h("div", { class: "row" }, h("label", {}, "worlds ", tries), h("label", {}, "policy ", policy), add), answer, chosen)));
  show();
}

// Start a command, wait for its end, and return the JSON of its last line.
async function run(words, signal) {
  const { id } = await post("/api/jobs", words);
  for (;;) {
    const job = await get(`/api/jobs/${id}`, {}, signal);
    if (job.state === "ended" && job.exit !== null) {
      const last = job.log.trim().split("\n").findLast((one) => one.startsWith("{"));
      const made = last ? JSON.parse(last) : { message: job.log };
      if (made.contrasts) return made;
      throw new Error(made.message);
    }
    await new Promise((resolve) => setTimeout(resolve, 400));
    signal.throwIfAborted();
  }
}

function drawAnswer(answer, { base, contrasts }) {
  const rate = (one) => ({ estimate: one.success_rate, low: one.low, high: one.high });
  const before = { success_rate: 1 - base.failure_rate, low: 1 - base.high, high: 1 - base.low };
  const bar = (one) => h("div", {}, interval(rate(one)), strip({ ...rate(one), from: 0, to: 1 }));
  fill(answer, table(["change", "success", "each world", "flipped to success", "to failure", "difference"], [
    ["as it was", bar(before), drawWorlds(base.outcomes, base.outcomes), "", "", ""],
    ...contrasts.map((one) => [h("code", {}, `${one.change}${format(one.dose)}`), bar(one), drawWorlds(one.outcomes, base.outcomes), one.gained, one.lost, interval({ estimate: one.difference, low: one.difference_low, high: one.difference_high })])]),
    h("p", { class: "soft" }, "The worlds and their random numbers are the same in all rows, so a change of an outcome is due to the change of the parameter."));
}

// One square per world: green for a success, red for a failure, with a frame where the outcome flipped.
const drawWorlds = (outcomes, before) => h("span", { class: "worlds", role: "img", "aria-label": `${[...outcomes].filter((one) => one === "1").length} of ${outcomes.length} succeed` },
  [...outcomes].map((one, world) => h("i", { class: `${one === "1" ? "won" : "lost"}${one === before[world] ? "" : " flipped"}`, title: `world ${world}: ${one === "1" ? "success" : "failure"}` })));
