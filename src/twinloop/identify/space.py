"""What is free in a fit: parameters of the twin, in the space where the solver walks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.twin import Param, Twin


@dataclass(frozen=True, kw_only=True)
class Prior:
    """How far from its nominal value a quantity may plausibly be: one standard deviation.

    ``spread`` is relative to the nominal where ``relative`` (at least ``least``), else in the quantity's unit; for
    parameters with a log transform it is in natural logarithms, which is the same as relative. It scales the solver's
    steps, breaks ties between parameters that the data cannot tell apart, and is what "not determined" is measured
    against.
    """

    spread: float
    relative: bool = False
    least: float = 0.0


# Families of parameters that a log of commands and positions can speak of, in the order in which they are printed.
PRIORS: Mapping[str, Prior] = {
    # Published gains of one servo, the STS3215: 8.9 (kt V/R · 0.166 P), 17.8, 23.5 N·m/rad: a factor of about two.
    "actuator/{actuator}/kp": Prior(spread=0.7),
    # The limit follows the supply: 6 V (flat battery) to 9 V where 7.4 V is nominal.
    "actuator/{actuator}/torque_limit": Prior(spread=0.2),
    # Lags of 100 to 133 ms in the SO-101 log, most of it the servo's own.
    "actuator/{actuator}/delay": Prior(spread=0.05),
    # Sag under load and dead band found on STS3215: 1.8 to 2.6 degrees.
    "actuator/{actuator}/bias": Prior(spread=0.05),
    # 0.60 from back-EMF at 7.4 V, 1.38 identified at 12 V (kscalelabs/sysid).
    "joint/{joint}/damping": Prior(spread=1.0, relative=True, least=0.02),
    # Coulomb 0.05 N·m unloaded; gear friction grows with the load several times over (Rhoban/bam, models M2 to M6).
    "joint/{joint}/frictionloss": Prior(spread=3.0, relative=True, least=0.02),
    # Two identifications of one servo agree to 2 %, but a rotor's inertia mimics the other lags.
    "joint/{joint}/armature": Prior(spread=0.5, relative=True, least=1e-4),
    # Zero of a calibration done by hand.
    "sensor/{joint}/offset": Prior(spread=0.1),
    # Range of a calibration done by hand, where a full turn may be 128 or 360 degrees wide for another.
    "sensor/{joint}/scale": Prior(spread=0.05),
}


@dataclass(frozen=True, kw_only=True)
class FreeParam:
    """One free parameter: its ``centre`` and ``sd`` beforehand, where the walk starts, its bounds, all transformed."""

    param: Param
    joint: int
    centre: float
    start: float
    sd: float
    low: float
    high: float

    @property
    def name(self) -> str:
        """The parameter's name in the twin."""
        return self.param.name

    @property
    def log(self) -> bool:
        """Whether the solver walks in its logarithm."""
        return self.param.transform == "log"


@dataclass(frozen=True, kw_only=True)
class Space:
    """The free parameters of a fit and the values of all others."""

    twin: Twin
    free: tuple[FreeParam, ...]
    fixed: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the free parameters."""
        return tuple(parameter.name for parameter in self.free)

    def column(self, name: str) -> NDArray[np.float64]:
        """``centre``, ``start``, ``sd``, ``low`` or ``high`` of every free parameter, ``(p,)``."""
        return np.array([getattr(parameter, name) for parameter in self.free])

    def values(self, points: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """SI values by name at transformed points ``(…, p)``."""
        return {p.name: np.exp(points[..., i]) if p.log else points[..., i] for i, p in enumerate(self.free)}

    def table(self, points: NDArray[np.float64]) -> ParamTable:
        """The twin's complete table at transformed points ``(nworld, p)``."""
        within = {
            name: np.clip(value, self.twin.params[name].low, self.twin.params[name].high)  # rounding of exp(log(bound))
            for name, value in self.values(points).items()
        }
        return self.twin.table(len(points), {**self.fixed, **within})

    def block(self, joint: int) -> NDArray[np.intp]:
        """Columns of the parameters of one joint."""
        return np.flatnonzero([parameter.joint == joint for parameter in self.free])

    def quantity(self, suffix: str) -> NDArray[np.intp]:
        """Columns whose names end in one of a quantity's names, such as ``delay``."""
        return np.flatnonzero([name.rsplit("/", 1)[-1] == suffix for name in self.names])


def free_space(
    twin: Twin,
    *,
    start: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] | None = None,
    only: Sequence[str] | None = None,
) -> Space:
    """Every parameter of the robot that the twin declares and a log can speak of.

    Args:
        twin: the twin to be identified.
        start: where to start from, SI, in place of the nominal value.
        fixed: values known beforehand, SI; they are not free.
        only: quantities that are free (``kp``, ``damping``, …), default all.

    Raises:
        InputError: the twin declares none of them.
    """
    start, fixed = start or {}, fixed or {}
    free = []
    for joint, (joint_name, actuator) in enumerate(zip(twin.robot.joints, twin.robot.actuator_names, strict=True)):
        for pattern, prior in PRIORS.items():
            name = pattern.format(joint=joint_name, actuator=actuator)
            wanted = (only is None or name.rsplit("/", 1)[-1] in only) and _meaningful(twin, pattern)
            if name in twin.params and name not in fixed and wanted:
                free.append(_free(twin.params[name], joint, prior, start.get(name)))
    if not free:
        kinds = ", ".join(pattern.rsplit("/", 1)[-1] for pattern in PRIORS)
        raise InputError(f"The twin {twin.name} declares no parameter that a log could tell ({kinds}). Add one.")
    return Space(twin=twin, free=tuple(free), fixed=dict(fixed))


def _meaningful(twin: Twin, pattern: str) -> bool:
    """A torque command passes no encoder and no position loop."""
    servo_only = pattern.startswith("sensor/") or pattern.endswith(("/kp", "/bias"))
    return twin.robot.control == "position" or not servo_only


def _free(param: Param, joint: int, prior: Prior, start: float | None) -> FreeParam:
    value = float(np.clip(param.nominal if start is None else start, param.low, param.high))
    spread = max(prior.spread * abs(param.nominal) if prior.relative else prior.spread, prior.least)
    if param.transform != "log":
        return FreeParam(
            param=param, joint=joint, centre=param.nominal, start=value, sd=spread, low=param.low, high=param.high
        )
    return FreeParam(
        param=param,
        joint=joint,
        centre=math.log(param.nominal),
        start=math.log(value),
        sd=prior.spread,
        low=math.log(param.low) if param.low > 0 else -math.inf,
        high=math.log(param.high),
    )
