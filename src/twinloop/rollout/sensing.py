"""What a robot reports of itself along recorded states."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import ParamTable
from twinloop.sensors.encoder import encoder_reading
from twinloop.twin import Twin


def joint_readings(twin: Twin, params: ParamTable, qpos: NDArray[np.float64]) -> NDArray[np.float64]:
    """Joint positions as the robot reports them at each step, ``(nworld, nstep, n)`` in rad or m.

    Args:
        qpos: true positions at the moment of each command, ``(nworld, nstep, nq)``. The reading of step t is taken
            before the command of step t is issued, so that an actor could have known it.
    """
    counts = twin.robot.encoder_counts
    resolution = None if counts is None else 2 * math.pi / counts
    true = qpos[..., twin.joint_qpos]
    if not any(name.startswith("sensor/") for name in params.steps):
        offset, scale = _encoder(twin, params)
        return encoder_reading(true, offset, scale, resolution=resolution)
    readings = [
        encoder_reading(true[:, step], *_encoder(twin, params.at(step)), resolution=resolution)
        for step in range(true.shape[1])
    ]
    return np.stack(readings, axis=1)


def _encoder(twin: Twin, params: ParamTable) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return twin.column(params, "sensor", "offset", 0.0), twin.column(params, "sensor", "scale", 1.0)
