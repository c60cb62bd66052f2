"""Define the protocol of label rules: a rule computes the labels of one episode, with reasons, from its data."""

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
    """One label that a rule gives to an episode, or to a range of its frames.

    Attributes:
        kind: Kind of the label, such as ``success`` or ``subtask``.
        value: Value of the label.
        reason: Reason for the label.
        first_frame: First labelled frame; None if the label is for the whole episode.
        last_frame: Last labelled frame, included; None if the label is for the whole episode.
        confidence: Confidence from 0 to 1; None if the rule does not state it.
    """

    kind: str
    value: str
    reason: str
    first_frame: int | None = None
    last_frame: int | None = None
    confidence: float | None = None


@dataclass(frozen=True, kw_only=True)
class RuleEpisode:
    """One episode as the input of label rules; its data are read from the dataset at first access.

    Attributes:
        episode_id: Identifier of the episode in the catalog.
        reader: Reader of the dataset that contains the episode.
        index: Number of the episode in the dataset.
        task: Task on the twin that simulated the episode; None for a real episode, or if the twin is missing.
        missing_reason: Reason why ``task`` is None, as a clause for messages.
    """

    episode_id: str
    reader: DatasetReader
    index: int
    task: Task | None = None
    missing_reason: str = "it was not simulated"

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
        """Simulator states, shape ``(frames + 1, nstate)``; None for a real episode or if no states are stored."""
        if self.task is None:
            return None
        try:
            return self.reader.states(self.index)
        except DatasetError:
            return None

    @functools.cached_property
    def joints(self) -> Array | None:
        """Measured joint positions in the dataset's units, shape ``(frames, njoint)``; None if there are none."""
        names = self.joint_names
        return None if not names else self.reader.array(self.index, STATE)[:, : len(names)]

    @functools.cached_property
    def joint_names(self) -> list[str]:
        """Names of the joints at the start of ``observation.state``; empty if its columns are not joint positions."""
        try:
            names = self.reader.feature_names(STATE)
        except UnknownNameError:
            return []
        named = [name.removesuffix(".pos") for name in names if name.endswith(".pos")]
        return named if [f"{name}.pos" for name in named] == names[: len(named)] else []

    @functools.cached_property
    def opening(self) -> Array | None:
        """Opening of the gripper from 0 (closed) to 1 (open), shape ``(frames,)``; None if no such column exists.

        The column must follow LeRobot's convention: a joint with ``gripper`` in its name, in 0 to 100, closed at 0
        (lerobot 0.6.1, ``motors/motors_bus.py``). If the dataset has a unit map, the map must declare this unit.
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
        """Speed of the arm, shape ``(frames,)``: the norm of all joint speeds except the gripper's.

        Its unit is the unit of the joint columns per second. It is computed by central differences over 0.1 s, which
        smooth out the encoder quantization. It is None if the joint positions are missing, if no column is the opening
        of a gripper, or if the episode has fewer than three frames.
        """
        if self.joints is None or self.opening is None or self.frames < 3:
            return None
        arm = [i for i, name in enumerate(self.joint_names) if "gripper" not in name.lower()]
        half = max(1, round(0.05 * self.fps))
        padded = np.pad(self.joints[:, arm], ((half, half), (0, 0)), mode="edge")
        return np.linalg.norm(padded[2 * half :] - padded[: -2 * half], axis=1) * self.fps / (2 * half)


@runtime_checkable
class LabelRule(Protocol):
    """Protocol for classes that label episodes from their recorded data.

    A rule that cannot decide returns the value `UNKNOWN` with the reason.

    Attributes:
        name: Name of the rule, such as ``success/gripper``.
        version: Version of the rule; it is part of ``hash``.
        meaning: Description of the rule for people.
    """

    name: str
    version: str
    meaning: str

    @property
    def hash(self) -> str:
        """SHA-256 of everything that determines the labels (name, version, settings); stored with every label."""
        ...

    def label(self, episode: RuleEpisode) -> Sequence[RuleFinding]:
        """Return the labels of one episode.

        Args:
            episode: Data of the episode.
        """
        ...
