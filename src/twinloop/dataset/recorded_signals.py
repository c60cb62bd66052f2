"""What a log measured besides joint positions, in a dataset: exact in a side table, and as features at every frame.

A signal that all episodes have becomes ``observation.NAME`` (with dots for slashes: ``observation.pose.cube``), sampled
at the frames: orientations by spherical interpolation, switches and throttles held, all else linearly, the end values
beyond the ends. The side table ``signals`` keeps every signal with its own times and numbers (`signal_table`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import Episode, Signal
from twinloop.dataset.resample import HELD, hold, interpolate, interpolate_rotation
from twinloop.dataset.spec import ReadingSpec

_POSE_UNITS = ("m", "m", "m", "1", "1", "1", "1")
_MIXED = {"pose": _POSE_UNITS, "twist": ("m/s",) * 3 + ("rad/s",) * 3, "wrench": ("N",) * 3 + ("N·m",) * 3}


def shared_signals(episodes: Sequence[Episode]) -> dict[str, ReadingSpec]:
    """The feature of each signal that all episodes have with the same columns and unit, by the signal's name."""
    first = episodes[0].signals
    same = [
        name
        for name, signal in first.items()
        if all(name in e.signals and _alike(e.signals[name], signal) and len(e.signals[name]) for e in episodes)
    ]
    return {
        name: ReadingSpec(
            name=name.replace("/", "."), columns=first[name].columns, units=column_units(name, first[name])
        )
        for name in same
    }


def at_frames(name: str, signal: Signal, time: NDArray[np.float64]) -> NDArray[np.float64]:
    """A signal at an episode's frames, ``(T, k)``."""
    if name in HELD:
        return hold(signal.time, signal.values, time)
    if not name.startswith("pose/"):
        return interpolate(signal.time, signal.values, time)
    position = interpolate(signal.time, signal.values[:, :3], time)
    return np.concatenate([position, interpolate_rotation(signal.time, signal.values[:, 3:], time)], axis=1)


def readings(log: Episode, specs: Mapping[str, ReadingSpec]) -> dict[str, NDArray[np.float64]]:
    """The features of one episode by their keys."""
    return {spec.key: at_frames(name, log.signals[name], log.time) for name, spec in specs.items()}


def _alike(one: Signal, other: Signal) -> bool:
    return (one.columns, one.unit) == (other.columns, other.unit)


def column_units(name: str, signal: Signal) -> tuple[str, ...]:
    """The unit of each column; of those of unlike units by what the name stands for, else unknown ("")."""
    if signal.unit:
        return (signal.unit,) * len(signal.columns)
    units = _MIXED.get(name.partition("/")[0], ())
    return units if len(units) == len(signal.columns) else ("",) * len(signal.columns)
