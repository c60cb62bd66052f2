"""Which frames of a recording are in contact, by putting the twin where the log measured it."""

from __future__ import annotations

import copy

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.twin import Twin

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def contact_frames(twin: Twin, qpos: Array, parts: Mask, known: Mask, reach: float) -> Mask:
    """Whether parts of a twin touch anything else, at measured positions.

    Args:
        twin: with contacts.
        qpos: ``(nwindow, nframe, nq)``; frames with NaN are in contact with nothing.
        parts: the bodies that belong together, ``(npart, nbody)``: a contact counts for a part where one of the two
            bodies belongs to it and the other does not.
        known: the bodies whose place was measured, or does not move, ``(nbody,)``; contacts with others do not count.
        reach: distance in m up to which surfaces touch.

    Returns:
        ``(nwindow, nframe, npart)``.
    """
    model = copy.copy(twin.model)
    model.geom_margin[:] = model.body_margin[:] = reach  # the broad phase asks the bodies'
    model.geom_gap[:] = 0.0
    data = mujoco.MjData(model)
    touching = np.zeros((*qpos.shape[:2], len(parts)), dtype=bool)
    for window, frame in np.argwhere(~np.isnan(qpos).any(axis=-1)):
        data.qpos[:] = qpos[window, frame]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_collision(model, data)
        touching[window, frame] = _touching(model, data, parts, known, reach)
    return touching


def _touching(model: mujoco.MjModel, data: mujoco.MjData, parts: Mask, known: Mask, reach: float) -> Mask:
    geoms = data.contact.geom[data.contact.dist <= reach]
    first, second = model.geom_bodyid[geoms[(geoms >= 0).all(axis=1)]].T
    placed = known[first] & known[second]
    between = parts[:, first] != parts[:, second]
    return (between & placed).any(axis=1)


def subtree(model: mujoco.MjModel, body: int) -> Mask:
    """A body and all that hang on it, ``(nbody,)``."""
    below = np.zeros(model.nbody, dtype=bool)
    below[body] = True
    for child in range(body + 1, model.nbody):  # parents come first
        below[child] |= below[model.body_parentid[child]]
    return below
