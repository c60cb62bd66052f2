"""Define the loops: tasks, logs, fits, slices and sizes of the steps. Robots whose seeds are below 500 chose them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from twinloop.core.records import LoggedSignal

_SPRING = 2000.0  # N/m, of the scale below the tissue


def scale_position(tracked: LoggedSignal) -> dict[str, LoggedSignal]:
    """Return what the scale shows, as the position of its spring."""
    force = tracked.values[:, tracked.columns.index("scale.force")]
    return {"joint/scale": replace(tracked, values=force[:, None] / _SPRING, columns=("position",), unit="m")}


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """Settings of one loop.

    Attributes:
        base: name of the twin of the robot without the task's scene, which is identified first.
        twin: name of the twin with the scene.
        task: name of the task.
        scene: options of `twinloop identify` for the scene, as in its fit file.
        followed: parameters of the scene whose estimates are in the table.
        episodes: number of episodes of the task's log; the last `HELD` of them test the fit.
        seconds: length of such an episode.
        shake: standard deviation of the noise on the commands in that log, in rad.
        signals: function that returns further signals from the tracked values of an episode.
        slices: slices of the evaluation suite, by name: values by parameter.
    """

    base: str
    twin: str
    task: str
    scene: Mapping[str, Any]
    followed: tuple[str, ...]
    episodes: int
    seconds: float
    shake: float
    signals: Callable[[LoggedSignal], dict[str, LoggedSignal]] | None = None
    slices: Mapping[str, Mapping[str, str]]


LOOPS: dict[str, LoopSettings] = {
    "press": LoopSettings(
        base="panda_tabletop",
        twin="panda_press",
        task="press",
        scene={
            "replay": {"compare": ["position", "place/tcp", "joint/scale"], "contacts": True},
            "free": ["soft/tissue/*", "sensor/joint*/offset", "actuator/joint*/kp"],
            "accuracy": {"joint/scale": 0.1 / _SPRING},  # that of a kitchen scale, 10 g
            "search": "multistart",
            "starts": 1,
        },
        followed=("soft/tissue/young", "soft/tissue/damping", "soft/tissue/friction/slide"),
        episodes=8,
        seconds=6.0,
        shake=0.006,
        signals=scale_position,
        slices={
            "soft": {"soft/tissue/young": "low"},
            "stiff": {"soft/tissue/young": "high"},
            "near": {"object/stand/position/x": "low"},
            "far": {"object/stand/position/x": "high"},
        },
    ),
    "peg": LoopSettings(
        base="panda_tabletop",
        twin="panda_peg",
        task="insert_peg",
        scene={
            "replay": {"compare": ["position", "place/tcp"]},
            "free": ["sensor/joint*/offset", "actuator/joint*/kp"],
        },
        followed=(),
        episodes=6,
        seconds=8.0,
        shake=0.0,
        slices={
            "thin": {"object/peg/size": "low"},
            "thick": {"object/peg/size": "high"},
            "slippery": {"object/peg/friction/slide": "low"},
            "heavy": {"object/peg/mass": "high"},
        },
    ),
}

FREE_EPISODES, FREE_SECONDS = 4, 8.0  # of the log in which the robot touches nothing, as in `twinloop demo`
HELD = 2
ARM_FIT = {"iterations": 8, "polish": 0}  # options of `twinloop identify` for the robot, as in `twinloop demo`
# Options of the commands: sizes of the teaching are those of `twinloop demo`, and the tracker's errors in it those of
# the virtual robots (`hardware/cell.yaml`).
TEACHING = {
    "rounds": 5, "steps": 2000, "final-steps": 6000, "lr": 0.006, "tracker-noise": 0.001, "tracker-offset": 0.002,
}  # fmt: skip
SEARCH = {"worlds": 128, "rounds": 4, "draws": 512, "illuminate": 0, "simplify": 4}
RETRAINING = {"episodes": 32, "steps": 4000, "tries": 32, "trials": 100}
TRIALS = 100  # of each policy on the robot, and in each slice
