"""What tests of several files share: dataset logs."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest

from twinloop.core.records import Episode
from twinloop.core.units import JointUnit, UnitMap

SO101 = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")


SO101_UNITS = ["range_m100_100"] * 5 + ["range_0_100"]


def real(name: str) -> Path:
    folder = Path(os.environ.get("TWINLOOP_DATA", "")) / name
    if "TWINLOOP_DATA" not in os.environ or not folder.exists():
        pytest.skip(f"TWINLOOP_DATA holds no {name}")
    return folder


def planted_log(count: int = 3, *, jitter: bool = True) -> list[Episode]:
    """Episodes with true times off the nominal grid and values that float32 cannot hold."""
    units = UnitMap(
        joints=(
            JointUnit(joint="pan", unit="deg", scale=math.pi / 180, offset=0.1),
            JointUnit(joint="gripper", unit="range_0_100", scale=None, offset=None),
        ),
        source="planted",
    )
    episodes = []
    for index in range(count):
        rng = np.random.default_rng(index)
        time = np.arange(40) / 25 + (rng.uniform(0, 0.005, 40) if jitter else 0)
        values = rng.normal(size=(2, 40, 2)).cumsum(axis=1)
        episodes.append(
            Episode(
                index=2 * index,
                time=time,
                action=values[0],
                state=values[1],
                units=units,
                task="wave",
                origin="arm 7",
                robot_type="so101_follower",
            )
        )
    return episodes
