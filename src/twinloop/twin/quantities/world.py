"""The world: gravity's strength and direction, wind, air."""

from __future__ import annotations

import math

import mujoco
import numpy as np

from twinloop.twin.quantities.kinds import Quantity, Target, assign
from twinloop.twin.quantities.rotation import quat_from_rotation_vector, rotate

_TILT = "turn of gravity's direction about the world's {axis} axis, about x first: {effect}"


def _strength(model: mujoco.MjModel, _name: str) -> float:
    return float(np.linalg.norm(model.opt.gravity))


def gravity(target: Target) -> None:
    """The model's gravity, scaled and turned about x, then about y; straight down where the model has none."""
    own = target.model.opt.gravity
    strength = _strength(target.model, target.name)
    direction = own if strength > 0 else np.array([0.0, 0.0, -1.0])
    vector = direction * (target.value("magnitude") / (strength or 1.0))[:, None]
    for axis, tilt in enumerate((target.value("tilt_x"), target.value("tilt_y"))):
        vector = rotate(quat_from_rotation_vector(tilt[:, None] * np.eye(3)[axis]), vector)
    target.put("opt.gravity", range(3), vector)


def _gravity(quantity: str, unit: str, low: float, high: float, meaning: str, default: float | None = None) -> Quantity:
    return Quantity(
        family="world",
        member="gravity",
        quantity=quantity,
        unit=unit,
        low=low,
        high=high,
        default=default,
        nominal=_strength,
        compute=gravity,
        writes=("opt.gravity",),
        meaning=meaning,
    )


def _air(quantity: str, unit: str, high: float, meaning: str) -> Quantity:
    return Quantity(
        family="world",
        member="air",
        quantity=quantity,
        unit=unit,
        low=0.0,
        high=high,
        slots=assign(f"opt.{quantity}"),
        meaning=meaning,
    )


WORLD: tuple[Quantity, ...] = (
    _gravity("magnitude", "m/s²", 0.0, 100.0, "strength of gravity"),
    _gravity("tilt_x", "rad", -math.pi, math.pi, _TILT.format(axis="x", effect="things fall towards +y"), 0.0),
    _gravity("tilt_y", "rad", -math.pi, math.pi, _TILT.format(axis="y", effect="things fall towards −x"), 0.0),
    *(
        Quantity(
            family="world",
            member="wind",
            quantity=axis,
            unit="m/s",
            low=-100.0,
            high=100.0,
            slots=assign("opt.wind", column),
            meaning=f"velocity of the air along the world's {axis}; acts where the air has density or viscosity. "
            "Of scope step: gusts",
        )
        for column, axis in enumerate("xyz")
    ),
    _air("density", "kg/m³", 2000.0, "density of the air (1.2 at sea level; 0: vacuum): drag with the square of speed"),
    _air("viscosity", "Pa·s", 10.0, "viscosity of the air (1.8e-5 at 20 °C): drag in proportion to speed"),
)
