"""Compare the evaluation of a policy in a suite with a bare run of the same worlds: episodes per minute, and ratio.

The bare run is `run_batch` of the expert on the same parameter tables: reset, commands, physics, readings and success.
`evaluate` adds contact sensors, scores, and the draws of every evaluation slice. Both run in turn in one process on
every core; CPU time and wall-clock time are measured.
"""

from __future__ import annotations

import time

import numpy as np

from twinloop.evaluate.candidates import make_candidate
from twinloop.evaluate.run import TrialRunner
from twinloop.evaluate.suite import open_suite
from twinloop.evaluate.worlds import concatenate_tables, expand_suite
from twinloop.rollout import run_batch
from twinloop.simulate import open_backend
from twinloop.tasks import open_task
from twinloop.twin import load_twin

EACH, ROUNDS, NAME = 2, 3, "axes"


def run(policy: object = "expert", *, rounds: int = ROUNDS) -> dict:
    """Return the rates of both, and the ratio of CPU times, round by round.

    Args:
        policy: Policy that is evaluated; the bare runs always use the expert.
        rounds: Number of rounds.
    """
    twin = load_twin("so101_tabletop")
    task = open_task("pick_and_place", twin)
    suite = expand_suite(open_suite(NAME), twin, task).with_episodes(EACH)
    who, backend = make_candidate(policy), open_backend()
    rows = []
    for _ in range(rounds):
        runner = TrialRunner(suite=suite, task="pick_and_place", backend=backend)
        tried = _timed(lambda runner=runner: runner.run(who, suite.trials))
        numbers = np.concatenate([item.get_episode_numbers(range(EACH)) for item in suite.slices])
        tables = [
            suite.draw_table(item, item.get_episode_numbers(range(EACH)), run_seed=0, nstep=task.nstep)
            for item in suite.slices
        ]
        table = concatenate_tables(tables)
        bare = _timed(lambda table=table, numbers=numbers: _bare(twin, task, table, numbers, backend))
        rows.append({"tried": tried, "bare": bare})
    ratios = [row["bare"]["processor"] / row["tried"]["processor"] for row in rows]
    return {
        "name": f"twinloop evaluate, suite {NAME}, {len(suite.slices)} slices, {suite.episodes} episodes of 6 s",
        "against": "run_batch of the expert in the same worlds, without scores",
        "episodes_per_minute": 60 * suite.episodes / min(row["tried"]["wall"] for row in rows),
        "bare_episodes_per_minute": 60 * suite.episodes / min(row["bare"]["wall"] for row in rows),
        "episodes_per_processor_minute": 60 * suite.episodes / min(row["tried"]["processor"] for row in rows),
        "ratio": float(np.median(ratios)),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "rounds": rows,
    }


def _bare(twin, task, table, numbers, backend, batch: int = 256) -> None:
    for at in range(0, len(numbers), batch):
        part = slice(at, at + batch)
        rows = np.arange(len(numbers))[part]
        run_batch(twin, task, table.take(rows), run_seed=0, episodes=numbers[part].tolist(), backend=backend)


def _timed(work) -> dict[str, float]:
    processor, wall = time.process_time(), time.perf_counter()
    work()
    return {"processor": time.process_time() - processor, "wall": time.perf_counter() - wall}


if __name__ == "__main__":
    import json

    print(json.dumps(run(), indent=1))
