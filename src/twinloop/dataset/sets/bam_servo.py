"""Servos with a pendulum on their horn, logs of Rhoban's BAM.

One JSON file per run: a header (mass kg, length m, kp in the firmware's own unit, vin V, motor, trajectory) and entries
(timestamp s, position and goal_position rad with 0 hanging down, speed rad/s, load in the firmware's unit, input_volts,
temp °C, torque_enable).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import read_json
from twinloop.core.errors import LogError
from twinloop.dataset.importers.numeric import signal, unit_map
from twinloop.dataset.importers.raw import RawEpisode
from twinloop.dataset.sets.files import recordings

JOINT = "pendulum"
_CONDITIONS = {"kp": "firmware_kp", "mass": "mass", "length": "length", "vin": "voltage"}
_SIGNALS = {  # field: (signal, unit)
    "speed": ("joint_velocity", "rad/s"),
    "torque_enable": ("enabled", "1"),
    "load": ("load", "1"),
    "input_volts": ("voltage", "V"),
    "temp": ("temperature", "°C"),
}
_MOST_BYTES = 1 << 28


def read_xl330(folder: Path) -> list[RawEpisode]:
    """The XL330's runs, in ``xl330_raw``."""
    return _read(folder, "xl330_raw")


def read_sts3250(folder: Path) -> list[RawEpisode]:
    """The STS3250's runs, in ``feetech_sts3250_raw``."""
    return _read(folder, "feetech_sts3250_raw")


def _read(folder: Path, subfolder: str) -> list[RawEpisode]:
    files = recordings(folder, subfolder, "*.json")
    return [_episode(index, path) for index, path in enumerate(files)]


def _episode(index: int, path: Path) -> RawEpisode:
    try:
        run = read_json(path, most=_MOST_BYTES)
        entries: list[Mapping[str, Any]] = run["entries"]
        conditions = {ours: float(run[theirs]) for theirs, ours in _CONDITIONS.items()}
        time, goal, position = (_column(entries, name) for name in ("timestamp", "goal_position", "position"))
        signals = {
            ours: signal(time, _column(entries, theirs), (_label(ours),), unit)
            for theirs, (ours, unit) in _SIGNALS.items()
        }
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise LogError(f"{path} is not a log of a BAM pendulum ({type(error).__name__}: {error}).") from error
    return RawEpisode(
        index=index,
        time=time,
        action=goal[:, None],
        state=position[:, None],
        units=unit_map({JOINT: "rad"}, source="BAM's format"),
        task=str(run.get("trajectory", "")),
        origin=f"{path.parent.name}/{path.name}",
        robot_type=str(run.get("motor", "")),
        signals=signals,
        conditions=conditions,
    )


def _label(name: str) -> str:
    return JOINT if name.startswith("joint_") else name


def _column(entries: list[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    """One field of all entries; null is NaN."""
    return np.array([entry[name] for entry in entries], dtype=np.float64)
