"""Describe what was decided: quality and labels, dataset versions, policies with their success, and releases."""

from __future__ import annotations

from typing import Any

from twinloop.catalog import audit
from twinloop.core.errors import UnknownNameError
from twinloop.stats.proportion import clopper_pearson
from twinloop.studio.data import StudioData, parse_recorded
from twinloop.studio.episode_list import LABELLED, OUTCOME, describe_episodes

_VERSIONS = "SELECT name, version, hash, sql, episodes, created, note FROM datasets ORDER BY name, version DESC"
_CONTENT = """
    SELECT d.name, d.version, e.source, coalesce(sum(e.duration_s), 0) AS duration_s, count(*) AS n,
        count(*) FILTER (e.success) AS succeeded
    FROM dataset_episodes d JOIN (SELECT DISTINCT ON (episode_id) * FROM places) e USING (episode_id) GROUP BY ALL"""
_DIFFERENCE = """
    WITH a AS (SELECT episode_id FROM dataset_episodes WHERE name = $a AND version = $av),
        b AS (SELECT episode_id FROM dataset_episodes WHERE name = $b AND version = $bv)
    SELECT 'added' AS change, episode_id FROM b ANTI JOIN a USING (episode_id)
    UNION ALL SELECT 'removed', episode_id FROM a ANTI JOIN b USING (episode_id) ORDER BY 1, 2"""


_CHECKS = """
    SELECT "check", count(DISTINCT episode_id) AS episodes,
        count(DISTINCT episode_id) FILTER (verdict = 'bad') AS bad,
        count(DISTINCT episode_id) FILTER (verdict = 'suspect') AS suspect,
        count(DISTINCT episode_id) FILTER (verdict = 'unknown') AS undecided,
        any_value(reason) FILTER (verdict IN ('bad', 'suspect')) AS example
    FROM scores GROUP BY 1 ORDER BY bad DESC, suspect DESC, 1"""
_SAID = """
    SELECT kind, value, source, count(*) AS labels, count(DISTINCT episode_id) AS episodes,
        count(DISTINCT author) AS authors
    FROM labels GROUP BY ALL ORDER BY kind, labels DESC, value LIMIT 500"""
_CONFLICTS = "SELECT kind, count(*) AS episodes FROM consensus WHERE conflict IS NOT NULL GROUP BY 1 ORDER BY 1"


def describe_quality(data: StudioData) -> dict[str, Any]:
    """Return the findings by check, the labels by kind, value and source, and the kinds with contradicting labels."""
    return {"checks": data.rows(_CHECKS), "labels": data.rows(_SAID), "conflicts": data.rows(_CONFLICTS)}


def list_datasets(data: StudioData) -> list[dict[str, Any]]:
    """Return all dataset versions, with the number, duration and successes of their episodes by source."""
    content: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in data.rows(_CONTENT):
        content.setdefault((row.pop("name"), row.pop("version")), []).append(row)
    return [{**row, "content": content.get((row["name"], row["version"]), [])} for row in data.rows(_VERSIONS)]


def compare_datasets(data: StudioData, one: str, other: str) -> dict[str, Any]:
    """Return the ids of the episodes that were added and removed from one dataset version to another.

    Args:
        data: the workspace.
        one: the earlier version, as NAME@VERSION.
        other: the later version.

    Raises:
        UnknownNameError: If there is no such version.
    """
    (a, av), (b, bv) = (_find_dataset(data, text) for text in (one, other))
    rows = data.rows(_DIFFERENCE, {"a": a, "av": av, "b": b, "bv": bv}, most=1_000_000)
    changes = {kind: [row["episode_id"] for row in rows if row["change"] == kind] for kind in ("added", "removed")}
    return {"one": one, "other": other, **changes}


def _find_dataset(data: StudioData, text: str) -> tuple[str, int]:
    known = {f"{row['name']}@{row['version']}": (row["name"], row["version"]) for row in data.rows(_VERSIONS)}
    if text not in known:
        raise UnknownNameError("dataset version", text, known, where=str(data.workspace.root))
    return known[text]


_POLICIES = "SELECT policy, name, base, created, extra FROM policies ORDER BY created DESC"
_TRAINED = "SELECT policy, dataset, said FROM policy_datasets"
_RATES = """
    SELECT policy, suite, coalesce(condition, '') AS condition, source, count(*) AS n,
        count(*) FILTER (success) AS succeeded
    FROM latest_evaluations WHERE success IS NOT NULL GROUP BY ALL ORDER BY policy, suite, condition"""


_OUTCOMES = (
    "SELECT coalesce(condition, '') AS condition, trial, success FROM latest_evaluations "
    "WHERE policy = ? AND suite = ? AND success IS NOT NULL ORDER BY ALL"
)
# Recorded episodes in which a policy failed, with its hash if it is known. People's labels decide, then the task's own
# success condition, then the trial.
_FAILURES = f"""
    SELECT e.episode_id, coalesce(v.policy, nullif(json_extract_string(if(json_valid(e.extra), e.extra, NULL),
        '$.run.policy_hash'), ''), substr(e.actor, 8)) AS policy
    FROM episodes e LEFT JOIN {LABELLED} USING (episode_id)
        LEFT JOIN (SELECT episode_id, any_value(policy) AS policy, bool_and(success) AS success
            FROM latest_evaluations GROUP BY 1) v USING (episode_id)
    WHERE (v.policy IS NOT NULL OR e.actor LIKE 'policy:%')
        AND if({OUTCOME} = 'unknown', NOT v.success, {OUTCOME} = 'no')
    ORDER BY e.batch DESC, e.episode_index DESC LIMIT 24"""  # noqa: S608 - ours


def list_policies(data: StudioData) -> dict[str, Any]:
    """Return the trained policies, the success rate of each by suite and condition, and recorded failures.

    Rates have exact 95 % intervals (Clopper–Pearson). At most 24 failures are returned, those of the last batches.
    """
    rates = [{**row, "rate": clopper_pearson(row["succeeded"], row["n"]).to_json()} for row in data.rows(_RATES)]
    actors = {row["episode_id"]: row["policy"] for row in data.rows(_FAILURES)}
    failures = [{**row, "policy": actors[row["episode_id"]]} for row in describe_episodes(data, list(actors))]
    return {"policies": data.rows(_POLICIES), "trained": data.rows(_TRAINED), "rates": rates, "failures": failures}


def compare_policies(data: StudioData, a: str, b: str, suite: str) -> dict[str, Any]:
    """Compare two policies on the trials of a suite that both ran; see `evaluate.comparison.compare_shared`.

    Raises:
        InputError: If no trial was run by both.
    """
    from twinloop.evaluate.comparison import compare_shared  # takes seconds

    sides = []
    for policy in (a, b):
        rows = data.rows(_OUTCOMES, [policy, suite], most=1_000_000)
        sides.append({(row["condition"], row["trial"]): row["success"] for row in rows})
    known = {row["policy"]: row["name"] for row in data.rows(_POLICIES)}
    names = known.get(a, a[:12]), known.get(b, b[:12])
    compared = compare_shared(*sides, names=names, suite=suite)
    return {name: value for name, value in compared.to_json().items() if name != "test"}


_RELEASES = {
    "aliases": "SELECT deployment, alias, policy, since FROM policy_aliases ORDER BY deployment, alias",
    "versions": "SELECT name, version, hash, policy, added, added_by FROM policy_versions ORDER BY added DESC",
    "stages": "SELECT deployment, policy, champion, stage, since, reason FROM release_stages ORDER BY since DESC",
    "decisions": 'SELECT decision, deployment, candidate, champion, passed, looks, "at", record FROM gate_decisions '
    'ORDER BY "at" DESC LIMIT 100',
    "canary": "SELECT deployment, policy, stage, arm, count(*) AS n, count(*) FILTER (success = 1) AS succeeded, "
    "sum(violations) AS violations FROM release_episodes GROUP BY ALL ORDER BY ALL",
}


_CHECKED = ("data", "episodes", "alarmed", "low", "high", "promised", "causes", "course")


def describe_releases(data: StudioData) -> dict[str, Any]:
    """Return aliases, versions, stages, decisions of the gate, canary episodes, and checks of the monitor.

    The audit log comes with its faults.
    """
    state, root = data.workspace.state, data.workspace.root
    found: dict[str, Any] = {name: data.rows(sql) for name, sql in _RELEASES.items()}
    for row in found["decisions"]:
        row["record"] = parse_recorded(row["record"], {})
    head = audit.compare_head_file(root, state)
    entries = [entry.to_json() for entry in audit.read_entries(state)]
    found["monitor"] = [
        {"run_id": row["run_id"], "at": row["started"], **{name: result.get(name) for name in _CHECKED}}
        for row, result in data.results("monitor")
        if result.get("alarmed") is not None
    ]
    return {**found, "audit": entries[::-1], "faults": audit.find_chain_faults(state) + ([head] if head else [])}
