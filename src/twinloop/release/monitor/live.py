"""Monitor of running robots: scores at every step, and alarms with probable causes."""

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
_SINCE = 0.5  # of its limit: level from which an alarm's signal is counted as rising (our choice)


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """Alarm of a signal that exceeded its limit: its world, its step, and the step since which it had been rising.

    ``excess`` is the value divided by the limit. ``detail`` gives the value in physical units, if available. ``cause``
    is the cause that all signals of the episode indicate so far; ``instead`` lists the possible causes if it is
    unknown.
    """

    world: int
    step: int
    since: int
    signal: str
    excess: float
    cause: Cause
    instead: tuple[Cause, ...]
    control_hz: float
    detail: str = ""

    def __str__(self) -> str:
        """Return the alarm as a sentence."""
        doubt = f" ({' or '.join(self.instead)})" if self.cause == "unknown" and self.instead else ""
        return (
            f"{self.signal} at {self.excess:.2f} times its limit since {self.since / self.control_hz:.2f} s: "
            f"{get_meaning(self.signal).words}{self.detail and f' ({self.detail})'}. Points to: {self.cause}{doubt}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        names = ("world", "step", "since", "signal", "excess", "cause")
        return {**{name: getattr(self, name) for name in names}, "instead": list(self.instead), "says": str(self)}


@dataclass(frozen=True, kw_only=True)
class MonitorStep:
    """Result of one step.

    ``scores`` by signal ``(nworld,)`` are relative to their limits: above 1 is an alarm, NaN means that there is no
    score yet. ``alarms`` are the new alarms: for each signal, the first of an episode.
    """

    scores: Mapping[str, Array]
    alarms: tuple[Alarm, ...] = field(default=())


class LiveMonitor:
    """Monitor of ``nworld`` robots of one kind, created by `LiveMonitor.open` or from a calibration.

    Call `begin`, then `look` once per control step, and `end` after each episode.

    Args:
        calibration: calibration of the monitor.
        twin: the twin that the calibration names.
        hash: hash of the calibration, for logs.
        nthread: C threads for the twin's physics.

    Raises:
        InputError: the twin is not the calibration's.
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
        self._streams = MonitorStreams(twin, origin.contract, params, pictures=calibration.pictures, nthread=nthread)
        self.between = CalibrationHistory(calibration)

    @classmethod
    def open(cls, folder: str | Path, twin: Twin, *, policy_hash: str = "", nthread: int = 1) -> LiveMonitor:
        """Open the monitor that is stored in a folder.

        Args:
            folder: see `calibration.save_monitor_calibration`.
            twin: the twin that the calibration names.
            policy_hash: hash of the policy that will act, if known.
            nthread: see the class.

        Raises:
            InputError: the folder has no monitor, it is damaged, or it is for another policy or another twin.
        """
        calibration, found = read_monitor_calibration(Path(folder))
        check_policy(calibration.origin.policy_hash, policy_hash, where=str(folder))
        return cls(calibration, twin, hash=found, nthread=nthread)

    @property
    def contract(self) -> Contract:
        """Contract of the expected observations and commands."""
        return self.calibration.origin.contract

    def begin(self, nworld: int) -> None:
        """Start episodes of ``nworld`` robots with the next call of `look`."""
        self._streams.begin(nworld)
        self._step = np.zeros(nworld, dtype=np.int64)
        self._before: dict[str, Array] | None = None
        self._courses = [EpisodeScores() for _ in range(nworld)]
        self._evidence = np.zeros((nworld, 2 * len(self.calibration.scorer.drive_scorer.names) + 1))

    def restart(self, worlds: ArrayLike) -> None:
        """Start new episodes of some robots with the next call of `look`."""
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
        """Return the scores and new alarms of this step; see `MonitorStreams.measure_step` for the arguments.

        ``alive`` ``(nworld,)`` marks the robots whose episodes continue; all by default.

        Raises:
            InputError: an input that the calibration used is missing.
        """
        rows = self._streams.measure_step(observation, acting, command, reading)
        calibration, scorer = self.calibration, self.calibration.scorer
        smooth = scorer.smooth_scores(self._before, scorer.compute_scores(rows, self._step))
        self._before = {name: values.copy() for name, values in smooth.items()}
        goes_on = np.ones(len(self._step), dtype=bool) if alive is None else alive
        self._evidence += goes_on[:, None] * scorer.drive_scorer.compute_evidence(rows["drives"], self._step)
        usual = calibration.standardize(smooth, self._step)
        standard = {name: np.where(goes_on, values, np.nan) for name, values in usual.items()}
        relative = {name: values / calibration.band.together[name] for name, values in standard.items()}
        alarms = self._add_scores(relative, standard, rows)
        self._step += 1
        return MonitorStep(scores=relative, alarms=alarms)

    def get_cause(self, world: int) -> tuple[Cause, list[Cause]]:
        """Return the cause that all alarms of a world's episode indicate so far, see `signals.find_cause`."""
        course = self._courses[world]
        likeness = self.calibration.scorer.drive_scorer.compute_likeness(self._evidence[world])
        return find_cause(course.excess, likeness, course.first, hz=self.calibration.scorer.control_hz)

    def end(self, world: int, *, success: bool | None = None, intervened: bool | None = None) -> list[str]:
        """End an episode; return one sentence for each drift over episodes (see `signals.CalibrationHistory`)."""
        return self.between.add(self._courses[world].compute_levels(), success=success, intervened=intervened)

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
                    instead=tuple(order),
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
        """Return the focal length of a camera of the twin, in pixels of its images; None if it has no such camera."""
        model = self._twin.model
        number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
        height = self.calibration.pictures[camera].background.shape[0]
        return None if number < 0 else height / 2.0 / math.tan(math.radians(float(model.cam_fovy[number])) / 2.0)


def check_policy(known: str, given: str, *, where: str) -> None:
    """Raise InputError if a monitor is for another policy; an empty hash fits every policy."""
    if known and given and known != given:
        raise InputError(
            f"{where} was calibrated for the policy {known[:12]}, but this policy is {given[:12]}. Calibrate a "
            "monitor for it: twinloop monitor calibrate --policy …"
        )
