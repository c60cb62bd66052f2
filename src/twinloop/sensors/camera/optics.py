"""A camera's lens, shutter and clock from the values and settings that a twin has of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from twinloop.sensors.camera.capture import CaptureClock
from twinloop.sensors.camera.lens import Lens
from twinloop.sensors.camera.shutter import Shutter

_LENS = tuple(field.name for field in fields(Lens) if field.name != "model")
_SHUTTER = tuple(field.name for field in fields(Shutter) if field.name != "kind")
_CLOCK = tuple(field.name for field in fields(CaptureClock))
OPTICS_QUANTITIES: tuple[str, ...] = (*_CLOCK, *_SHUTTER, *_LENS)
OPTICS_SETTINGS: tuple[str, ...] = ("lens", "shutter")


def lens_of(values: Mapping[str, ArrayLike], settings: Mapping[str, Any], *, world: int = 0) -> Lens:
    """The lens of one world; what is not said is a perfect lens's.

    Args:
        values: by quantity, a number or one for each world (`Twin.sensor_values`); others' are passed over.
        settings: by name, as they are or as records with a ``value``; ``lens`` is the model, pinhole or fisheye.

    Raises:
        UnknownNameError: an unknown model.
        InputError: coefficients that the model does not have.
    """
    return Lens(model=_choice(settings, "lens", "pinhole"), **_numbers(values, _LENS, world))


def shutter_of(values: Mapping[str, ArrayLike], settings: Mapping[str, Any], *, world: int = 0) -> Shutter:
    """The shutter of one world, arguments as `lens_of`; the setting ``shutter`` is its kind, rolling or global.

    Raises:
        UnknownNameError: an unknown kind.
        InputError: a time below 0.
    """
    return Shutter(kind=_choice(settings, "shutter", "rolling"), **_numbers(values, _SHUTTER, world))


def clock_of(values: Mapping[str, ArrayLike]) -> CaptureClock:
    """The clocks of all worlds; values as `lens_of`."""
    return CaptureClock(**{name: values[name] for name in _CLOCK if name in values})


def _numbers(values: Mapping[str, ArrayLike], names: tuple[str, ...], world: int) -> dict[str, float]:
    given = {name: np.ravel(np.asarray(values[name], dtype=np.float64)) for name in names if name in values}
    return {name: float(value[world] if len(value) > 1 else value[0]) for name, value in given.items()}


def _choice(settings: Mapping[str, Any], name: str, otherwise: str) -> Any:
    said = settings.get(name, otherwise)
    return getattr(said, "value", said)
