"""Monitor running robots: compute scores at every control step, and raise alarms with their probable causes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.contract import Contract
from twinloop.core.errors import InputError
from twinloop.release.monitor.calibration import Calibration, read_monitor_calibration
from twinloop.release.monitor.images import describe_motion
from twinloop.release.monitor.signals import CalibrationHistory, Cause, EpisodeScores, find_cause, get_meaning
from twinloop.release.monitor.streams import MonitorStreams, ObservedPolicy
from twinloop.twin import Twin

Array = NDArray[np.float64]
_SINCE = 0.5  # share of its limit above which a signal counts as rising (our choice)


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """Alarm of one signal that exceeded its limit.

    Attributes:
        world: index of the robot.
        step: step of the episode at which the limit was exceeded.
        since: step from which the signal was above half of its limit without interruption.
        signal: name of the signal, such as ``drives/latency``.
        excess: value of the signal divided by its limit.
        cause: cause that all signals of the episode indicate so far.
        possible_causes: possible causes, the most probable first, if ``cause`` is ``unknown``.
        control_hz: control steps per second.
        detail: value in physical units, in words; empty if not available.
    """

    world: int
    step: int
    since: int
    signal: str
    excess: float
    cause: Cause
    possible_causes: tuple[Cause, ...]
    control_hz: float
    detail: str = ""

    def __str__(self) -> str:
        """Return the alarm as a sentence for a person."""
        return (
            f"{self.signal} at {self.excess:.2f} times its limit since {self.since / self.control_hz:.2f} s: "
            f"{get_meaning(self.signal).words}{self.detail and f' ({self.detail})'}.{self._format_cause()}"
        )

    def _format_cause(self) -> str:
        """Return a sentence with the cause or the possible causes; "" if nothing is known."""
        causes = (self.cause,) if self.cause != "unknown" else self.possible_causes
        return f" Points to: {' or '.join(causes)}." if causes else ""

    def to_json(self) -> dict[str, Any]:
        """Return the alarm as a JSON-compatible dictionary; the key ``message`` has the message for a person."""
        names = ("world", "step", "since", "signal", "excess", "cause")
        return {
            **{name: getattr(self, name) for name in names},
            "possible_causes": list(self.possible_causes),
            "message": str(self),
        }


@dataclass(frozen=True, kw_only=True)
class MonitorStep:
    """Result of the monitor for one control step of ``nworld`` robots.

    Attributes:
        scores: scores divided by their limits, by signal, shape ``(nworld,)``. A value above 1 is an alarm; NaN means
            that there is no score yet.
        alarms: new alarms. Each signal raises at most one alarm per episode.
    """

    scores: Mapping[str, Array]
    alarms: tuple[Alarm, ...] = field(default=())


class LiveMonitor:
    """Monitor of ``nworld`` robots of one kind that are running.

    Call `begin` first, then `score_step` once per control step, and `end` after each episode.

    Args:
        twin: twin that the calibration names.
        hash: hash of the calibration, for records.
        nthread: number of threads for the twin's physics.

    Raises:
        InputError: If the twin is not that of the calibration.
    """

    def __init__(self, calibration: Calibration, twin: Twin, *, hash: str = "", nthread: int = 1) -> None:  # noqa: A002
        origin = calibration.origin
        if twin.hash != origin.twin_hash:
            raise InputError(
                f"This monitor was calibrated with the twin {origin.twin} ({origin.twin_hash[:12]}); {twin.name} is "
                f"{twin.hash[:12]}. Use the calibrated twin, or calibrate for this one: twinloop monitor calibrate."
            )
        self.calibration, self.hash = calibration, hash
        self._twin = twin
        params = twin.table(1, dict(origin.params))
        self._streams = MonitorStreams(twin, origin.contract, params, images=calibration.images, nthread=nthread)
        self.history = CalibrationHistory(calibration)

    @classmethod
    def open(cls, folder: str | Path, twin: Twin, *, policy_hash: str = "", nthread: int = 1) -> LiveMonitor:
        """Open the monitor that is stored in a folder.

        Args:
            folder: folder that `calibration.save_monitor_calibration` wrote.
            twin: twin that the calibration names.
            policy_hash: hash of the policy that will act; empty if unknown.
            nthread: number of threads for the twin's physics.

        Raises:
            InputError: If the folder has no monitor, or the monitor is damaged or is for another policy or another
                twin.
        """
        calibration, found = read_monitor_calibration(Path(folder))
        check_policy(calibration.origin.policy_hash, policy_hash, where=str(folder))
        return cls(calibration, twin, hash=found, nthread=nthread)

    @property
    def contract(self) -> Contract:
        """Contract of the observations and commands that the monitor expects."""
        return self.calibration.origin.contract

    def begin(self, nworld: int) -> None:
        """Reset the monitor for ``nworld`` robots, whose episodes start with the next call of `score_step`."""
        self._streams.begin(nworld)
        self._step = np.zeros(nworld, dtype=np.int64)
        self._before: dict[str, Array] | None = None
        self._courses = [EpisodeScores() for _ in range(nworld)]
        self._evidence = np.zeros((nworld, 2 * len(self.calibration.scorer.drive_scorer.names) + 1))

    def restart(self, worlds: ArrayLike) -> None:
        """Start new episodes of the robots with these indices; they begin with the next call of `score_step`."""
        index = np.asarray(worlds)
        self._streams.restart(index)
        self._step[index] = 0
        self._evidence[index] = 0.0
        for world in index.ravel().tolist():
            self._courses[world] = EpisodeScores()
        for values in (self._before or {}).values():
            values[index] = np.nan

    def score_step(
        self,
        observation: Mapping[str, NDArray],
        acting: ObservedPolicy | None,
        command: ArrayLike,
        reading: ArrayLike | None = None,
        *,
        alive: NDArray[np.bool_] | None = None,
    ) -> MonitorStep:
        """Return the scores and new alarms of one control step.

        Args:
            observation: observation of this step by LeRobot's names, in the dataset's units.
            acting: policy after its decision at this step; None if no policy acts.
            command: command sent at this step, ``(nworld, k)`` for k joints, in the dataset's units.
            reading: joint readings, ``(nworld, n)`` for n joints, if they are not in the observation.
            alive: whether each robot's episode continues, shape ``(nworld,)``; by default all continue.

        Raises:
            InputError: If an input that the calibration used is missing.
        """
        rows = self._streams.measure_step(observation, acting, command, reading)
        calibration, scorer = self.calibration, self.calibration.scorer
        smooth = scorer.smooth_scores(self._before, scorer.compute_scores(rows, self._step))
        self._before = {name: values.copy() for name, values in smooth.items()}
        continues = np.ones(len(self._step), dtype=bool) if alive is None else alive
        self._evidence += continues[:, None] * scorer.drive_scorer.compute_evidence(rows["drives"], self._step)
        usual = calibration.standardize(smooth, self._step)
        standard = {name: np.where(continues, values, np.nan) for name, values in usual.items()}
        relative = {name: values / calibration.band.together[name] for name, values in standard.items()}
        alarms = self._add_scores(relative, standard, rows)
        self._step += 1
        return MonitorStep(scores=relative, alarms=alarms)

    def get_cause(self, world: int) -> tuple[Cause, list[Cause]]:
        """Return the cause that all alarms of a robot's episode indicate so far, and all possible causes.

        The causes are determined by `signals.find_cause`.

        Args:
            world: index of the robot.
        """
        course = self._courses[world]
        similarity = self.calibration.scorer.drive_scorer.compute_similarity(self._evidence[world])
        return find_cause(course.excess, similarity, course.first, hz=self.calibration.scorer.control_hz)

    def end(self, world: int, *, success: bool | None = None, intervened: bool | None = None) -> list[str]:
        """Add a robot's finished episode to the history, and return one sentence for each drift or changed rate.

        Args:
            world: index of the robot.
            success: whether the episode succeeded; None if unknown.
            intervened: whether a person intervened; None if unknown.
        """
        return self.history.add(self._courses[world].compute_levels(), success=success, intervened=intervened)

    def _add_scores(
        self, relative: Mapping[str, Array], standard: Mapping[str, Array], rows: Mapping[str, Array]
    ) -> tuple[Alarm, ...]:
        told, levels = (np.stack(list(values.values()), axis=1) for values in (relative, standard))
        names, alarms = list(relative), list[Alarm]()
        for world, course in enumerate(self._courses):
            row, step = told[world], int(self._step[world])
            course.add(names, row, levels[world], step, rising=_SINCE)
            beyond = np.flatnonzero(row > 1.0)
            fresh = [i for i in beyond if names[i] not in course.excess]
            for i in beyond:
                course.record_excess(names[i], step, float(row[i]))
            cause, order = self.get_cause(world) if fresh else ("unknown", [])
            alarms += [
                Alarm(
                    world=world,
                    step=step,
                    since=course.get_rise_step(names[i], step),
                    signal=names[i],
                    excess=float(row[i]),
                    cause=cause,
                    possible_causes=tuple(order),
                    control_hz=self.calibration.scorer.control_hz,
                    detail=self._describe_shift(names[i], rows, world),
                )
                for i in fresh
            ]
        return tuple(alarms)

    def _describe_shift(self, signal: str, rows: Mapping[str, Array], world: int) -> str:
        stream, _, kind = signal.rpartition("/")
        if kind != "shift":
            return ""
        return describe_motion(rows[stream][world], self._compute_focal_length(stream.removeprefix("camera/")))

    def _compute_focal_length(self, camera: str) -> float | None:
        """Return the focal length of a camera of the twin in px of its images; None if the twin has no such camera."""
        model = self._twin.model
        number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
        height = self.calibration.images[camera].background.shape[0]
        return None if number < 0 else height / 2.0 / math.tan(math.radians(float(model.cam_fovy[number])) / 2.0)


def check_policy(known: str, given: str, *, where: str) -> None:
    """Check that a monitor is for the policy that acts; an empty hash fits every policy.

    Args:
        known: hash of the policy for which the monitor was calibrated.
        given: hash of the policy that acts.
        where: name of the monitor for the error message.

    Raises:
        InputError: If both hashes are known and differ.
    """
    if known and given and known != given:
        raise InputError(
            f"{where} was calibrated for the policy {known[:12]}, but this policy is {given[:12]}. Calibrate a "
            "monitor for it: twinloop monitor calibrate --policy …"
        )
