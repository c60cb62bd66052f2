// Commands in progress, and forms that start them.

import { get, getFloats, post } from "./api.js";
import { empty, fill, h, notify } from "./dom.js";
import { Plots } from "./plots.js";
import { quote } from "./runs.js";
import { View3d } from "./view3d.js";

const EVERY_MS = 1000;

const clock = (seconds) => {
  const all = Math.round(seconds);
  return `${Math.floor(all / 60)}:${String(all % 60).padStart(2, "0")}`;
};

function drawState(job) {
  if (job.state === "running") return h("span", { class: "chip good" }, "running");
  if (job.exit === 0) return h("span", { class: "chip" }, "done");
  if (job.exit === 1) return h("span", { class: "chip bad" }, "a check said no");
  if (job.exit === 130 || job.exit === -2) return h("span", { class: "chip warn" }, "stopped");
  return h("span", { class: "chip bad" }, job.exit === null ? "ended unseen" : `exit ${job.exit}`);
}

function drawProgress({ progress }) {
  if (!progress) return h("span", {});
  const share = progress.total ? progress.done / progress.total : null;
  return h("span", { class: "progress" }, h("progress", share === null ? {} : { value: share, max: 1 }),
    h("span", { class: "soft" }, [progress.label, progress.stage].filter(Boolean).join(", "), progress.total ? ` ${progress.done} of ${progress.total}` : "",
      progress.left_s !== null ? `, ${clock(progress.left_s)} left` : `, ${clock(progress.passed_s)} so far`));
}

// Call `draw` now and every second until the page is left.
async function repeat(draw, signal) {
  await draw();
  const timer = setInterval(() => draw().catch((error) => { if (!signal.aborted) notify(error.message); }), EVERY_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}

export async function showLive(page, { signal, go }) {
  const commands = await get("/api/commands", {}, signal);
  const list = h("div", { class: "rows" });
  fill(page, h("article", { class: "text-page wide" }, h("div", { class: "row" }, h("h1", {}, "Live"), h("span", { class: "grow" }), chooseCommand(commands, go)), list));
  await repeat(async () => {
    const jobs = await get("/api/jobs", {}, signal);
    fill(list, jobs.length ? jobs.map((job) => h("a", { class: "job", href: `/live/${job.id}` }, drawState(job), h("code", {}, `twinloop ${job.words.map(quote).join(" ")}`), drawProgress(job), h("span", { class: "soft number" }, job.started.slice(0, 16).replace("T", " "))))
      : empty("Nothing was started here yet", "Choose a command above. It runs in the folder of the workspace, and goes on if the studio ends."));
  }, signal);
}

function chooseCommand(commands, go) {
  const stages = [...new Set(commands.map((one) => one.stage))];
  return h("label", {}, "Start ", h("select", { "aria-label": "Command to start", onchange: (event) => event.target.value && go(`/start/${encodeURIComponent(event.target.value)}`) }, h("option", { value: "" }, "a command…"),
    stages.map((stage) => h("optgroup", { label: stage }, commands.filter((one) => one.stage === stage).map((one) => h("option", { value: one.name }, one.name))))));
}

export async function showJob(page, { words: [id], signal }) {
  const head = h("div"), robot = h("div", { class: "cameras" }), curves = h("div", { class: "plots" }), log = h("pre", { class: "log", "aria-label": "Log" });
  fill(page, h("article", { class: "text-page" }, h("div", { class: "row title" }, h("a", { href: "/live" }, "‹ live"), h("h1", {}, "Command")), head, robot, curves, log));
  let plots = null, drawn = "", twin = null;
  signal.addEventListener("abort", () => { plots?.close(); twin?.close(); });
  const stop = () => post(`/api/jobs/${id}/stop`, {}).then(() => notify("It stops at the next moment at which nothing is lost."), (error) => notify(error.message));
  let before = null;
  await repeat(async () => {
    const job = await get(`/api/jobs/${id}`, {}, signal);
    const now = JSON.stringify([job.state, job.exit, job.progress]);
    if (now !== before) {
      before = now;
      fill(head, h("div", { class: "row command" }, h("code", {}, `twinloop ${job.words.map(quote).join(" ")}`)),
        h("div", { class: "row" }, drawState(job), drawProgress(job), job.state === "running" ? h("button", { onclick: stop }, "Stop") : h("a", { href: "/runs" }, "recorded runs")));
    }
    const figures = JSON.stringify(job.figures);
    if (figures !== drawn) {
      drawn = figures;
      if (twin !== false && Object.keys(job.figures).some((name) => name.startsWith("measured/"))) {
        twin ??= await openTwin(robot, signal);
        if (!twin) return;
        const poses = await getFloats(`/api/jobs/${id}/poses`, signal), size = poses.length / 2;
        twin.setLayer(1, poses.subarray(size), true);
        twin.setLayer(0, poses.subarray(0, size));
      }
      plots?.close();
      plots = drawFigures(job.figures);
      fill(curves, plots?.element);
      plots?.draw();
    }
    if (log.textContent !== job.log) {
      const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
      log.textContent = job.log;
      if (atEnd) log.scrollTop = log.scrollHeight;
    }
  }, signal);
}

// The workspace's twin, which moves as the robot does; a pale copy shows the commands.
async function openTwin(place, signal) {
  let scene, view;
  try {
    scene = await get("/api/robot", {}, signal);
    view = new View3d(scene);
  } catch (error) {
    fill(place, h("p", { class: "soft" }, error.message));
    return false;
  }
  fill(place, h("figure", {}, view.canvas, h("figcaption", {}, h("span", {}, "measured joints; pale: commanded"), h("span", {}, scene.twin))));
  return view;
}

// The figures that a command reported so far, over its steps.
function drawFigures(figures) {
  const names = Object.keys(figures);
  if (!names.length) return null;
  const frames = Math.max(...names.map((name) => figures[name].values.length));
  const channels = names.filter((name) => !name.startsWith("commanded/")).map((name) => {
    const commanded = figures[name.replace("measured/", "commanded/")], robot = name.startsWith("measured/");
    const lines = [{ label: robot ? "measured" : "", values: figures[name].values }];
    if (robot && commanded) lines.push({ label: "commanded", values: commanded.values, dashed: true });
    return { group: robot ? "joints" : "figures so far", title: name.replace("measured/", ""), unit: robot ? "rad or m" : `up to step ${figures[name].steps.at(-1)}`, lines };
  });
  const plots = new Plots({ frames, fps: 1, channels, bands: [], seek: (frame) => plots.moveCursor(frame) });
  plots.cursor = frames - 1;
  return plots;
}

export async function showForm(page, { words: [name], signal, go }) {
  const command = (await get("/api/commands", {}, signal)).find((one) => one.name === name);
  if (!command) throw new Error(`There is no command ${name} that can be started here.`);
  const given = new URLSearchParams(location.search); // values that another page proposes
  const line = h("code", {}), fields = command.fields.map((field) => ({ field, input: drawInput(field, given.get(field.flag ?? field.label)) }));
  const collect = () => [...command.name.split(" "), ...fields.flatMap(({ field, input }) => toWords(field, input))];
  const show = () => (line.textContent = `twinloop ${collect().map(quote).join(" ")}`);
  const start = async (event) => {
    event.preventDefault();
    try {
      go(`/live/${(await post("/api/jobs", collect())).id}`);
    } catch (error) {
      notify(error.message);
    }
  };
  const rows = (chosen) => fields.filter(({ field }) => chosen(field)).map(({ field, input }) => h("label", { class: "field" },
    h("span", {}, field.flag ?? field.label, field.required ? h("b", { title: "required" }, " *") : null), input, h("span", { class: "soft" }, field.help)));
  const main = (field) => field.required || field.flag === null || given.has(field.flag) || ["--output", "--data", "--twin"].includes(field.flag);
  fill(page, h("article", { class: "text-page" }, h("div", { class: "row title" }, h("a", { href: "/live" }, "‹ live"), h("h1", {}, command.name)), h("p", { class: "soft" }, command.summary),
    h("form", { oninput: show, onsubmit: start }, h("div", { class: "row command" }, line, h("button", { type: "button", onclick: () => navigator.clipboard.writeText(line.textContent).then(() => notify("Copied."), () => notify("The browser does not allow copying.")) }, "Copy"), h("button", { class: "primary" }, "Start")),
      rows(main), h("details", {}, h("summary", {}, "More options"), rows((field) => !main(field))))));
  show();
}

function drawInput(field, value) {
  const label = { "aria-label": field.flag ?? field.label };
  if (field.kind === "flag") return h("input", { type: "checkbox", checked: value === "yes", ...label });
  if (field.kind === "choice") return h("select", label, field.required ? null : h("option", { value: "" }, field.default === null ? "" : `${field.default} (default)`), field.choices.map((one) => h("option", { selected: one === value }, one)));
  if (value?.includes("\n")) return h("textarea", { ...label, rows: value.split("\n").length, spellcheck: false }, value); // an SQL comment ends with its line
  const given = field.default === null || (Array.isArray(field.default) && !field.default.length) ? "" : [field.default].flat().join(" ");
  return h("input", { ...label, required: field.required, value, placeholder: field.several ? `${given} (several, separated by spaces)` : given, inputMode: { integer: "numeric", number: "decimal" }[field.kind] ?? "text", autocomplete: "off", spellcheck: false });
}

// The words of a flag; several values are separated by spaces, and quotes keep spaces within one.
function toWords(field, input) {
  if (field.kind === "flag") return input.checked ? [field.flag] : [];
  const text = input.value.trim();
  if (!text) return [];
  const values = field.several ? [...text.matchAll(/"([^"]*)"|'([^']*)'|(\S+)/g)].map(([, a, b, c]) => a ?? b ?? c) : [text];
  if (field.flag === null) return values;
  return values.length === 1 && values[0].startsWith("-") ? [`${field.flag}=${values[0]}`] : [field.flag, ...values];
}
