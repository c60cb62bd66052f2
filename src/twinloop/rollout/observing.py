"""Compute a policy's observations of running worlds step by step.

They have the feature names of LeRobot and the units of a dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.core.errors import InputError
from twinloop.core.seeds import uniforms
from twinloop.core.units import UnitMap
from twinloop.rollout.actor import EpisodeStart
from twinloop.rollout.sensing import JointReadings
from twinloop.tasks.protocol import Task, has_tracked_values
from twinloop.twin import Twin

Observation = dict[str, NDArray[Any]]


class WorldImages(Protocol):
    """Source of the images of running worlds; `rollout.world_camera.WorldCamera` is one."""

    def begin_worlds(self, worlds: EpisodeStart, nstep: int) -> None:
        """Forget earlier worlds, and prepare for images of these, which run for at most ``nstep`` control steps."""
        ...

    def watch(self, states: NDArray[np.float64]) -> None:
        """Note the states of all worlds at the next control step, ``(nworld, nstate)``."""
        ...

    def take(self, rows: NDArray[np.intp], step: int) -> Mapping[str, NDArray[np.uint8]]:
        """Return images ``(k, height, width, 3)`` by camera name of k worlds at the control step noted last."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrackerNoise:
    """Errors of a tracker that measures the poses of objects in the scene.

    Attributes:
        noise: standard deviation of each measured value per frame, in m (in rad for headings).
        offset: constant error of positions ``(3,)`` in m, because the tracker's frame is displaced from the robot's.
        spread: half width in m of the uniform distribution of a further error of positions, which is drawn once per
            episode and axis.
        wander: errors that vary slowly, as those of a localizer do (correlation time 0.4 s), in m: in each episode they
            have a standard deviation of up to this, for each position by itself; half of it in height.
        turn: the same for headings, in rad.
    """

    noise: float = 0.0
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)
    spread: float = 0.0
    wander: float = 0.0
    turn: float = 0.0

    def draw_offset(self, worlds: EpisodeStart) -> NDArray[np.float64]:
        """Return the error of positions in each world, ``(nworld, 3)`` in m."""
        chance = uniforms(worlds.run_seed, "rollout/tracker/offset", worlds.numbers, size=3, attempt=worlds.attempt)
        return np.array(self.offset) + self.spread * (2.0 * chance - 1.0)

    def next_wander(
        self, before: NDArray[np.float64] | None, worlds: EpisodeStart, step: int, size: int, hz: float
    ) -> NDArray[np.float64]:
        """Return the slowly varying errors of n values at a control step, ``(nworld, n)``, in standard deviations.

        Args:
            before: those of the step before; None at the first step.
            worlds: the worlds.
            step: number of the control step.
            size: number of values.
            hz: control rate.
        """
        chance = uniforms(
            worlds.run_seed, "rollout/tracker/wander", worlds.numbers, size=size, attempt=worlds.attempt, step=step
        )
        if before is None:
            return ndtri(chance)
        kept = np.exp(-1.0 / (_WANDER_S * hz))
        return kept * before + np.sqrt(1.0 - kept**2) * ndtri(chance)

    def draw_wander(self, worlds: EpisodeStart, names: Sequence[str]) -> NDArray[np.float64]:
        """Return the standard deviation of the slowly varying error of each named value, ``(nworld, n)``."""
        scale = {"x": self.wander, "y": self.wander, "z": 0.5 * self.wander, "cos": self.turn}
        size = np.array([scale.get(name.rpartition(".")[2], 0.0) for name in names])
        return size * uniforms(worlds.run_seed, "rollout/tracker/size", worlds.numbers, attempt=worlds.attempt)

    def add_errors(
        self,
        true: NDArray[np.float64],
        names: Sequence[str],
        chance: NDArray[np.float64],
        offset: NDArray[np.float64] | None = None,
        wander: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Return the tracker's readings of true values, ``(k, n)``.

        Args:
            true: true values of k worlds, ``(k, n)``.
            names: names of the n values; those that end in ``.x``, ``.y`` or ``.z`` are positions.
            chance: uniform random numbers in (0, 1), ``(k, n)``. The inverse normal distribution function converts them
                to normal noise.
            offset: errors of positions in the worlds, ``(k, 3)`` in m; by default ``offset`` of the tracker.
            wander: slowly varying errors ``(k, n)`` in m; of a heading in the column of its cosine, in rad.
        """
        seen = true + self.noise * ndtri(chance)
        offset = np.broadcast_to(self.offset, (len(true), 3)) if offset is None else offset
        for axis, shift in zip("xyz", offset.T, strict=True):
            seen[:, [name.endswith(f".{axis}") for name in names]] += shift[:, None]
        for column, name in enumerate(names if wander is not None else ()):
            error, sine = wander[:, column], name.removesuffix("cos") + "sin"  # pyright: ignore[reportOptionalSubscript]
            if name.endswith(".heading.cos") and sine in names:
                other = list(names).index(sine)
                cos, sin = seen[:, column].copy(), seen[:, other].copy()
                seen[:, column] = np.cos(error) * cos - np.sin(error) * sin
                seen[:, other] = np.sin(error) * cos + np.cos(error) * sin
            else:
                seen[:, column] += error
        return seen


PERFECT = TrackerNoise()
_WANDER_S = 0.4  # s: errors of a localizer on virtual robots are alike for about this long


class WorldObserver:
    """Observer of simulated worlds: joint readings, tracked objects and images at each control step.

    An observation contains all data that are available when the command of its step is due. Readings pass through the
    same sensor models as in a dataset (`rollout.sensing.joint_readings`), so a policy gets the same observations as in
    training.

    Args:
        twin: twin of the worlds.
        task: task that defines the tracked objects, if it is a `tasks.protocol.TrackedTask`.
        worlds: parameters and initial states of the worlds.
        units: units of joint readings; by default the twin's.
        tracker: errors of the tracker.
        images: source of the images; None for no images.
        nstep: largest number of control steps of the worlds; by default the task's.
        parts: groups of values to compute: ``state`` (joint readings) and ``environment`` (tracked objects). The latter
            is left out if the task has no tracked objects.
    """

    def __init__(
        self,
        twin: Twin,
        task: Task,
        worlds: EpisodeStart,
        *,
        units: UnitMap | None = None,
        tracker: TrackerNoise = PERFECT,
        images: WorldImages | None = None,
        nstep: int | None = None,
        parts: Sequence[Literal["state", "environment"]] = ("state", "environment"),
    ) -> None:
        self._task, self._worlds, self._tracker = task, worlds, tracker
        self._offset, self._hz = tracker.draw_offset(worlds), twin.control_hz
        self._wander: NDArray[np.float64] | None = None
        self._wanders: NDArray[np.float64] | None = None
        if (tracker.wander or tracker.turn) and has_tracked_values(task):
            self._wanders = tracker.draw_wander(worlds, task.environment_names)
        self._units, self._images = units or twin.units, images
        self._latest = dict[str, NDArray[np.uint8]]()
        nstep = task.nstep if nstep is None else nstep
        if images is not None:
            images.begin_worlds(worlds, nstep)
        self._reads, self._tracks = "state" in parts, "environment" in parts and has_tracked_values(task)
        self._readings = JointReadings(twin, len(worlds.numbers), nstep)

    def observe_worlds(
        self, states: NDArray[np.float64], step: int, *, seeing: NDArray[np.bool_] | None = None
    ) -> Observation:
        """Return the observations of all worlds at one control step; each array has one row per world.

        Call this method once for every step, in order, because a reading may depend on earlier states.

        Args:
            states: current states of the worlds, ``(nworld, nstate)``.
            step: number of the control step.
            seeing: mask of the worlds whose images are needed at this step, ``(nworld,)``; the other worlds' images are
                those of an earlier step. By default all; all at the first step.

        Returns:
            Arrays by LeRobot's feature names.
        """
        steps = np.full(len(states), step)
        seen: Observation = {}
        if self._reads:
            rows = np.arange(len(states))
            seen[STATE] = self._units.from_si(self._readings.read_joints(states, self._worlds.params, steps, rows))
        if self._tracks:
            seen[ENVIRONMENT] = self._track_objects(states, step)
        if self._images is not None:
            self._images.watch(states)
            rows = np.arange(len(states)) if seeing is None or not self._latest else np.flatnonzero(seeing)
            for name, frames in (self._images.take(rows, step) if len(rows) else {}).items():
                empty = np.zeros((len(states), *frames.shape[1:]), dtype=np.uint8)
                self._latest.setdefault(f"{IMAGES}{name}", empty)[rows] = frames
            seen |= {key: frames.copy() for key, frames in self._latest.items()}
        return seen

    def _track_objects(self, states: NDArray[np.float64], step: int) -> NDArray[np.float64]:
        if not has_tracked_values(self._task):
            raise InputError(f"The task {self._task.name} has no tracked objects.")
        true, names, worlds = self._task.environment(states), self._task.environment_names, self._worlds
        chance = np.full(true.shape, 0.5)
        if self._tracker.noise:
            where = {"size": true.shape[1], "attempt": worlds.attempt, "step": step}
            chance = uniforms(worlds.run_seed, "rollout/tracker", worlds.numbers, **where)
        if self._wanders is None:
            return self._tracker.add_errors(true, names, chance, self._offset)
        self._wander = self._tracker.next_wander(self._wander, worlds, step, true.shape[1], self._hz)
        return self._tracker.add_errors(true, names, chance, self._offset, self._wander * self._wanders)


def offered_contract(
    twin: Twin, task: Task, *, units: UnitMap | None = None, cameras: Mapping[str, tuple[int, int]] | None = None
) -> Contract:
    """Return the contract (joints, units, cameras, rate) that a twin and a task offer to a policy.

    Args:
        twin: twin whose robot the policy controls.
        task: task to perform.
        units: units of readings and commands; by default the twin's.
        cameras: size (height, width) of the images in pixels by camera name; None for no cameras.
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
