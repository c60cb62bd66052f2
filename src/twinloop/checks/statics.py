"""Checks that need no motion: the model compiles, and nothing overlaps where it begins."""

from __future__ import annotations

import mujoco
import numpy as np

from twinloop.checks.report import Check
from twinloop.twin import Twin

PENETRATION_LIMIT_MM = 0.1  # soft contacts at rest overlap by less than this; overlapping shapes by more


def check_compiles(twin: Twin) -> Check:
    """The twin's description compiles again to the model in use, and all of its numbers are finite."""
    name = "compiles"
    try:
        again = twin.mjspec.copy().compile()
    except ValueError as error:
        return Check.fail(name, f"the description does not compile: {error}")
    differing = [field for field in _arrays(twin.model) if not _same(twin.model, again, field)]
    infinite = [field for field in _arrays(twin.model) if not np.isfinite(getattr(twin.model, field)).all()]
    wrong = sorted({*differing, *infinite})
    size = f"nq {twin.model.nq}, nv {twin.model.nv}, nu {twin.model.nu}, {len(twin.params)} parameters"
    detail = f"{size}; wrong fields: {', '.join(wrong[:6])}" if wrong else size
    return Check.judge(name, len(wrong), 0, "fields", detail=detail)


def check_penetration(twin: Twin) -> Check:
    """Depth of the deepest overlap of colliding geoms in the starting pose."""
    model, data = twin.model, mujoco.MjData(twin.model)
    data.qpos[:] = twin.home()[0]
    mujoco.mj_forward(model, data)
    depth, pair = deepest_overlap(model, data)
    detail = f"between {pair}" if depth > 0 else f"{data.ncon} contacts"
    return Check.judge("no initial penetration", 1e3 * depth, PENETRATION_LIMIT_MM, "mm", detail=detail)


def deepest_overlap(model: mujoco.MjModel, data: mujoco.MjData, *, body: int | None = None) -> tuple[float, str]:
    """The deepest overlap in metres (0: none) among current contacts, and the two geoms; ``body`` limits to its own."""
    depth, pair = 0.0, ""
    for contact in data.contact:
        touching = (int(contact.geom1), int(contact.geom2))
        if body is not None and all(model.geom_bodyid[geom] != body for geom in touching):
            continue
        if -contact.dist > depth:
            depth = float(-contact.dist)
            pair = " and ".join(model.geom(geom).name or f"geom {geom}" for geom in touching)
    return depth, pair


def _arrays(model: mujoco.MjModel) -> list[str]:
    names = (name for name in dir(model) if not name.startswith("_"))
    return [name for name in names if isinstance(value := getattr(model, name), np.ndarray) and value.dtype.kind == "f"]


def _same(model: mujoco.MjModel, other: mujoco.MjModel, field: str) -> bool:
    left, right = getattr(model, field), getattr(other, field)
    return left.shape == right.shape and np.array_equal(left, right, equal_nan=True)
