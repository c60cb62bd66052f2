"""Freeze, list, show and compare dataset versions of a workspace, and write them as folders.

A dataset version is a named selection of episodes that never changes. `trace` finds the policies that were trained on a
version or an episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from twinloop.catalog import Workspace
from twinloop.catalog.dataset_versions import DatasetVersion, compare_versions
from twinloop.catalog.episode_lookup import MIN_PREFIX_LENGTH, resolve_episodes
from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.dataset.edit.writing import write_selection
from twinloop.workflows.data.requests import (
    DatasetsDiffRequest,
    DatasetsFreezeRequest,
    DatasetsLineageRequest,
    DatasetsListRequest,
    DatasetsMaterializeRequest,
    DatasetsShowRequest,
)
from twinloop.workflows.run.request import WorkspaceRequest

_SHOWN = 20
# The episodes of a dataset with their present rows in the catalog, those that are no longer indexed included.
_OF_DATASET = """
    FROM (SELECT unnest($ids) AS episode_id) l LEFT JOIN (
        SELECT *, row_number() OVER (PARTITION BY episode_id ORDER BY batch, episode_index) AS copy FROM places
    ) p ON p.episode_id = l.episode_id AND p.copy = 1
"""
_PARTS = {
    "source": "coalesce(source, 'not in the catalog')",
    "batch": "coalesce(batch, 'not in the catalog')",
    "task": "task",
    "robot": "robot_type",
    "twin": "coalesce(twin || ' ' || left(twin_hash, 12), 'none')",
    "success": "CASE WHEN success THEN 'yes' WHEN NOT success THEN 'no' ELSE 'not stated' END",
}


_R = TypeVar("_R", bound=WorkspaceRequest)
_T = TypeVar("_T")


def in_workspace(work: Callable[[_R, Workspace, Console], _T]) -> Callable[[_R, Console], _T]:
    """Decorate a command so that it receives the opened workspace of its request as an argument.

    The workspace is the requested one, or by default the nearest one upwards from the working folder.
    """

    @wraps(work)
    def opened(request: _R, console: Console) -> _T:
        with Workspace.open(request.workspace) as workspace:
            return work(request, workspace, console)

    return opened


@in_workspace
def freeze(request: DatasetsFreezeRequest, ws: Workspace, console: Console) -> dict[str, Any]:
    """Freeze the episodes that a SQL statement selects as a dataset version, and print their number."""
    found = ws.freeze(request.name, request.sql, request.note)
    state = "frozen" if found.new else "already has exactly these episodes"
    console.print(f"{found.reference} {state}: {len(found)} episodes, hash {found.hash[:16]}")
    return {"schema": 1, "verb": "datasets freeze", **found.to_json()}


@in_workspace
def overview(_: DatasetsListRequest, ws: Workspace, console: Console) -> dict[str, Any]:
    """Print every dataset version with the number of policies that were trained on it."""
    rows = ws.query(
        "SELECT d.name, d.version, d.hash, d.episodes, d.created, d.note, count(p.policy) AS policies FROM datasets d "
        "LEFT JOIN policy_datasets p ON p.dataset = d.hash GROUP BY ALL ORDER BY d.name, d.version"
    ).to_pylist()
    table = Table("dataset", "episodes", "hash", "frozen", "policies", "note", box=None, pad_edge=False)
    for row in rows:
        cells = (f"{row['name']}@{row['version']}", row["episodes"], row["hash"][:16], row["created"][:16])
        table.add_row(*map(str, (*cells, row["policies"], row["note"] or "")))
    console.print(table if rows else "No dataset is frozen. `twinloop datasets freeze NAME --sql …`")
    return {"schema": 1, "verb": "datasets list", "datasets": rows}


@in_workspace
def show(request: DatasetsShowRequest, ws: Workspace, console: Console) -> dict[str, Any]:
    """Print the composition of a dataset version, the SQL that selected it, and the policies trained on it."""
    found = ws.find_dataset_version(request.dataset)
    parts = {name: _count_groups(ws, found, expression) for name, expression in _PARTS.items()}
    totals = _compute_totals(ws, found)
    policies = ws.query(
        "SELECT p.policy, p.name FROM policy_datasets d JOIN policies p ON p.policy = d.policy WHERE d.dataset = ?",
        [found.hash],
    ).to_pylist()
    console.print(f"{found.reference}: {len(found)} episodes, {totals['frames']} frames, {totals['duration_s']:.0f} s")
    console.print(f"hash {found.hash}\nfrozen {found.created}{'; ' + found.note if found.note else ''}\n{found.sql}")
    for name, counts in parts.items():
        console.print(f"{name}: " + ", ".join(f"{row['value']} {row['episodes']}" for row in counts[:_SHOWN]))
    if totals["buried"]:
        console.print(f"{totals['buried']} of its episodes were excluded since.")
    console.print("policies: " + (", ".join(f"{row['name']} ({row['policy'][:12]})" for row in policies) or "none"))
    return {
        "schema": 1,
        "verb": "datasets show",
        **found.to_json(),
        **totals,
        "composition": {name: {row["value"]: row["episodes"] for row in counts} for name, counts in parts.items()},
        "policies": policies,
    }


@in_workspace
def compare(request: DatasetsDiffRequest, ws: Workspace, console: Console) -> dict[str, Any]:
    """Print the number of episodes that two dataset versions share, and the episodes that only one of them has."""
    found = compare_versions(ws, request.first, request.second)
    sides = ((found.first, found.only_first), (found.second, found.only_second))
    console.print(f"{found.both} episodes in both")
    for dataset, only in sides:
        console.print(f"{len(only)} only in {dataset.reference}" + (": " if only else ""))
        for name in only[:_SHOWN]:
            console.print(f"  {name[:16]}")
    return {
        "schema": 1,
        "verb": "datasets diff",
        "first": found.first.reference,
        "second": found.second.reference,
        "both": found.both,
        "only_first": list(found.only_first),
        "only_second": list(found.only_second),
    }


@in_workspace
def trace(request: DatasetsLineageRequest, ws: Workspace, console: Console) -> dict[str, Any]:
    """Print which episodes a policy was trained on, or which policies were trained on a dataset version or an episode.

    Raises:
        UnknownNameError: If no policy, dataset version or episode has the requested name.
        InputError: If several policies have the requested name.
    """
    policy = ws.query(
        "SELECT policy, name FROM policies WHERE policy = $word OR name = $word OR "
        "(len($word) >= 6 AND starts_with(policy, $word)) OR "
        "policy IN (SELECT v.policy FROM policy_versions v LEFT JOIN policy_aliases a "
        "ON a.policy = concat(v.name, '@', v.version) WHERE concat(v.name, '@', v.version) = $word "
        "OR concat(a.deployment, '/', a.alias) IN ($word, concat('main/', $word))) ORDER BY created DESC",
        {"word": request.what},
    ).to_pylist()
    if policy:
        return _trace_policy(ws, policy, request.what, console)
    try:
        dataset = ws.find_dataset_version(request.what)
    except UnknownNameError:
        return _trace_episode(ws, _resolve_episode(ws, request.what), console)
    rows = ws.query(
        "SELECT b.policy, p.name, nullif(b.base, b.policy) AS base FROM policy_datasets d JOIN policy_bases b ON "
        "b.base = d.policy JOIN policies p ON p.policy = b.policy WHERE d.dataset = ? ORDER BY ALL",
        [dataset.hash],
    ).to_pylist()
    console.print(f"{dataset.reference} trained {len(rows)} policies")
    for row in rows:
        console.print(
            f"  {row['name']} ({row['policy'][:12]})" + (f" through its base {row['base'][:12]}" if row["base"] else "")
        )
    return {"schema": 1, "verb": "datasets lineage", "dataset": dataset.to_json(), "policies": rows}


@in_workspace
def materialize(request: DatasetsMaterializeRequest, ws: Workspace, console: Console) -> dict[str, Any]:
    """Write exactly the episodes of a dataset version as one LeRobot v3.0 folder.

    Raises:
        DatasetError: If an episode is in no known folder, or the folders cannot be merged; see
            `dataset.edit.writing.write_selection`.
    """
    found = ws.find_dataset_version(request.dataset)
    how = {"codec": request.codec, "same_units": request.same_units, "common_features_only": request.common}
    made = write_selection(_locate_episodes(ws, found), request.output, **how)
    console.print(f"{found.reference}: {made.episodes} episodes, {made.frames} frames written to {request.output}")
    for note in made.notes:
        console.print(f"  {note}")
    return {
        "schema": 1,
        "verb": "datasets materialize",
        "dataset": found.reference,
        "hash": found.hash,
    } | made.to_json()


def _count_groups(ws: Workspace, found: DatasetVersion, expression: str) -> list[dict[str, Any]]:
    sql = f"SELECT {expression} AS value, count(*) AS episodes {_OF_DATASET} GROUP BY 1 ORDER BY 2 DESC, 1"
    return ws.query(sql, {"ids": list(found.episode_ids)}).to_pylist()


def _compute_totals(ws: Workspace, found: DatasetVersion) -> dict[str, Any]:
    sql = f"""
        SELECT CAST(coalesce(sum(frames), 0) AS BIGINT) AS frames, coalesce(sum(duration_s), 0.0) AS duration_s,
            (SELECT count(*) FROM tombstones WHERE episode_id IN (SELECT unnest($ids))) AS buried {_OF_DATASET}
    """  # noqa: S608
    return ws.query(sql, {"ids": list(found.episode_ids)}).to_pylist()[0]


def _trace_policy(ws: Workspace, rows: Sequence[Mapping[str, Any]], word: str, console: Console) -> dict[str, Any]:
    hashes = {row["policy"] for row in rows}
    if len(hashes) > 1:
        raise InputError(
            f"{word} names {len(hashes)} policies: {', '.join(sorted(h[:16] for h in hashes))}. Give the hash."
        )
    policy, name = rows[0]["policy"], rows[0]["name"]
    seen = ws.query(
        "SELECT dataset, base, via IS NOT NULL AS through_child, count(DISTINCT episode_id) AS episodes "
        "FROM policy_episodes WHERE policy = ? GROUP BY ALL ORDER BY ALL",
        [policy],
    ).to_pylist()
    total = ws.query("SELECT count(DISTINCT episode_id) AS n FROM policy_episodes WHERE policy = ?", [policy])
    count = total["n"][0].as_py()
    console.print(f"{name} ({policy[:12]}) was trained on {count} episodes")
    for row in seen:
        how = "that were sources of the dataset" if row["through_child"] else "of the dataset"
        base = f", through its base {row['base'][:12]}" if row["base"] else ""
        console.print(f"  {row['episodes']} {how} {row['dataset'][:16]}{base}")
    console.print("The view policy_episodes lists them: see `twinloop query`.")
    return {"schema": 1, "verb": "datasets lineage", "policy": policy, "name": name, "episodes": count, "seen": seen}


def _resolve_episode(ws: Workspace, word: str) -> str:
    """Return the id of the episode with this reference: the beginning of its id, or BATCH:INDEX.

    Raises:
        UnknownNameError: If there is no such episode. The message also suggests similar names of policies and datasets.
    """
    try:
        return resolve_episodes(ws, [word], include_excluded=True)[0]
    except InputError as error:
        if ":" in word or not (isinstance(error, UnknownNameError) or len(word) < MIN_PREFIX_LENGTH):
            raise
    rows = ws.query("SELECT name FROM policies UNION SELECT name FROM datasets").to_pylist()
    what = "policy, dataset version or episode"
    raise UnknownNameError(what, word, {row["name"] for row in rows}, where=str(ws.root))


def _trace_episode(ws: Workspace, episode: str, console: Console) -> dict[str, Any]:
    rows = ws.query(
        "SELECT policy, name, dataset, via, base FROM policy_episodes WHERE episode_id = ? ORDER BY ALL", [episode]
    ).to_pylist()
    datasets = ws.query(
        "SELECT name, version, hash FROM dataset_episodes WHERE episode_id = ? ORDER BY ALL", [episode]
    ).to_pylist()
    console.print(f"Episode {episode[:16]} is in {len(datasets)} dataset versions")
    console.print("  " + (", ".join(f"{row['name']}@{row['version']}" for row in datasets) or "none"))
    console.print(f"{len({row['policy'] for row in rows})} policies were trained on it")
    for row in rows:
        via = f" through {row['via'][:16]}, which was made from it" if row["via"] else ""
        base = f", through its base {row['base'][:12]}" if row["base"] else ""
        console.print(f"  {row['name']} ({row['policy'][:12]}){via}{base}")
    return {
        "schema": 1,
        "verb": "datasets lineage",
        "episode_id": episode,
        "datasets": datasets,
        "policies": rows,
    }


def _locate_episodes(ws: Workspace, found: DatasetVersion) -> list[tuple[Path, int]]:
    """Return the dataset folder and the episode index of each episode, in the order of the dataset version.

    If an episode is in several folders, the first folder that has not changed since it was added is used.

    Raises:
        DatasetError: If an episode is in no known folder, or all of its folders have changed.
    """
    rows = ws.query(
        "SELECT p.episode_id, p.batch, p.episode_index FROM places p JOIN (SELECT unnest($ids) AS episode_id) l "
        "ON l.episode_id = p.episode_id ORDER BY p.batch, p.episode_index",
        {"ids": list(found.episode_ids)},
    ).to_pylist()
    folders: dict[str, Path | DatasetError] = {}
    for batch in dict.fromkeys(row["batch"] for row in rows):
        try:
            folders[batch] = ws.folder(batch)
        except DatasetError as error:
            folders[batch] = error
    places, problem = dict[str, tuple[Path, int]](), dict[str, DatasetError]()
    for row in rows:
        folder = folders[row["batch"]]
        if isinstance(folder, DatasetError):
            problem[row["episode_id"]] = folder
        else:
            places.setdefault(row["episode_id"], (folder, row["episode_index"]))
    for name in found.episode_ids:
        if name not in places:
            nowhere = DatasetError(
                f"Episode {name[:16]} of {found.reference} is in no known folder. Add its dataset with `twinloop add`."
            )
            raise problem.get(name, nowhere)
    return [places[name] for name in found.episode_ids]
