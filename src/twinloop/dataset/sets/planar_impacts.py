"""Planar drops of a square and bounces of an ellipse: Nima Fazeli's recordings (MIT MCube), kept in ImpactModeling.

A plane seen from the side: x to the right, z up from the ground, both m, and an angle in rad that grows from x towards
z (a hinge about −y). That sense follows from the data: the spin that an impulse at the lowest corner gives has it in
the square's recordings (slope 0.93, r 0.91 over 44 bounces; with the other sense 0.49), and so do the ellipse's contact
points.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.dataset.importers.numeric import bounded, read_columns, signal, stack, unit_map
from twinloop.dataset.importers.raw import RawEpisode
from twinloop.dataset.sets.files import number, recordings

RATE_HZ = 250.0  # the set's description; steps of x are velocity times 4 ms within 0.3 %
_POSITIONS = ("x", "z", "th")
_VELOCITIES = ("vx", "vz", "vth")
_MOST_BYTES = 1 << 28
_STATES = 12


def read(folder: Path) -> list[RawEpisode]:
    """All drops of the square, in ``square_dice``: slides x, z and hinge th as joints, and no command."""
    return [_episode(path) for path in recordings(folder, "square_dice", "*.csv")]


def _episode(path: Path) -> RawEpisode:
    columns = read_columns(path, [*_POSITIONS, *_VELOCITIES])
    state = stack(columns, _POSITIONS)
    time = np.arange(len(state)) / RATE_HZ
    return RawEpisode(
        index=number(path),
        time=time,
        action=np.zeros_like(state),
        state=state,
        units=unit_map({"x": "m", "z": "m", "th": "rad"}, source="the set's description"),
        task="drop",
        origin=f"{path.parent.name}/{path.name}",
        robot_type="planar_square",
        command="none",
        signals={"joint_velocity": signal(time, stack(columns, _VELOCITIES), _POSITIONS, "")},
    )


@dataclass(frozen=True, kw_only=True)
class Bounces:
    """Single impacts, one a row: ``before`` and ``after`` ``(n, 6)`` are x, z, th, vx, vz, vth.

    ``normal`` and ``tangent`` ``(n, 3)`` are the contact point's Jacobian rows against (vx, vz, vth).
    ``flagged`` ``(n,)`` says that the recording marks the bounce as doubtful, for whichever reason.
    """

    before: NDArray[np.float64]
    after: NDArray[np.float64]
    normal: NDArray[np.float64]
    tangent: NDArray[np.float64]
    flagged: NDArray[np.bool_]


def read_ellipse(folder: Path) -> Bounces:
    """The bounces of the ellipse (axes 0.07 m and 0.05 m), in ``ellipse_uniform.mat``.

    Raises:
        LogError: the file is missing or is not this.
    """
    import scipy.io

    path = folder / "ellipse_uniform.mat"
    if not path.is_file():
        raise LogError(f"{path} is missing: it holds the bounces of the ellipse.")
    try:
        rows = scipy.io.loadmat(str(bounded(path, _MOST_BYTES)))["bounce_array"].ravel()
        states = np.array([row["states"].ravel() for row in rows], dtype=np.float64).reshape(-1, _STATES)
        normal, tangent = (np.array([row[n].ravel() for row in rows], dtype=np.float64) for n in ("n", "d"))
        flagged = np.array([row["flags"].any() for row in rows], dtype=np.bool_)
    except (ValueError, KeyError, IndexError, TypeError, NotImplementedError) as error:
        raise LogError(f"{path} is not a file of bounces ({type(error).__name__}: {error}).") from error
    return Bounces(before=states[:, :6], after=states[:, 6:], normal=normal, tangent=tangent, flagged=flagged)
