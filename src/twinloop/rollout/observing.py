"""Compute a policy's observations of running worlds, step by step, with LeRobot's names and a dataset's units."""

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
from twinloop.tasks.protocol import Task, has_tracked_values
from twinloop.twin import Twin

Observation = dict[str, NDArray[Any]]
Photograph = Callable[[NDArray[np.float64], ParamTable], Mapping[str, NDArray[np.uint8]]]
"""Function that returns images ``(k, height, width, 3)`` by camera, from states ``(k, nstate)`` and parameters."""


@dataclass(frozen=True, kw_only=True)
class TrackerNoise:
    """Errors of a scene tracker: ``noise``, standard deviation of a position per frame, and a constant ``offset``.

    ``noise`` is in m (in rad for headings), ``offset`` ``(3,)`` in m: the tracker's frame relative to the robot's.
    """

    noise: float = 0.0
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def add_errors(
        self, true: NDArray[np.float64], names: Sequence[str], chance: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return readings of true values ``(k, n)`` with these names; ``chance`` ``(k, n)`` is uniform in (0, 1)."""
        seen = true + self.noise * ndtri(chance)
        for axis, shift in zip("xyz", self.offset, strict=True):
            seen[:, [name.endswith(f".{axis}") for name in names]] += shift
        return seen


PERFECT = TrackerNoise()


class WorldObserver:
    """Observer of worlds that run under one controller: joint readings, tracked objects, images.

    An observation contains all data available when its step's command is due. Readings pass the same stages as in a
    dataset (`rollout.sensing.joint_readings`), so that a policy gets the same observations as in training.

    Args:
        twin: twin of the worlds.
        task: defines the tracked objects, if it is a `tasks.protocol.TrackedTask`.
        worlds: starts of the worlds.
        units: units of joint readings; by default the twin's.
        tracker: errors of the tracker.
        photograph: takes the images, if a policy has cameras.
        nstep: the largest number of steps of the worlds; by default the task's.
        parts: parts to compute, ``state`` and ``environment``; the latter is left out if the task has no tracked
            objects.
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
        self._reads, self._tracks = "state" in parts, "environment" in parts and has_tracked_values(task)
        self._readings = JointReadings(twin, len(worlds.numbers), task.nstep if nstep is None else nstep)

    def observe_worlds(self, states: NDArray[np.float64], step: int) -> Observation:
        """Return the observations of all worlds in states ``(nworld, nstate)`` at step number ``step``.

        Call it once for every step, in order: a reading may depend on earlier states.
        """
        steps = np.full(len(states), step)
        seen: Observation = {}
        if self._reads:
            rows = np.arange(len(states))
            seen[STATE] = self._units.from_si(self._readings.read_joints(states, self._worlds.params, steps, rows))
        if self._tracks:
            seen[ENVIRONMENT] = self._track_objects(states, step)
        if self._photograph is not None:
            pictures = self._photograph(states, self._worlds.params.at(steps))
            seen |= {f"{IMAGES}{name}": frames for name, frames in pictures.items()}
        return seen

    def _track_objects(self, states: NDArray[np.float64], step: int) -> NDArray[np.float64]:
        if not has_tracked_values(self._task):
            raise InputError(f"The task {self._task.name} has no tracked objects.")
        true, names, begun = self._task.environment(states), self._task.environment_names, self._worlds
        chance = np.full(true.shape, 0.5)
        if self._tracker.noise:
            where = {"size": true.shape[1], "attempt": begun.attempt, "step": step}
            chance = uniforms(begun.run_seed, "rollout/tracker", begun.numbers, **where)
        return self._tracker.add_errors(true, names, chance)


def offered_contract(
    twin: Twin, task: Task, *, units: UnitMap | None = None, cameras: Mapping[str, tuple[int, int]] | None = None
) -> Contract:
    """Return the contract that a twin and a task offer to a policy.

    Args:
        units: units of readings and commands; by default the twin's.
        cameras: size (height, width) of the images by camera name.
    """
    units = units or twin.units
    return Contract(
        robot_type=twin.robot.type,
        control_hz=twin.control_hz,
        state=units,
        action=units,
        command=twin.robot.control,
        environment=task.environment_names if has_tracked_values(task) else (),
        cameras=dict(cameras or {}),
        task=task.name,
    )
