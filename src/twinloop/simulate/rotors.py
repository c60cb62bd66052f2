"""From throttles to thrusts, between physics steps: see `twin.quantities.rotors` for the law."""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate.clock import Array, AsArray
from twinloop.simulate.drive_wiring import Moment
from twinloop.simulate.protocol import InitialState
from twinloop.twin import Twin
from twinloop.twin.quantities.rotors import FAMILY, MEMBER, rotor_rows

_THRUST = ("thrust/constant", "thrust/linear", "thrust/quadratic")


class Rotors:
    """Throttles become thrusts; a rotor that begins in the middle of a recording turns as the throttles before say.

    Both lags are stepped exactly for a throttle that is constant over a physics step. Thrust is never negative.
    """

    fields: tuple[str, ...] = ()
    remembers = True

    def __init__(self, twin: Twin, before: InitialState | None) -> None:
        self._twin, self._before = twin, before
        mask = np.zeros(twin.model.nu, dtype=bool)
        mask[rotor_rows(twin.model)] = True
        self._mask = mask
        self._speed: Array = None  # what the rotors turn at, as a throttle; none before parameters are loaded
        self._electric: Array = None

    def load(self, params: ParamTable, as_array: AsArray) -> bool:
        """See `drives.Stage`."""
        if f"{FAMILY}/{MEMBER}/{_THRUST[2]}" not in self._twin.params:
            return False
        columns = {name: self._column(params, name) for name in (*_THRUST, "lag", "second_lag")}
        self._values = {name: as_array(column[:, None]) for name, column in columns.items()}
        self._rotor = as_array(self._mask)
        if self._speed is None:
            electric, speed = self._recalled(columns, params.nworld)
            self._electric, self._speed = as_array(electric), as_array(speed)
        return True

    def _column(self, params: ParamTable, quantity: str) -> NDArray[np.float64]:
        name = f"{FAMILY}/{MEMBER}/{quantity}"
        nominal = self._twin.params[name].nominal if name in self._twin.params else 0.0
        return np.asarray(params.get(name, np.full(params.nworld, nominal)))

    def _recalled(self, values: dict[str, NDArray[np.float64]], nworld: int) -> tuple[NDArray, NDArray]:
        """Where both lags stand after the throttles before the beginning; NaN where none are known."""
        unknown = np.full((nworld, self._twin.model.nu), np.nan)
        if self._before is None or not self._before.earlier.shape[1]:
            return unknown, unknown.copy()
        dt = 1.0 / self._twin.control_hz
        quick, slow = (_gain(np, values[name][:, None], dt) for name in ("second_lag", "lag"))
        electric = speed = np.asarray(self._before.command)
        for throttle in np.moveaxis(self._before.earlier, 1, 0):
            electric = electric + quick * (throttle - electric)
            speed = speed + slow * (electric - speed)
        return electric, speed

    def begin(self, fresh: Array) -> None:
        """See `drives.Stage`; worlds that begin anew in the middle of a run begin with what they are told first."""
        if self._before is not None:  # the first beginning, which has a history
            self._before = None
            return
        xp = array_namespace(fresh)
        self._speed = xp.where(fresh[:, None], np.nan, self._speed)
        self._electric = xp.where(fresh[:, None], np.nan, self._electric)

    def apply(self, moment: Moment) -> None:
        """See `drives.Stage`."""
        xp, values = array_namespace(moment.control), self._values
        throttle = moment.control
        electric = xp.where(xp.isnan(self._electric), throttle, self._electric)
        speed = xp.where(xp.isnan(self._speed), throttle, self._speed)
        step = moment.timestep[:, None]
        self._electric = electric + _gain(xp, values["second_lag"], step) * (throttle - electric)
        self._speed = speed + _gain(xp, values["lag"], step) * (self._electric - speed)
        thrust = (values[_THRUST[2]] * self._speed + values[_THRUST[1]]) * self._speed + values[_THRUST[0]]
        moment.control = xp.where(self._rotor[None, :], xp.clip(thrust, 0.0, None), throttle)


def _gain(xp: Array, lag: Array, step: Array) -> Array:
    """Part of the way that a first-order lag goes in a step; all of it without lag."""
    slow = xp.where(lag > 0.0, lag, 1.0)
    return xp.where(lag > 0.0, 1.0 - xp.exp(-step / slow), 1.0)
