"""Measure queries and commits of a catalog of 200,000 episodes: ``python -m benchmarks.speed.catalog``.

The episodes are synthetic, but are committed like those of real datasets: 20 batches, 30 drawn parameters each,
verdicts of three checks, labels of a person and of a rule, two policies. Times are wall-clock times. The queries are
those of `twinloop.catalog.reference`, each the median of seven runs after a first one. ``processor_ms`` is the smallest
CPU time of a query over all threads; on a busy machine it is more reliable than the wall-clock time.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from twinloop.catalog import Workspace
from twinloop.catalog.adding import BatchCommit
from twinloop.catalog.episode_rows import EpisodeTableRows
from twinloop.catalog.reference import EXAMPLE_QUERIES
from twinloop.catalog.schema import EPISODES, PARAMS
from twinloop.catalog.state import now

EPISODES_TARGET, BATCHES, DRAWN, PER_COMMIT = 200_000, 20, 30, 64
REPEATS = 7
FRAMES, BLOCK_FRAMES, STATISTICS_TARGET_MB = 10_000_000, 250_000, 1_000
OPEN_TARGET_S, QUERY_TARGET_S = 1.0, 0.1
NAMES = ["geom/table/friction/slide", *(f"joint/joint_{i}/damping" for i in range(DRAWN - 1))]
TASKS = [f"put the {thing} into the box" for thing in ("cube", "ball", "cup", "can", "brush")]
CHECKS = ("physics/torque", "recording/dropped_frames", "demonstration/smoothness")


def run(episodes: int = EPISODES_TARGET) -> dict[str, Any]:
    """Build two catalogs, time both, and return the metrics."""
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small", Path(folder) / "large"
        began = time.perf_counter()
        build(small, 1_000, batches=1)
        build(large, episodes, batches=BATCHES)
        built = time.perf_counter() - began
        size = sum(path.stat().st_size for path in (large / "catalog").rglob("*") if path.is_file())
        return {
            "episodes": episodes,
            "built_s": built,
            "catalog_mb": size / 1e6,
            "open_target_s": OPEN_TARGET_S,
            "query_target_s": QUERY_TARGET_S,
            **_run_step("ask", large),
            "commit_ms": commits(small, large),
            "statistics": _run_step("stream", Path(folder) / "frames"),
            "statistics_target_mb": STATISTICS_TARGET_MB,
        }


def build(root: Path, episodes: int, *, batches: int) -> None:
    """Create a workspace of synthetic episodes."""
    per = episodes // batches
    with Workspace.create(root) as ws:
        ids: list[str] = []
        for number in range(batches):
            rows = synthetic_episodes(f"batch-{number:03d}", per, seed=number)
            commit(ws, f"batch-{number:03d}", rows)
            ids += rows.episodes["episode_id"].to_pylist()
        stamp = datetime.datetime.now(datetime.UTC)
        runs = [ws.record_run("curate", None, {}, stamp, stamp, []) for _ in range(3)]
        # A tenth of the episodes is not scored yet; a tenth of the rest was scored twice.
        scored = ids[: int(len(ids) * 0.9)]
        for check in CHECKS:
            ws.append("scores", verdicts(scored, check, seed=1), run_id=runs[0])
            ws.append("scores", verdicts(scored[::10], check, seed=2), run_id=runs[1])
        ws.append("evaluations", trials(ids, seed=3), run_id=runs[2])
        _label(ws, ids, runs[0])
        _train(ws)


def synthetic_episodes(batch: str, episodes: int, *, seed: int) -> EpisodeTableRows:
    """Make synthetic episodes as of a generated dataset, or of a recorded one if ``seed`` is a multiple of 10."""
    rng = np.random.default_rng(seed)
    ids = [hashlib.sha256(f"{batch}/{i}".encode()).hexdigest() for i in range(episodes)]
    real, twin = seed % 10 == 0, f"cell_{seed % 4}"
    frames = rng.integers(100, 600, episodes)
    same: dict[str, Any] = {
        "batch": batch,
        "fps": 30.0,
        "robot_type": "so101_follower",
        "source": "real" if real else "sim",
        "twin": None if real else twin,
        "twin_hash": None if real else hashlib.sha256(twin.encode()).hexdigest(),
        "config_hash": None if real else hashlib.sha256(batch.encode()).hexdigest(),
        "sim_version": None if real else "4.0.0",
        "seed": None if real else seed,
        "attempt": None if real else 0,
        "actor": "person" if real else "expert:pick_and_place",
        "success_version": "1",
        "valid": True,
        "units": "{}",
        "licence": "apache-2.0",
    }
    own: dict[str, Any] = {
        "episode_id": ids,
        "episode_index": np.arange(episodes),
        "number": np.arange(episodes),
        "frames": frames,
        "duration_s": frames / 30,
        "task": [TASKS[i] for i in rng.integers(0, len(TASKS), episodes)],
        "success": rng.random(episodes) < 0.7,
        "parents": [[]] * episodes,
        "cameras": [["front", "wrist"]] * episodes,
    }
    columns = [
        pa.array(own[f.name], f.type) if f.name in own else pa.repeat(pa.scalar(same.get(f.name), f.type), episodes)
        for f in EPISODES.schema
    ]
    drawn = [] if real else NAMES
    params = pa.table(
        {
            "episode_id": ids * len(drawn),
            "name": np.repeat(drawn, episodes) if drawn else pa.array([], pa.string()),
            "value": rng.uniform(0.2, 1.4, episodes * len(drawn)),
        },
        schema=PARAMS.schema,
    )
    return EpisodeTableRows(episodes=pa.Table.from_arrays(columns, schema=EPISODES.schema), params=params)


def commit(ws: Workspace, batch: str, rows: EpisodeTableRows) -> None:
    """Commit a batch as `Workspace.add` does after it has read the folder."""
    record = {
        "batch": batch,
        "path": f"data/{batch}",
        "revision": 1,
        "episodes": len(rows.episodes),
        "frames": int(np.sum(rows.episodes["frames"].to_numpy())),
        "fps": 30.0,
        "robot_type": "so101_follower",
        "ours": True,
        "source": "real",
        "fingerprint": "",
        "files": json.dumps({"info": "", "files": {}}),
        "added": now(),
        "updated": now(),
        "run_id": None,
    }
    BatchCommit(record=record, rows=rows).apply_changes(ws.parts, run_id=None)


def verdicts(ids: list[str], check: str, *, seed: int) -> pa.Table:
    """Make random scores of one check."""
    values = np.random.default_rng(seed).random(len(ids))
    return pa.table(
        {
            "episode_id": ids,
            "check": [check] * len(ids),
            "check_hash": ["0" * 64] * len(ids),
            "channel": [""] * len(ids),
            "value": values,
            "unit": ["1"] * len(ids),
            "limit": [0.95] * len(ids),
            "verdict": np.where(values > 0.98, "bad", np.where(values > 0.95, "suspect", "good")),
            "reason": [f"{value:.3f} of the limit" for value in values],
        }
    )


def trials(ids: list[str], *, seed: int) -> pa.Table:
    """Make evaluations of ten policies in two suites, a hundred trials each."""
    rng = np.random.default_rng(seed)
    rows = [
        {"policy": f"policy-{p}", "suite": suite, "trial": str(t), "source": "sim"}
        for p in range(10)
        for suite in ("nominal", "shifted")
        for t in range(100)
    ]
    success = rng.random(len(rows)) < 0.6
    table = pa.Table.from_pylist(rows)
    table = table.append_column("success", pa.array(success)).append_column("score", pa.array(success.astype(float)))
    return table.append_column("episode_id", pa.array([ids[i] for i in rng.integers(0, len(ids), len(rows))]))


def _label(ws: Workspace, ids: list[str], run_id: str) -> None:
    """Add labels of a person and of a rule to every tenth episode."""
    from twinloop.catalog.state_schema import LABEL_HISTORY

    rng, stamp = np.random.default_rng(4), now()
    columns = [column.name for column in LABEL_HISTORY.columns]
    rows = []
    for source, author in (("hand", "ada"), ("rule", "still_at_end")):
        for name in ids[::10]:
            given = {"episode_id": name, "kind": "success", "slot": "", "source": source, "author": author}
            statement = {"value": "true" if rng.random() < 0.8 else "false", "retracted": 0, "said_at": stamp}
            row = {"seq": len(rows) + 1, "statement": 1, "run_id": run_id, **given, **statement}
            rows.append([row.get(name) for name in columns])
    with ws.state.transaction() as connection:
        connection.executemany(f"INSERT INTO label_history VALUES ({', '.join('?' * len(columns))})", rows)


def _train(ws: Workspace) -> None:
    """Record two policies, trained on datasets of half and a quarter of all episodes."""
    from twinloop.catalog.dataset_versions import freeze, record_policy

    for name, share in (("champion", 2), ("candidate", 4)):
        freeze(ws, name, f"SELECT episode_id FROM episodes WHERE episode_index % {share} = 0")
        record_policy(ws, name, name, name)


def run_queries(root: Path) -> dict[str, Any]:
    """Open a catalog and run the ten queries, in the calling process; also return its peak memory."""
    began, began_busy = time.perf_counter(), time.process_time()
    ws = Workspace.open(root)
    ws.query("SELECT count(*) FROM episodes")
    opened, opened_busy = time.perf_counter() - began, time.process_time() - began_busy
    one = ws.query("SELECT episode_id FROM episodes LIMIT 1 OFFSET 1000")["episode_id"][0].as_py()
    rows = []
    for question in EXAMPLE_QUERIES:
        given = {**question.example, **({"episode": one} if "episode" in question.example else {})}
        times, busy, answer = [], [], None
        for _ in range(1 + REPEATS):
            start, worked = time.perf_counter(), time.process_time()
            answer = ws.query(question.sql, given)
            times.append(time.perf_counter() - start)
            busy.append(time.process_time() - worked)
        rows.append(
            {
                "name": question.name,
                "question": question.question,
                "rows": 0 if answer is None else len(answer),
                "first_ms": times[0] * 1e3,
                "median_ms": statistics.median(times[1:]) * 1e3,
                "most_ms": max(times[1:]) * 1e3,
                "processor_ms": min(busy[1:]) * 1e3,
            }
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"open_s": opened, "open_processor_s": opened_busy, "queries": rows, "peak_mb": peak}


def stream(root: Path) -> dict[str, Any]:
    """Compute statistics of ten million frames of a six-joint arm as the writer does, and measure the peak memory.

    The frames are one block of random walks with forty hard links, because the content does not affect reading and
    sorting.
    """
    from twinloop.dataset.lerobot import layout, metadata
    from twinloop.dataset.lerobot.parquet import column_to_array, read_table, to_fixed_lists, write_groups
    from twinloop.dataset.lerobot.progress import BlockEntry, WriteProgress
    from twinloop.dataset.lerobot.statistics import Moments, column_stats, merge_moments, take_columns

    rng, features = np.random.default_rng(0), ["action", "observation.state"]
    walks = {name: rng.normal(size=(BLOCK_FRAMES, 6)).cumsum(axis=0).astype(np.float32) for name in features}
    first = root / layout.block_path(layout.DATA_PATH, 0)
    write_groups(first, pa.table({name: to_fixed_lists(walk) for name, walk in walks.items()}), [BLOCK_FRAMES])
    del walks
    blocks = FRAMES // BLOCK_FRAMES
    for block in range(1, blocks):
        (root / layout.block_path(layout.DATA_PATH, block)).hardlink_to(first)
    entries = tuple(BlockEntry(block=block, episodes=1, frames=BLOCK_FRAMES) for block in range(blocks))
    began = time.perf_counter()
    quantiles = metadata._exact_quantiles(root, WriteProgress(blocks=entries), features)
    moments = None
    for block in range(blocks):
        table = read_table(root / layout.block_path(layout.DATA_PATH, block), features)
        part = Moments.of(np.hstack([column_to_array(table[name]) for name in features]).astype(np.float64))
        moments = part if moments is None else merge_moments([moments, part])
    assert moments is not None
    stats = {
        name: column_stats(take_columns(moments, slice(6 * i, 6 * i + 6)), quantiles[name])
        for i, name in enumerate(features)
    }
    return {
        "frames": stats["action"]["count"][0],
        "statistics_s": time.perf_counter() - began,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def _run_step(what: str, root: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed.catalog", "--what", what, "--root", str(root)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def commits(small: Path, large: Path, *, repeats: int = 21) -> dict[str, dict[str, float]]:
    """Measure commits of 64 episodes to both catalogs in turn, in ms of wall-clock and of CPU time."""
    times: dict[str, list[tuple[float, float]]] = {"small": [], "large": []}
    with Workspace.open(small) as one, Workspace.open(large) as other:
        for number in range(repeats):
            for name, ws in (("small", one), ("large", other)):
                rows = synthetic_episodes(f"more-{number}", PER_COMMIT, seed=1000 + 10 * number + 1)
                began, busy = time.perf_counter(), time.process_time()
                commit(ws, f"more-{number}", rows)
                times[name].append(((time.perf_counter() - began) * 1e3, (time.process_time() - busy) * 1e3))
    metrics: dict[str, dict[str, float]] = {}
    for name, pairs in times.items():
        clock, busy = zip(*pairs[1:], strict=True)
        metrics[name] = {
            "median": statistics.median(clock),
            "least": min(clock),
            "most": max(clock),
            "processor": statistics.median(busy),
        }
    return metrics


def main() -> None:
    """Run the benchmark, or one of its steps in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", choices=("all", "build", "ask", "stream"), default="all")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--episodes", type=int, default=EPISODES_TARGET)
    given = parser.parse_args()
    if given.what == "build":
        build(given.root, given.episodes, batches=BATCHES)
        return
    steps = {
        "ask": lambda: run_queries(given.root),
        "stream": lambda: stream(given.root),
        "all": lambda: run(given.episodes),
    }
    print(json.dumps(steps[given.what]()))


if __name__ == "__main__":
    main()
