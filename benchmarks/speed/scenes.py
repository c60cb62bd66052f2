"""Measure the cost of clutter: physics steps per second of CPU time, with 0 to 5 objects at rest on the SO-101's table.

``plain`` is so101_tabletop; ``count 0`` has the same table and five empty clutter slots; every other row has that many
objects, which have been dropped and are at rest. ``placing`` is the cost of the drop, in physics steps of the plain
table. All rows are from one run, with constant commands, on one thread.

``python -m benchmarks.speed.scenes`` prints them.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
from rich.console import Console

from twinloop.core.params import ParamTable
from twinloop.simulate import InitialState, open_backend
from twinloop.tasks import open_task
from twinloop.twin import Twin, load_twin

WORLDS, STEPS, ROUNDS, MOST = 64, 30, 3, 5
EXAMPLE = Path(__file__).parents[2] / "examples" / "so101_clutter.yaml"


def run() -> dict:
    """Return rates by number of objects, and their ratio to the plain table's."""
    plain, cluttered = load_twin("so101_tabletop"), load_twin(EXAMPLE)
    task = open_task("pick_and_place", cluttered)
    assert cluttered.scene is not None
    shapes = np.linspace(0, len(cluttered.scene.layout.slots[0].shapes), WORLDS, endpoint=False)
    worlds, placing = {}, {}
    for count in range(MOST + 1):
        values = {f"scene/distractors_{i}/shape": np.roll(shapes, 7 * i) for i in range(MOST)}
        params = cluttered.table(WORLDS, {"scene/distractors/count": float(count), **values})
        began = time.process_time()
        worlds[count] = params, task.reset(params, run_seed=0, episodes=range(WORLDS))
        placing[count] = (time.process_time() - began) / WORLDS
    table = plain.table(WORLDS)
    begin = open_task("pick_and_place", plain).reset(table, run_seed=0, episodes=range(WORLDS))
    rows = [_round(plain, table, begin, cluttered, worlds) for _ in range(ROUNDS)]
    rates = {name: max(row[name] for row in rows) for name in rows[0]}
    return {
        "name": f"physics with 0 to {MOST} things on the table, SO-101",
        "against": "so101_tabletop in the same run",
        "steps_per_processor_s": rates,
        "ratio": {name: rate / rates["plain"] for name, rate in rates.items()},
        "placing_steps_per_episode": {str(count): value * rates["plain"] for count, value in placing.items()},
    }


def _round(
    plain: Twin,
    table: ParamTable,
    begin: InitialState,
    cluttered: Twin,
    worlds: dict[int, tuple[ParamTable, InitialState]],
) -> dict[str, float]:
    rates = {"plain": _rate(plain, table, begin)}
    return rates | {f"count {count}": _rate(cluttered, *world) for count, world in worlds.items()}


def _rate(twin: Twin, params: ParamTable, start: InitialState) -> float:
    still = dataclasses.replace(start, refused=())
    simulation = open_backend("threads", nthread=1).start(twin, params, still, STEPS)
    began = time.process_time()
    for _ in range(STEPS):
        simulation.advance(still.command)
    return WORLDS * STEPS * twin.substeps / (time.process_time() - began)


if __name__ == "__main__":
    Console().print(run())
