"""Define the loops: tasks, logs, fits, slices and sizes of the steps. Robots whose seeds are below 500 chose them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from twinloop.core.records import LoggedSignal

_SPRING = 2000.0  # N/m, of the scale below the tissue
_PLATE = 0.02  # m, height of its plate above the stand without load


def plate_position(tracked: LoggedSignal) -> dict[str, LoggedSignal]:
    """Return what the scale shows, as the position of its plate (signal ``place/plate``)."""
    seen = dict(zip(tracked.columns, tracked.values.T, strict=True))
    stand = [np.full(len(tracked.time), np.median(seen[f"stand.{axis}"])) for axis in "xyz"]
    stand[2] = stand[2] + _PLATE - seen["scale.force"] / _SPRING
    return {"place/plate": replace(tracked, values=np.stack(stand, axis=1), columns=tuple("xyz"), unit="m")}


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """Settings of one loop.

    Attributes:
        twin: name of the nominal twin.
        task: name of the task.
        fit: options of `twinloop identify`, as in its fit file.
        suite: suite of `twinloop evaluate`.
        followed: parameters whose estimates are in the table.
        log: number of episodes of the log; the last ``held`` of them test the fit.
        held: number of held-out episodes.
        seconds: length of an episode of the log.
        shake: standard deviation of the noise on the commands in the log, in rad.
        signals: function that returns further signals from the tracked values of an episode.
        teaching: options of `twinloop distill`.
        search: options of `twinloop scenario search`.
        retraining: options of `twinloop scenario loop`.
        trials: number of trials of each policy on the robot, and in each slice.
    """

    twin: str
    task: str
    fit: Mapping[str, Any]
    suite: Mapping[str, Any]
    followed: tuple[str, ...]
    log: int = 6
    held: int = 2
    seconds: float
    shake: float = 0.0
    signals: Callable[[LoggedSignal], dict[str, LoggedSignal]] | None = None
    teaching: Mapping[str, Any]
    search: Mapping[str, Any]
    retraining: Mapping[str, Any]
    trials: int = 100


_SLICES = {"base": "default", "name": "slices"}
_TRACKED = {"tracker-noise": 0.001, "tracker-offset": 0.002}  # errors of a tracker, as in docs/evidence/transfer.md
_TAUGHT = {"rounds": 5, "steps": 2000, "final-steps": 6000, "lr": 0.006}  # those of `twinloop demo`
_SEARCH = {"worlds": 128, "rounds": 4, "draws": 512, "illuminate": 0, "simplify": 4}
_RETRAINING = {"episodes": 32, "steps": 4000, "tries": 32, "trials": 100}

LOOPS: dict[str, LoopSettings] = {
    "press": LoopSettings(
        twin="panda_press",
        task="press",
        fit={
            "replay": {"compare": ["position", "place/tcp", "place/plate"], "contacts": True},
            "free": ["joint/*", "actuator/*", "sensor/*/offset", "soft/tissue/young", "soft/tissue/damping"],
            "search": "multistart",
            "starts": 1,
            "iterations": 8,
            "polish": 0,
        },
        suite=_SLICES
        | {
            "slices": [
                {"name": "all"},
                {"name": "soft", "set": {"soft/tissue/young": "low"}},
                {"name": "stiff", "set": {"soft/tissue/young": "high"}},
                {"name": "near", "set": {"object/stand/position/x": "low"}},
                {"name": "far", "set": {"object/stand/position/x": "high"}},
            ]
        },
        followed=("soft/tissue/young",),
        seconds=5.0,
        signals=plate_position,
        teaching=_TAUGHT | _TRACKED,
        search=_SEARCH,
        retraining=_RETRAINING,
    ),
}
