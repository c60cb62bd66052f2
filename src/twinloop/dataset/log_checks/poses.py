"""Poses: quaternions that are none, or in another order, and positions in another unit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from twinloop.dataset.log_checks.expectations import LogRecord
from twinloop.dataset.log_checks.finding import Finding, in_episode

_OFF, _WRONG = 1e-3, 0.05  # of a quaternion's length: rounding to four digits, and no rotation at all
_FAR = 100.0  # m from the origin: no room where a robot is tracked is larger
_IDENTITY = 0.99  # of the fourth number at the beginning, where the first should be


def check_poses(record: LogRecord) -> Iterator[Finding]:
    """Every ``pose/BODY`` of one episode; what its velocity says is in `derivatives`."""
    for name, signal in record.signals.items():
        if not name.startswith("pose/") or signal.values.shape[1:] != (7,) or not len(signal.time):
            continue
        place, wxyz = signal.values[:, :3], signal.values[:, 3:]
        norm = np.linalg.norm(wxyz, axis=1)
        off = np.flatnonzero(np.abs(norm - 1) > _OFF)
        if len(off):
            worst = float(np.nanmax(np.abs(norm - 1)))
            yield in_episode(
                record, name, float(signal.time[off[0]]), "quaternion_norm", "error" if worst > _WRONG else "warning",
                f"{len(off)} quaternions are not of unit length, {norm[off[0]]:.5g} at frame {off[0]}.",
                "Divide by the length where it is rounding; else the columns are not a quaternion.",
                count=float(len(off)), worst=worst,
            )  # fmt: skip
        elif (
            f"twist/{name.removeprefix('pose/')}" not in record.signals
            and np.abs(wxyz[0, 3]) > _IDENTITY
            and np.median(np.abs(wxyz[:, 3])) > _IDENTITY
        ):
            yield in_episode(
                record, name, signal.time[0], "quaternion_order", "note",
                f"stays near ({', '.join(f'{x:.3g}' for x in wxyz[0])}): half a turn about z if it is wxyz, at rest if "
                "it is xyzw.",
                "--quaternions xyzw, if so.", last=float(wxyz[0, 3]),
            )  # fmt: skip
        far = np.flatnonzero(np.abs(place).max(axis=1) > _FAR)
        if len(far):
            yield in_episode(
                record, name, float(signal.time[far[0]]), "pose_unit", "error",
                f"is {np.nanmax(np.abs(place)):.4g} m from the origin: these look like mm.", f"--scale {name}=0.001",
                reach=float(np.nanmax(np.abs(place))),
            )  # fmt: skip
