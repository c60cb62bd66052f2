"""Frames of any LeRobot v3.0 folder as they lie there, whoever wrote it and whatever its metadata leave out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twinloop.core.errors import LogError
from twinloop.core.records import Source
from twinloop.core.units import JointUnit, UnitMap
from twinloop.dataset.lerobot.parquet import numbers
from twinloop.dataset.lerobot.reader import DatasetReader, flat_names
from twinloop.dataset.logs.importers.columns import EpisodeBuilder
from twinloop.dataset.logs.importers.protocol import LogOptions, RawEpisode
from twinloop.dataset.signals import generated_signals
from twinloop.dataset.spec import STATE, TRUE_TIME


def read_raw(reader: DatasetReader, index: int, *, task: str, source: Source, ours: bool) -> RawEpisode:
    """An episode from LeRobot's own files, unchecked.

    Raises:
        LogError: there is no state.
        DatasetError: a file is missing or damaged.
    """
    features = reader.info["features"]
    if STATE not in features:
        raise LogError(f"{reader.path} has no {STATE}; it has {', '.join(features)}. Nothing tells how it moves.")
    signals = generated_signals(reader, index) if ours else {}
    time = reader.array(index, TRUE_TIME).reshape(-1) if TRUE_TIME in features else None
    joints, paired = _joints(reader)
    if not paired:
        table = reader.frames_table(index, [STATE, "timestamp"])
        state = numbers(table[STATE], where=f"{reader.path}: {STATE} of episode {index}").reshape(table.num_rows, -1)
        stamps = numbers(table["timestamp"], where=f"{reader.path}: timestamp of episode {index}").reshape(-1)
        return RawEpisode(
            index=index, time=stamps if time is None else time, action=np.zeros_like(state), state=state,
            units=_unknown(joints), task=task, source=source, origin=str(reader.path), command="none", signals=signals,
        )  # fmt: skip
    builder = EpisodeBuilder(
        str(reader.path),
        LogOptions(joints=joints, units=_unknown(joints) if reader.units is None else None),
        action_names=_names(reader, "action"),
        state_names=_names(reader, STATE),
        fps=reader.fps,
        units=reader.units,
        robot_type=str(reader.info.get("robot_type") or ""),
    )
    made = builder.build(index, reader.frames_table(index, builder.columns), task=task, source=source)
    changes = made.__dict__ | {"signals": signals, "time": made.time if time is None else time}
    return RawEpisode(**changes)


def _names(reader: DatasetReader, feature: str) -> list[str]:
    """Names of a vector's columns; none where the metadata give none."""
    entry = reader.info["features"].get(feature, {})
    names = [name.removesuffix(".pos") for name in flat_names(entry.get("names"))]
    return names if len(names) == _width(reader, feature) else []


def _width(reader: DatasetReader, feature: str) -> int:
    return int(np.prod(reader.info["features"].get(feature, {}).get("shape", [0])))


def _joints(reader: DatasetReader) -> tuple[list[str], bool]:
    """Joint names, and whether each has a command: an action may be another thing than positions of the joints."""
    actions, states, width = _names(reader, "action"), _names(reader, STATE), _width(reader, STATE)
    numbered = [f"joint_{column}" for column in range(width)]
    if actions and set(actions) <= set(states):
        return actions, True
    if not actions and not states and width == _width(reader, "action"):
        return numbered, True
    return states or numbered, False


def _unknown(joints: Sequence[str]) -> UnitMap:
    rows = tuple(JointUnit(joint=joint, unit="unknown", scale=None, offset=None) for joint in joints)
    return UnitMap(joints=rows, source="nothing says")
