"""What is free in a fit: parameters of the twin, in the space where the solver walks."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.twin import Param, Twin
from twinloop.twin.params import split_path


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
    "actuator/*/kp": Prior(spread=0.7),
    # The limit follows the supply: 6 V (flat battery) to 9 V where 7.4 V is nominal.
    "actuator/*/torque_limit": Prior(spread=0.2),
    # Lags of 100 to 133 ms in the SO-101 log, most of it the servo's own.
    "actuator/*/delay": Prior(spread=0.05),
    # Sag under load and dead band found on STS3215: 1.8 to 2.6 degrees.
    "actuator/*/bias": Prior(spread=0.05),
    # 0.60 from back-EMF at 7.4 V, 1.38 identified at 12 V (kscalelabs/sysid).
    "joint/*/damping": Prior(spread=1.0, relative=True, least=0.02),
    # Coulomb 0.05 N·m unloaded; gear friction grows with the load several times over (Rhoban/bam, models M2 to M6).
    "joint/*/frictionloss": Prior(spread=3.0, relative=True, least=0.02),
    # Two identifications of one servo agree to 2 %, but a rotor's inertia mimics the other lags.
    "joint/*/armature": Prior(spread=0.5, relative=True, least=1e-4),
    # Zero of a calibration done by hand.
    "sensor/*/offset": Prior(spread=0.1),
    # Range of a calibration done by hand, where a full turn may be 128 or 360 degrees wide for another.
    "sensor/*/scale": Prior(spread=0.05),
}


# What may be free besides, where it is named. Standard deviations of our choice where no source is given.
OTHER_PRIORS: Mapping[str, Prior] = {
    # Sliding friction of plastic, wood and metal runs from 0.1 to 0.6: a factor of e about the middle, in either way.
    "*/friction/*": Prior(spread=0.7, relative=True, least=1e-4),
    "*/contact/stiffness": Prior(spread=2.0),
    "*/contact/damping_ratio": Prior(spread=0.5, relative=True, least=0.1),
    "*/mass": Prior(spread=0.2),
    "*/inertia/*": Prior(spread=0.3),
    "*/com/*": Prior(spread=0.02),
    "*/log_cholesky/t?": Prior(spread=0.02),
    "*/log_cholesky/*": Prior(spread=0.3),
    "joint/*/load_friction": Prior(spread=0.1),
    "joint/*/stiction": Prior(spread=3.0, relative=True, least=0.02),
    "timing/*": Prior(spread=0.02),
}


@dataclass(frozen=True, kw_only=True)
class FreeParam:
    """One free parameter: its ``centre`` and ``sd`` beforehand, where the walk starts, its bounds, all transformed.

    ``joint`` is the number of the robot's joint that it belongs to, None where it belongs to none or to all.
    """

    param: Param
    joint: int | None
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
        with np.errstate(over="ignore"):  # an end of an interval that data leave open may be infinite: it is clipped
            return {  # exp(log(bound)) may round to beyond it
                p.name: np.clip(np.exp(points[..., i]) if p.log else points[..., i], p.param.low, p.param.high)
                for i, p in enumerate(self.free)
            }

    def table(self, points: NDArray[np.float64]) -> ParamTable:
        """The twin's complete table at transformed points ``(nworld, p)``."""
        return self.twin.table(len(points), {**self.fixed, **self.values(points)})

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
    fixed: Sequence[str] = (),
    values: Mapping[str, float] | None = None,
    free: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    priors: Mapping[str, Prior] | None = None,
) -> Space:
    """The free parameters of a fit: those that are named, or every one of the robot that a log can speak of.

    Args:
        twin: the twin to be identified.
        start: where to start from, SI, in place of the nominal value.
        fixed: parameters that are not free.
        values: values of fixed parameters other than their nominal ones, SI.
        free: patterns of the parameters that are free, with ``*``.
        only: quantities that are free (``kp``, ``damping``, …), default all.
        priors: by pattern, before the built-in ones.

    Raises:
        InputError: the twin declares none of them.
        UnknownNameError: a pattern that fits none of the twin's parameters.
    """
    start, known = start or {}, {**(priors or {}), **PRIORS, **OTHER_PRIORS}
    chosen = _of_the_robot(twin) if free is None else _named(twin, free)
    found = [
        _free(twin.params[name], joint, _prior(twin.params[name], known), start.get(name))
        for name, joint in chosen.items()
        if name not in fixed and (only is None or name.rsplit("/", 1)[-1] in only)
    ]
    if not found:
        kinds = ", ".join(pattern.rsplit("/", 1)[-1] for pattern in PRIORS)
        raise InputError(f"The twin {twin.name} declares no parameter that a log could tell ({kinds}). Add one.")
    return Space(twin=twin, free=tuple(found), fixed=dict(values or {}))


def _of_the_robot(twin: Twin) -> dict[str, int | None]:
    """The robot's parameters of the families in `PRIORS`, and the joint of each."""
    chosen = {}
    for joint, (joint_name, actuator) in enumerate(zip(twin.robot.joints, twin.robot.actuator_names, strict=True)):
        for pattern in PRIORS:
            family, _, quantity = pattern.split("/", 2)
            name = f"{family}/{actuator if family == 'actuator' else joint_name}/{quantity}"
            if name in twin.params and _meaningful(twin, pattern):
                chosen[name] = joint
    return chosen


def _named(twin: Twin, patterns: Sequence[str]) -> dict[str, int | None]:
    """The parameters that patterns name, and the joint of those that belong to one."""
    owners: dict[tuple[str, str], int] = {}
    if twin.spec.robot is not None:
        for joint, (name, actuator) in enumerate(zip(twin.robot.joints, twin.robot.actuator_names, strict=True)):
            owners |= {("joint", name): joint, ("sensor", name): joint, ("actuator", actuator): joint}
    chosen = {}
    for pattern in patterns:
        names = fnmatch.filter(twin.params, pattern)
        if not names:
            raise UnknownNameError("parameter", pattern, twin.params, where=f"twin {twin.name}")
        chosen |= {name: owners.get((split_path(name)[0], split_path(name)[1])) for name in names}
    return chosen


def _prior(param: Param, known: Mapping[str, Prior]) -> Prior:
    """The first pattern that fits; else half of what a default range spans, or a factor of e for what is positive."""
    for pattern, prior in known.items():
        if fnmatch.fnmatchcase(param.name, pattern):
            return prior
    if param.transform == "log":
        return Prior(spread=1.0)
    if param.default_range is not None:
        low, high = param.absolute(param.default_range, param.op)
        return Prior(spread=max(float(high - low) / 2, 1e-9))
    raise InputError(
        f"Nothing says how far {param.name} may be from {param.nominal:g} {param.unit} beforehand. Give it a prior, or "
        "a default range in the twin."
    )


def _meaningful(twin: Twin, pattern: str) -> bool:
    """A torque command passes no encoder and no position loop."""
    servo_only = pattern.startswith("sensor/") or pattern.endswith(("/kp", "/bias"))
    return twin.robot.control == "position" or not servo_only


def _free(param: Param, joint: int | None, prior: Prior, start: float | None) -> FreeParam:
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
