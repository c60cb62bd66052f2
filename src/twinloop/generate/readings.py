"""Store readings of a twin's sensors in a generated dataset, as features and side tables.

A feature holds the reading that is delivered at each frame. A side table holds all samples of a sensor, at the sensor's
own rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from twinloop.core.contract import ENVIRONMENT
from twinloop.core.errors import InputError
from twinloop.core.profile import span
from twinloop.core.records import SimEpisode
from twinloop.dataset.lerobot.parquet import to_fixed_lists
from twinloop.dataset.side_tables import check_name
from twinloop.dataset.spec import ReadingSpec
from twinloop.rollout import BodySensors, SensorReading, reading_columns, select_sensors
from twinloop.tasks.protocol import Task, TrackedTask, has_tracked_values
from twinloop.twin import Twin

SAMPLES = "readings/"  # prefix of a sensor's side table, before the sensor's name

SensorSamples: TypeAlias = dict[str, list[pa.Table]]
"""All samples of each sensor: by name of its side table, a list with one table per episode."""


def reading_specs(twin: Twin, names: Sequence[str] | str) -> tuple[ReadingSpec, ...]:
    """Return the dataset features of the readings of a twin's sensors, named ``observation.KIND.NAME``.

    Args:
        twin: the twin.
        names: names of sensors, or ``all``.

    Raises:
        UnknownNameError: If the twin has no such sensor.
        InputError: If the readings of a sensor are not rows of numbers, or its name is not valid for a side table.
    """
    specs: list[ReadingSpec] = []
    for name in select_sensors(twin, names):
        check_name(_table_name(name))
        columns = reading_columns(twin, name)
        specs.append(ReadingSpec(name=_feature_name(twin, name), columns=tuple(columns), units=tuple(columns.values())))
    return tuple(specs)


def environment_spec(task: Task) -> ReadingSpec:
    """Return the dataset feature ``observation.environment_state`` (name as in LeRobot).

    It has the tracked values of the scene, which the task declares, for example object poses.

    Raises:
        InputError: If the task has no tracked values.
    """
    if not has_tracked_values(task):
        raise InputError(
            f"The task {task.name} has no tracked values (environment_names, environment). "
            "Leave environment_state out, or add them to the task."
        )
    names = task.environment_names
    units = tuple("m" if name.endswith((".x", ".y", ".z")) else "1" for name in names)
    return ReadingSpec(name=ENVIRONMENT.removeprefix("observation."), columns=names, units=units)


def add_environment(task: TrackedTask, episodes: Sequence[SimEpisode]) -> list[SimEpisode]:
    """Add the tracked values of the scene (for example object poses) at each frame; return the extended episodes."""
    return [
        replace(episode, readings={**episode.readings, ENVIRONMENT: task.environment(episode.states[:-1])})
        for episode in episodes
    ]


def add_readings(sensors: BodySensors, episodes: Sequence[SimEpisode]) -> tuple[list[SimEpisode], SensorSamples]:
    """Compute the readings of the inertial, force and servo sensors in each episode.

    Returns:
        The episodes with the reading that is delivered at each frame, and all samples of the sensors by side table.
    """
    kept: list[SimEpisode] = []
    felt: SensorSamples = {_table_name(name): [] for name in sensors.names}
    for episode in episodes:
        with span("readings"):
            read = sensors.read(episode)
        frames = {f"observation.{_feature_name(sensors.twin, name)}": reading.frames for name, reading in read.items()}
        kept.append(replace(episode, readings={**episode.readings, **frames}))
        for name, reading in read.items():
            felt[_table_name(name)].append(_sample_table(episode.number, reading))
    return kept, felt


def _feature_name(twin: Twin, name: str) -> str:
    return f"{twin.devices[name].kind}.{name}"


def _table_name(name: str) -> str:
    return SAMPLES + name


def _sample_table(number: int, reading: SensorReading) -> pa.Table:
    """Return one row per sample of a sensor: episode number, times of sampling and delivery in s, and values."""
    return pa.table(
        {
            "number": pa.array(np.full(len(reading.time), number), pa.int64()),
            "time": pa.array(reading.time, pa.float64()),
            "delivered": pa.array(reading.delivered, pa.float64()),
            "values": to_fixed_lists(reading.values.astype(np.float32)),
        }
    )
