"""What a policy sees of running worlds, step by step, under LeRobot's names and in a dataset's units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.core.units import UnitMap
from twinloop.rollout.actor import EpisodeStart
from twinloop.rollout.sensing import JointReadings
from twinloop.tasks.protocol import Task, is_tracked
from twinloop.twin import Twin

Observation = dict[str, NDArray[Any]]
Photograph = Callable[[NDArray[np.float64], ParamTable], Mapping[str, NDArray[np.uint8]]]
"""Pictures ``(k, height, width, 3)`` by camera, of worlds in states ``(k, nstate)`` with parameters, a row each."""


@dataclass(frozen=True, kw_only=True)
class TrackerNoise:
    """How a tracker of a scene errs: ``noise``, standard deviation of a position per frame, and a fixed ``offset``.

    ``noise`` is in m (in rad of headings), ``offset`` ``(3,)`` in m: the tracker's frame against the robot's.
    """

    noise: float = 0.0
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def see(self, true: NDArray[np.float64], names: Sequence[str], chance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Readings of true values ``(k, n)`` of these names; ``chance`` ``(k, n)`` is uniform in (0, 1)."""
        seen = true + self.noise * ndtri(chance)
        for axis, shift in zip("xyz", self.offset, strict=True):
            seen[:, [name.endswith(f".{axis}") for name in names]] += shift
        return seen


PERFECT = TrackerNoise()


class WorldObserver:
    """Observations of worlds that run under one controller: joint readings, what a tracker sees, pictures.

    An observation is what could be known when the command of its step is due: readings pass the same stages as in a
    dataset (`rollout.sensing.joint_readings`), so that a policy sees in simulation what it was trained on.

    Args:
        twin: whose worlds they are.
        task: says what a tracker sees, if it is `tasks.protocol.TrackedTask`.
        worlds: where they begin.
        units: of joint readings; the twin's by default.
        tracker: how it errs.
        photograph: takes the pictures, where a policy has cameras.
        nstep: the most steps that worlds may run for; the task's by default.
        parts: what is wanted, ``state`` and ``environment``; the latter is left out where the task tells of none.
    """

    def __init__(
        self,
        twin: Twin,
        task: Task,
        worlds: EpisodeStart,
        *,
        units: UnitMap | None = None,
        tracker: TrackerNoise = PERFECT,
        photograph: Photograph | None = None,
        nstep: int | None = None,
        parts: Sequence[Literal["state", "environment"]] = ("state", "environment"),
    ) -> None:
        self._task, self._worlds, self._tracker = task, worlds, tracker
        self._units, self._photograph = units or twin.units, photograph
        self._reads, self._tracks = "state" in parts, "environment" in parts and is_tracked(task)
        self._readings = JointReadings(twin, len(worlds.numbers), task.nstep if nstep is None else nstep)

    def look(self, states: NDArray[np.float64], step: int) -> Observation:
        """What is seen of all worlds in states ``(nworld, nstate)``, of which ``step`` is the number.

        Steps are asked for in order, each once: a reading may depend on what was before.
        """
        steps = np.full(len(states), step)
        seen: Observation = {}
        if self._reads:
            rows = np.arange(len(states))
            seen[STATE] = self._units.from_si(self._readings.now(states, self._worlds.params, steps, rows))
        if self._tracks:
            seen[ENVIRONMENT] = self._tracked(states, step)
        if self._photograph is not None:
            pictures = self._photograph(states, self._worlds.params.at(steps))
            seen |= {f"{IMAGES}{name}": frames for name, frames in pictures.items()}
        return seen

    def _tracked(self, states: NDArray[np.float64], step: int) -> NDArray[np.float64]:
        if not is_tracked(self._task):
            raise InputError(f"The task {self._task.name} says of nothing that a tracker would see.")
        true, names, begun = self._task.environment(states), self._task.environment_names, self._worlds
        chance = np.full(true.shape, 0.5)
        if self._tracker.noise:
            where = {"size": true.shape[1], "attempt": begun.attempt, "step": step}
            chance = uniforms(begun.run_seed, "rollout/tracker", begun.numbers, **where)
        return self._tracker.see(true, names, chance)


def offered_contract(
    twin: Twin, task: Task, *, units: UnitMap | None = None, cameras: Mapping[str, tuple[int, int]] | None = None
) -> Contract:
    """What a twin and a task offer to a policy.

    Args:
        units: of readings and commands; the twin's by default.
        cameras: the pictures that will be taken, name to (height, width).
    """
    units = units or twin.units
    return Contract(
        robot_type=twin.robot.type,
        control_hz=twin.control_hz,
        state=units,
        action=units,
        command=twin.robot.control,
        environment=task.environment_names if is_tracked(task) else (),
        cameras=dict(cameras or {}),
        task=task.name,
    )
