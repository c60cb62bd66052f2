"""The monitor beside running robots: scores at every step, alarms with what they point to."""

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
from twinloop.release.monitor.calibration import Calibration, read
from twinloop.release.monitor.pictures import how_far
from twinloop.release.monitor.signals import CalibrationHistory, Cause, EpisodeScores, cause_of, meaning
from twinloop.release.monitor.streams import MonitorStreams, ObservedPolicy
from twinloop.twin import Twin

Array = NDArray[np.float64]
_SINCE = 0.5  # of its limit: from where on a signal that went beyond it is said to have risen (our choice)


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A signal that left its band: in which world, at which step, and since when it had been rising.

    ``excess`` is how many times its limit it reached, ``detail`` how far in its own units where it has some; ``cause``
    what all signals of the episode point to so far, ``instead`` what else comes into question where that is unknown.
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
        """A sentence."""
        doubt = f" ({' or '.join(self.instead)})" if self.cause == "unknown" and self.instead else ""
        return (
            f"{self.signal} at {self.excess:.2f} times its limit since {self.since / self.control_hz:.2f} s: "
            f"{meaning(self.signal).words}{self.detail and f' ({self.detail})'}. Points to: {self.cause}{doubt}."
        )

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        names = ("world", "step", "since", "signal", "excess", "cause")
        return {**{name: getattr(self, name) for name in names}, "instead": list(self.instead), "says": str(self)}


@dataclass(frozen=True, kw_only=True)
class MonitorStep:
    """What one step says.

    ``scores`` by signal ``(nworld,)`` are in units of their limits: beyond 1 is an alarm, NaN says nothing yet.
    ``alarms`` are the new ones: of each signal the first in an episode.
    """

    scores: Mapping[str, Array]
    alarms: tuple[Alarm, ...] = field(default=())


class LiveMonitor:
    """Watches ``nworld`` robots of one kind; made by `LiveMonitor.open` or of a calibration.

    Call `begin`, then `look` once per control step, and `end` where an episode has ended.

    Args:
        calibration: what is usual.
        twin: the one that it names.
        hash: of the calibration, for logs.
        nthread: C threads of the twin's physics.

    Raises:
        InputError: another twin than the calibration's.
    """

    def __init__(self, calibration: Calibration, twin: Twin, *, hash: str = "", nthread: int = 1) -> None:  # noqa: A002
        origin = calibration.origin
        if twin.hash != origin.twin_hash:
            raise InputError(
                f"This monitor was calibrated with the twin {origin.twin} ({origin.twin_hash[:12]}); {twin.name} is "
                f"{twin.hash[:12]}. Open it with that one, or calibrate it for this: twinloop monitor calibrate."
            )
        self.calibration, self.hash = calibration, hash
        self._twin = twin
        params = twin.table(1, dict(origin.params))
        self._streams = MonitorStreams(twin, origin.contract, params, pictures=calibration.pictures, nthread=nthread)
        self.between = CalibrationHistory(calibration)

    @classmethod
    def open(cls, folder: str | Path, twin: Twin, *, policy_hash: str = "", nthread: int = 1) -> LiveMonitor:
        """The monitor kept in a folder.

        Args:
            folder: see `storage`.
            twin: the one that it names.
            policy_hash: of the policy that will act, where one is known.
            nthread: see the class.

        Raises:
            InputError: none lies there, it is damaged, or it is another policy's or another twin's.
        """
        calibration, found = read(Path(folder))
        check_policy(calibration.origin.policy_hash, policy_hash, where=str(folder))
        return cls(calibration, twin, hash=found, nthread=nthread)

    @property
    def contract(self) -> Contract:
        """What it expects to be shown."""
        return self.calibration.origin.contract

    def begin(self, nworld: int) -> None:
        """Episodes of so many robots begin with the next look."""
        self._streams.begin(nworld)
        self._step = np.zeros(nworld, dtype=np.int64)
        self._before: dict[str, Array] | None = None
        self._courses = [EpisodeScores() for _ in range(nworld)]
        self._evidence = np.zeros((nworld, 2 * len(self.calibration.scorer.drives.names) + 1))

    def restart(self, worlds: ArrayLike) -> None:
        """Episodes of some begin with the next look."""
        index = np.asarray(worlds)
        self._streams.restart(index)
        self._step[index] = 0
        self._evidence[index] = 0.0
        for world in index.ravel().tolist():
            self._courses[world] = EpisodeScores()
        for values in (self._before or {}).values():
            values[index] = np.nan

    def look(
        self,
        observation: Mapping[str, NDArray],
        acting: ObservedPolicy | None,
        command: ArrayLike,
        reading: ArrayLike | None = None,
        *,
        alive: NDArray[np.bool_] | None = None,
    ) -> MonitorStep:
        """Scores and new alarms of this step; see `MonitorStreams.look` for what is given.

        ``alive`` ``(nworld,)`` are the robots whose episodes go on; all by default.

        Raises:
            InputError: something that the calibration had is missing.
        """
        rows = self._streams.look(observation, acting, command, reading)
        calibration, scorer = self.calibration, self.calibration.scorer
        smooth = scorer.smoothed(self._before, scorer.scores(rows, self._step))
        self._before = {name: values.copy() for name, values in smooth.items()}
        goes_on = np.ones(len(self._step), dtype=bool) if alive is None else alive
        self._evidence += goes_on[:, None] * scorer.drives.evidence(rows["drives"], self._step)
        usual = calibration.standard(smooth, self._step)
        standard = {name: np.where(goes_on, values, np.nan) for name, values in usual.items()}
        relative = {name: values / calibration.band.together[name] for name, values in standard.items()}
        alarms = self._alarms(relative, standard, rows)
        self._step += 1
        return MonitorStep(scores=relative, alarms=alarms)

    def cause(self, world: int) -> tuple[Cause, list[Cause]]:
        """What all alarms of a world's episode so far point to, see `signals.cause_of`; unknown and nothing: none."""
        course = self._courses[world]
        likeness = self.calibration.scorer.drives.likeness(self._evidence[world])
        return cause_of(course.excess, likeness, course.first, hz=self.calibration.scorer.control_hz)

    def end(self, world: int, *, success: bool | None = None, intervened: bool | None = None) -> list[str]:
        """An episode has ended; what the course of episodes says now, a sentence each (see `drift.Between`)."""
        return self.between.add(self._courses[world].levels(), success=success, intervened=intervened)

    def _alarms(
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
                course.beyond(names[i], step, float(row[i]))
            cause, order = self.cause(world) if fresh else ("unknown", [])
            alarms += [
                Alarm(
                    world=world,
                    step=step,
                    since=course.since(names[i], step),
                    signal=names[i],
                    excess=float(row[i]),
                    cause=cause,
                    instead=tuple(order),
                    control_hz=self.calibration.scorer.control_hz,
                    detail=self._detail(names[i], rows, world),
                )
                for i in fresh
            ]
        return tuple(alarms)

    def _detail(self, signal: str, rows: Mapping[str, Array], world: int) -> str:
        stream, _, kind = signal.rpartition("/")
        if kind != "shift":
            return ""
        return how_far(rows[stream][world], self._focal(stream.removeprefix("camera/")))

    def _focal(self, camera: str) -> float | None:
        """The focal length of a camera of the twin, in pixels of its pictures; None of one that it lacks."""
        model = self._twin.model
        number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
        height = self.calibration.pictures[camera].background.shape[0]
        return None if number < 0 else height / 2.0 / math.tan(math.radians(float(model.cam_fovy[number])) / 2.0)


def check_policy(known: str, given: str, *, where: str) -> None:
    """Raises InputError where a monitor is another policy's; an empty hash is nobody's."""
    if known and given and known != given:
        raise InputError(
            f"{where} was calibrated for the policy {known[:12]}, and this is {given[:12]}: what is usual for one is "
            "not for another. Calibrate a monitor for it: twinloop monitor calibrate --policy …"
        )
