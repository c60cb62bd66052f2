"""Pick and places with planted failures: one world each, and the phases that the expert was in."""

from __future__ import annotations

import dataclasses

import numpy as np

from twinloop.randomize import Plan, default_draws
from twinloop.simulate import Trajectories, open_backend, rollout
from twinloop.tasks import open_task
from twinloop.tasks.pick_and_place_expert import ExpertPhase
from twinloop.twin import Twin

# What the hand does wrong, by the class that should be found.
PLANTED = ("", "never_reached", "grasp_missed", "dropped", "placed_off_target", "timeout", "not_released")


class Planted:
    """The expert with planted ``faults`` per world; ``phases`` ``(nstep, nworld)`` are its phases."""

    def __init__(self, task, initial, faults) -> None:
        self._task, self._faults = task, np.array(faults)
        shifted = initial.mocap_pos.copy()
        shifted[self._faults == "placed_off_target", task._target, :2] += [0.0, 0.09]
        self._expert = task.expert(dataclasses.replace(initial, mocap_pos=shifted))
        self._still = initial.command.copy()
        self.phases: list[np.ndarray] = []

    def __call__(self, simulation):
        command = np.array(self._expert(simulation))
        phase = np.array(self._expert._phase)
        self.phases.append(phase)
        hand, faults = self._task.hand, self._faults
        command[:, hand.actuator] = np.where(
            (faults == "grasp_missed") | ((faults == "dropped") & (phase == ExpertPhase.CARRY)),
            hand.open,
            command[:, hand.actuator],
        )
        stays = (faults == "never_reached") | ((faults == "timeout") & (phase >= ExpertPhase.LOWER))
        stays |= (faults == "not_released") & (phase >= ExpertPhase.OPEN)
        command[stays] = self._still[stays]
        self._still[~stays] = command[~stays]
        return command


def run(twin: Twin, faults, *, seed: int = 5) -> tuple[object, Trajectories, np.ndarray]:
    """The task, the worlds, and the phases ``(nworld, nstep)``."""
    task = open_task("pick_and_place", twin)
    draws = [draw for draw in default_draws(twin) if any(name.startswith("object/") for name in draw.names)]
    numbers = list(range(len(faults)))
    table = Plan(twin=twin, run_seed=seed, draws=tuple(draws)).draw(numbers)
    initial = task.reset(table, run_seed=seed, episodes=numbers)
    actor = Planted(task, initial, faults)
    result = rollout(open_backend("threads", nthread=1), twin, table, initial, actor, task.nstep)
    return task, result, np.stack(actor.phases, axis=1)
