"""Compare the vector environment with a bare `rollout`: same worlds, commands, backend and threads.

There are two metrics, because resets cost most if they occur one by one: episodes in step with each other, none of
which ends during the measurement, and episodes that end at evenly distributed steps, as in training.
"""

from __future__ import annotations

import time

import numpy as np

from twinloop.core.pool import count_cores
from twinloop.envs import TwinVectorEnv
from twinloop.envs.batch import PlannedEpisodes
from twinloop.simulate import open_backend, rollout

WORLDS, STEPS = 256, 90


def run(worlds: int = WORLDS, steps: int = STEPS, rounds: int = 3) -> dict:
    """Return ratios of several rounds, each with the bare rollout and the environment, and their spread."""
    rows = [_round(worlds, steps) for _ in range(rounds)]
    result = {
        "name": "vector environment, SO-101 pick and place, default randomization, random actions",
        "against": "rollout of the same worlds under the same commands",
        "worlds": worlds,
        "cores": count_cores(),
        "rounds": rows,
    }
    for kind in ("together", "apart"):
        for clock, name in (("s", "ratio"), ("cpu_s", "cpu_ratio")):
            ratios = [row[f"bare_{clock}"] / row[f"{kind}_{clock}"] for row in rows]
            result[f"{name}_{kind}"] = float(np.median(ratios))
            result[f"{name}_{kind}_spread"] = [min(ratios), max(ratios)]
        result[f"steps_per_s_{kind}"] = worlds * steps / float(np.median([row[f"{kind}_s"] for row in rows]))
    return result


def _round(worlds: int, steps: int) -> dict:
    env = TwinVectorEnv(worlds, twin="so101_tabletop", action="delta")
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, worlds, *env.single_action_space.sample().shape))
    together, commands = _time_steps(env, actions, apart=False)
    source = PlannedEpisodes(
        env.options.plan(env.twin, env.goal.task), env.goal.task, run_seed=0, first=np.arange(worlds, dtype=np.int64)
    )
    first_worlds = source.next_episodes(np.arange(worlds))
    clock = _Clock()
    rollout(open_backend(), env.twin, first_worlds.params, first_worlds.initial, commands, steps)
    bare = clock.read("bare")
    apart, _ = _time_steps(env, actions, apart=True)
    return {**bare, **together, **apart}


def _time_steps(env: TwinVectorEnv, actions: np.ndarray, *, apart: bool) -> tuple[dict, np.ndarray]:
    """Return the time of all steps, and the issued commands ``(worlds, steps, nu)``.

    If ``apart`` is true, the episodes end at evenly distributed steps.
    """
    env.reset(seed=0)
    if apart:  # as if the episodes had started at evenly distributed earlier steps
        env.worlds.steps[:] = np.arange(env.num_envs) * env.goal.nstep // env.num_envs
    commands = []
    clock = _Clock()
    for action in actions:
        env.step(action)
        commands.append(env.worlds.command)
    return clock.read("apart" if apart else "together"), np.stack(commands, axis=1)


class _Clock:
    """Wall-clock and CPU time since its creation; on a shared machine only CPU time is repeatable."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self, name: str) -> dict[str, float]:
        return {f"{name}_s": time.perf_counter() - self._wall, f"{name}_cpu_s": time.process_time() - self._cpu}


if __name__ == "__main__":
    for key, value in run().items():
        print(f"{key}: {value}")
