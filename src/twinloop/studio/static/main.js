// Show the page that belongs to the address, and follow links without loading the studio again.

import { get } from "./api.js";
import { empty, fill, h, isTyped } from "./dom.js";
import { showDatasets, showPolicies, showQuality, showReleases } from "./decisions.js";
import { showEpisode } from "./episode.js";
import { showComparison } from "./compare.js";
import { showCoverage } from "./coverage.js";
import { showGap, showParameters } from "./gap.js";
import { showEpisodes } from "./episodes.js";
import { openHelp } from "./help.js";
import { showForm, showJob, showLive } from "./jobs.js";
import { showScenario, showScenarios } from "./scenarios.js";
import { showRun, showRuns } from "./runs.js";

const PAGES = [
  { path: /^\/(episodes)?$/, show: showEpisodes, title: "Episodes" },
  { path: /^\/episodes\/([^/]+)$/, show: showEpisode, title: "Episode" },
  { path: /^\/compare$/, show: showComparison, title: "Two episodes" },
  { path: /^\/gap$/, show: showGap, title: "Gap" },
  { path: /^\/coverage$/, show: showCoverage, title: "Coverage" },
  { path: /^\/parameters$/, show: showParameters, title: "Parameters" },
  { path: /^\/quality$/, show: showQuality, title: "Quality" },
  { path: /^\/datasets$/, show: showDatasets, title: "Datasets" },
  { path: /^\/policies$/, show: showPolicies, title: "Policies" },
  { path: /^\/releases$/, show: showReleases, title: "Releases" },
  { path: /^\/scenarios$/, show: showScenarios, title: "Scenarios" },
  { path: /^\/scenarios\/([^/]+)$/, show: showScenario, title: "Scenario" },
  { path: /^\/live$/, show: showLive, title: "Live" },
  { path: /^\/live\/([^/]+)$/, show: showJob, title: "Command" },
  { path: /^\/start\/([^/]+)$/, show: showForm, title: "Start" },
  { path: /^\/runs$/, show: showRuns, title: "Runs" },
  { path: /^\/runs\/([^/]+)$/, show: showRun, title: "Run" },
];
const LINKS = [["Episodes", "/episodes"], ["Gap", "/gap"], ["Parameters", "/parameters"], ["Coverage", "/coverage"], ["Quality", "/quality"], ["Datasets", "/datasets"], ["Policies", "/policies"], ["Releases", "/releases"], ["Scenarios", "/scenarios"], ["Runs", "/runs"], ["Live", "/live"]];

let leave = null;
let about = {};

export function go(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  show();
}

async function show() {
  const page = document.getElementById("page");
  leave?.();
  leave = null;
  const found = PAGES.map((one) => ({ ...one, match: one.path.exec(location.pathname) })).find((one) => one.match);
  drawBar();
  document.title = `${found ? found.title : "Unknown page"} · ${about.name ?? "twinloop"}`;
  if (!found) {
    fill(page, empty("No such page", `The studio has no page ${location.pathname}.`, h("a", { href: "/episodes" }, "All episodes")));
    return;
  }
  const stopped = new AbortController();
  leave = () => stopped.abort();
  try {
    await found.show(page, { words: found.match.slice(1).map(decodeURIComponent), go, signal: stopped.signal, about });
  } catch (error) {
    if (stopped.signal.aborted) return;
    fill(page, empty("This page cannot be shown", error.message));
  }
}

function drawBar() {
  fill(
    document.getElementById("bar"),
    h("a", { class: "name", href: "/episodes", title: about.folder }, about.name ?? "twinloop"),
    h("nav", { "aria-label": "Pages" }, LINKS.map(([label, path]) =>
      h("a", { href: path, "aria-current": location.pathname.startsWith(path) || (location.pathname === "/" && path === "/episodes") ? "page" : null }, label))),
    h("button", { class: "quiet", title: "Keys (?)", onclick: openHelp }, "?"),
  );
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='/']");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  if (link.hasAttribute("download") || link.target || link.pathname.startsWith("/api/")) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
document.addEventListener("keydown", (event) => {
  if (event.key === "?" && !isTyped(event)) openHelp();
});
addEventListener("popstate", show);

about = await get("/api/about").catch((error) => ({ name: "twinloop", problem: error.message }));
await show();
