// Quality and labels, dataset versions and their differences, policies with their success, and releases.

import { get } from "./api.js";
import { filmStrip } from "./clips.js";
import { empty, fill, format, h, start } from "./dom.js";
import { day, strip, table } from "./table.js";

const short = (hash) => h("code", { title: hash }, hash.slice(0, 12));
const percent = (rate) => `${(100 * rate.estimate).toFixed(0)} % [${(100 * rate.low).toFixed(0)}, ${(100 * rate.high).toFixed(0)}]`;

// A success rate with its interval as a bar from 0 to 100 %.
const bar = (rate) => strip({ ...rate, from: 0, to: 1, title: `${percent(rate)}, exact 95 %` });

const episodesOf = (sql) => `/episodes?${new URLSearchParams({ sql })}`;

const text = (value) => `'${value.replaceAll("'", "''")}'`;

export async function showQuality(page, { signal }) {
  const { checks, labels, conflicts } = await get("/api/quality", {}, signal);
  if (!checks.length && !labels.length) return fill(page, empty("Nothing is checked or labelled yet", "The checks of physics, recording and demonstration score every episode:", h("pre", {}, "twinloop curate"), h("a", { href: "/start/curate" }, "Start it here")));
  const link = (count, sql) => (count ? { text: count, element: h("a", { href: episodesOf(sql) }, count.toLocaleString("en")) } : "");
  const found = (check, verdict) => `SELECT DISTINCT episode_id FROM scores WHERE "check" = ${text(check)} AND verdict = '${verdict}'`;
  fill(page, h("article", { class: "text-page" }, h("h1", {}, "Quality"),
    checks.length ? [h("h2", {}, "Checks"), table(["check", "episodes", "bad", "suspect", "cannot decide", "such as"], checks.map((one) => [one.check, one.episodes, link(one.bad, found(one.check, "bad")), link(one.suspect, found(one.check, "suspect")), link(one.undecided, found(one.check, "unknown")), one.example ?? ""]), { csv: "checks" })] : null,
    conflicts.length ? [h("h2", {}, "Contradicting labels"), table(["kind", "episodes"], conflicts.map((one) => [one.kind, link(one.episodes, `SELECT episode_id FROM consensus WHERE kind = ${text(one.kind)} AND conflict IS NOT NULL`)]))] : null,
    labels.length ? [h("h2", {}, "Labels"), table(["kind", "value", "source", "labels", "episodes", "people or rules"], labels.map((one) => [one.kind, one.value, one.source, one.labels, link(one.episodes, `SELECT DISTINCT episode_id FROM labels WHERE kind = ${text(one.kind)} AND value = ${text(one.value)}`), one.authors]), { csv: "labels" })] : null));
}

export async function showDatasets(page, { signal }) {
  const [versions, query] = [await get("/api/datasets", {}, signal), new URLSearchParams(location.search)];
  if (!versions.length) return fill(page, empty("No dataset version yet", "A version is a list of episodes that never changes, so that a training can be repeated:",
    h("pre", {}, 'twinloop datasets freeze good --sql "SELECT episode_id FROM episodes WHERE success"')));
  const names = versions.map((one) => `${one.name}@${one.version}`);
  const [one, other] = [query.get("one") ?? names[1] ?? names[0], query.get("other") ?? names[0]];
  const choose = (name, chosen) => h("select", { name, "aria-label": name === "one" ? "Earlier version" : "Later version", onchange: (event) => event.target.form.requestSubmit() }, names.map((text) => h("option", { value: text, selected: text === chosen }, text)));
  const difference = names.length > 1 ? await get("/api/datasets/difference", { one, other }, signal) : null;
  const listed = (ids) => ids.length ? h("a", { href: episodesOf(`SELECT episode_id FROM (VALUES ${ids.slice(0, 2000).map((id) => `('${id}')`).join(", ")}) v(episode_id)`) }, ids.length) : "0";
  fill(page, h("article", { class: "text-page" }, h("h1", {}, "Dataset versions"),
    table(["version", "episodes", "content", "frozen", "note", "hash"], versions.map((row) => [
      h("a", { href: episodesOf(`SELECT episode_id FROM dataset_episodes WHERE name = '${row.name.replaceAll("'", "''")}' AND version = ${row.version}`) }, `${row.name}@${row.version}`),
      row.episodes, row.content.map((part) => h("div", {}, `${part.source}: ${part.n}, ${(part.duration_s / 60).toFixed(1)} min, ${part.succeeded} successes`)), day(row.created), row.note ?? "", h("details", {}, h("summary", {}, short(row.hash)), h("pre", {}, row.sql))])),
    difference ? [h("h2", {}, "Difference"), h("form", { class: "row", onsubmit: go }, "from", choose("one", one), "to", choose("other", other),
      h("span", {}, "added ", listed(difference.added), " · removed ", listed(difference.removed)))] : null));
}

function go(event) {
  event.preventDefault();
  history.pushState(null, "", `${location.pathname}?${new URLSearchParams(new FormData(event.target))}`);
  dispatchEvent(new PopStateEvent("popstate"));
}

export async function showPolicies(page, { signal }) {
  const { policies, trained, rates, failures } = await get("/api/policies", {}, signal);
  const query = new URLSearchParams(location.search);
  if (!policies.length && !rates.length && !failures.length) return fill(page, empty("No policy yet", "Train one from a dataset version, then evaluate it:", h("pre", {}, "twinloop train good@1 --output policies/first\ntwinloop evaluate policies/first --suite randomized")));
  const name = (hash) => policies.find((one) => one.policy === hash)?.name ?? hash.slice(0, 12);
  const suites = [...new Set(rates.map((one) => one.suite))];
  const suite = query.get("suite") ?? suites[0];
  const tried = [...new Set(rates.filter((one) => one.suite === suite).map((one) => one.policy))];
  const [a, b] = [query.get("a") ?? tried[0], query.get("b") ?? tried[1] ?? tried[0]];
  const compared = tried.length > 1 && a !== b ? await get("/api/policies/comparison", { a, b, suite }, signal).catch((error) => signal.aborted ? Promise.reject(error) : { words: error.message }) : null;
  const choose = (field, values, chosen, text) => h("select", { name: field, "aria-label": field, onchange: (event) => event.target.form.requestSubmit() }, values.map((value) => h("option", { value, selected: value === chosen }, text(value))));
  fill(page, h("article", { class: "text-page" }, h("h1", {}, "Policies"),
    policies.length ? table(["policy", "trained on", "continued from", "recorded", "hash"], policies.map((row) => [h("b", {}, row.name),
      trained.filter((one) => one.policy === row.policy).map((one) => one.said).join(", ") || "simulated worlds", row.base ? name(row.base) : "", day(row.created), short(row.policy)])) : null,
    suites.length ? [h("h2", {}, "Success"), h("form", { class: "row", onsubmit: go }, "suite", choose("suite", suites, suite, String), tried.length > 1 ? ["compare", choose("a", tried, a, name), "with", choose("b", tried, b, name)] : null),
      compared ? h("p", { class: "answer" }, compared.words) : null,
      table(["policy", "slice", "", "rate, exact 95 %", "trials"], rates.filter((one) => one.suite === suite).map((one) => [name(one.policy), one.condition || "all", bar(one.rate), percent(one.rate), `${one.succeeded} of ${one.n} ${one.source}`]))]
      : h("p", { class: "soft" }, "None is evaluated yet: ", h("code", {}, "twinloop evaluate POLICY --suite randomized")),
    h("h2", {}, "Failures"), failures.length ? failures.map((row) => drawFailure(row, name(row.policy), signal)) : h("p", { class: "soft" }, "No failure of a policy is recorded. ", h("code", {}, "twinloop run"), " records every trial on a robot, real or virtual.")));
}

const drawFailure = (row, policy, signal) => h("div", {}, h("a", { class: "failure", href: `/episodes/${row.episode_id}` }, filmStrip(row, signal),
  h("b", {}, policy), h("span", { class: "soft" }, ` · ${row.batch} · episode ${row.episode_index} · ${row.duration_s.toFixed(1)} s · ${row.source}`)), " ",
  start("scenario from-failure", { EPISODE: `${row.batch}:${row.episode_index}` }, "make a scenario"));

const VERDICTS = { yes: "good", no: "bad", missing: "bad", waived: "warn", none: "" };

export async function showReleases(page, { signal }) {
  const found = await get("/api/releases", {}, signal);
  if (!found.versions.length) return fill(page, empty("No policy is released yet", "Add a policy to the registry, test it, and promote it:", h("pre", {}, "twinloop policies add policies/first\ntwinloop gate candidate.yaml\ntwinloop promote candidate")));
  fill(page, h("article", { class: "text-page" }, h("h1", {}, "Releases"),
    found.faults.length ? h("p", { class: "problem", role: "alert" }, found.faults.join(" ")) : h("p", { class: "soft" }, `The audit log of ${found.audit.length} entries is intact.`),
    h("h2", {}, "Now"), table(["deployment", "alias", "policy", "since"], found.aliases.map((row) => [row.deployment, row.alias, h("b", {}, row.policy), day(row.since)])),
    found.stages.length ? [h("h2", {}, "Stages"), table(["policy", "stage", "beside", "since", "reason"], found.stages.map((row) => [row.policy, h("span", { class: `chip ${{ champion: "good", aborted: "bad", "rolled back": "bad" }[row.stage] ?? ""}` }, row.stage), row.champion ?? "", day(row.since), row.reason ?? ""]))] : null,
    found.canary.length ? [h("h2", {}, "Canary and shadow"), table(["policy", "stage", "acting", "successes", "broken limits"], found.canary.map((row) => [row.policy, row.stage, row.arm, `${row.succeeded} of ${row.n}`, row.violations]))] : null,
    found.monitor.length ? [h("h2", {}, "Monitor"), table(["when", "episodes", "with an alarm", "expected without a fault", "likely causes", "drift"], found.monitor.map(drawCheck))] : null,
    h("h2", {}, "Decisions of the gate"), found.decisions.length ? found.decisions.map(drawDecision) : h("p", { class: "soft" }, "None yet: ", h("code", {}, "twinloop gate candidate.yaml")),
    h("h2", {}, "Audit log"), table(["entry", "when", "who", "action", "policy", "reason"], found.audit.map((row) => [row.seq, day(row.at), row.who, row.action, row.policy, row.details.reason ?? ""]))));
}

function drawCheck(row) {
  const share = { estimate: row.alarmed / row.episodes, low: row.low, high: row.high };
  return [h("a", { href: `/runs/${row.run_id}` }, day(row.at)), row.episodes, h("div", {}, `${row.alarmed}: ${percent(share)}`, strip({ ...share, mark: row.promised, from: 0, to: 1 })), `${100 * row.promised} %`,
    Object.entries(row.causes ?? {}).map(([cause, count]) => h("div", {}, `${cause}: ${count}`)), (row.course ?? []).join(" ")];
}

function drawDecision(row) {
  return h("details", { class: "decision" }, h("summary", {}, h("span", { class: `chip ${row.passed ? "good" : "bad"}` }, row.passed ? "passed" : "refused"), " ", h("b", {}, row.candidate),
    row.champion ? ` against ${row.champion}` : "", h("span", { class: "soft" }, ` · ${day(row.at)} · ${row.deployment}`)),
    table(["rule", "verdict", "asked", "found"], (row.record.rules ?? []).map((rule) => [rule.rule, h("span", { class: `chip ${VERDICTS[rule.verdict] ?? ""}` }, rule.verdict), rule.asked, rule.reason])));
}
