"""Protocol of label rules: from one episode to labels with reasons, and the data available to a rule."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError, UnknownNameError
from twinloop.core.units import PERCENT
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.spec import STATE
from twinloop.tasks import Task

Array = NDArray[np.float64]
UNKNOWN = "unknown"  # value of a label whose author cannot decide
SUCCEEDED, FAILED = "yes", "no"


@dataclass(frozen=True, kw_only=True)
class RuleFinding:
    """A rule's label of an episode, or of the frames from ``first_frame`` to ``last_frame``, both included."""

    kind: str
    value: str
    reason: str
    first_frame: int | None = None
    last_frame: int | None = None
    confidence: float | None = None


@dataclass(frozen=True, kw_only=True)
class RuleEpisode:
    """One episode as input of rules; everything is read at first access.

    ``world`` is the task on the twin that simulated the episode, None for a recorded episode or a missing twin;
    ``missing`` then has the reason.
    """

    episode_id: str
    reader: DatasetReader
    index: int
    world: Task | None = None
    missing: str = "it was not simulated"

    @property
    def frames(self) -> int:
        """Number of frames."""
        return int(self.reader.lengths[self.index])

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.reader.fps

    @functools.cached_property
    def states(self) -> Array | None:
        """The simulator's states ``(frames + 1, nstate)``; None if there are none."""
        if self.world is None:
            return None
        try:
            return self.reader.states(self.index)
        except DatasetError:
            return None

    @functools.cached_property
    def joints(self) -> Array | None:
        """Joint readings ``(frames, n)`` in the dataset's units; None if there are none."""
        names = self.joint_names
        return None if not names else self.reader.array(self.index, STATE)[:, : len(names)]

    @functools.cached_property
    def joint_names(self) -> list[str]:
        """Columns of ``observation.state`` that are joint positions; empty if unknown."""
        try:
            names = self.reader.feature_names(STATE)
        except UnknownNameError:
            return []
        named = [name.removesuffix(".pos") for name in names if name.endswith(".pos")]
        return named if [f"{name}.pos" for name in named] == names[: len(named)] else []

    @functools.cached_property
    def opening(self) -> Array | None:
        """Opening of the gripper, 0 to 1 ``(frames,)``; None without such a column.

        It is LeRobot's gripper: a joint of that name in 0 to 100, at 0 closed (lerobot 0.6.1,
        ``motors/motors_bus.py``). If the dataset has a unit map, that map must declare this unit.
        """
        columns = [i for i, name in enumerate(self.joint_names) if "gripper" in name.lower()]
        units = self.reader.units
        if len(columns) != 1 or self.joints is None:
            return None
        if units is not None and units.joints[columns[0]].unit != PERCENT:
            return None
        values = self.joints[:, columns[0]] / 100.0
        return values if units is not None or (values.min() > -0.1 and values.max() < 1.1) else None

    @functools.cached_property
    def speed(self) -> Array | None:
        """Speed of the arm ``(frames,)``: norm over all joints except the gripper, in joint units per second.

        Central differences over 0.1 s smooth out the steps of the encoders. None without joints, gripper or 3 frames.
        """
        if self.joints is None or self.opening is None or self.frames < 3:
            return None
        arm = [i for i, name in enumerate(self.joint_names) if "gripper" not in name.lower()]
        half = max(1, round(0.05 * self.fps))
        padded = np.pad(self.joints[:, arm], ((half, half), (0, 0)), mode="edge")
        return np.linalg.norm(padded[2 * half :] - padded[: -2 * half], axis=1) * self.fps / (2 * half)


@runtime_checkable
class LabelRule(Protocol):
    """A rule that labels episodes from their recorded data.

    ``hash`` identifies version and settings and is stored with every label. A rule that cannot decide returns `UNKNOWN`
    with the reason.
    """

    name: str
    version: str
    meaning: str

    @property
    def hash(self) -> str:
        """SHA-256 of everything that determines its labels."""
        ...

    def label(self, material: RuleEpisode) -> Sequence[RuleFinding]:
        """Return the labels of an episode."""
        ...
