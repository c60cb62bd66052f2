"""Rotors of a drone: thrust per throttle as a curve, how late it comes, and the torque about their own axes.

A rotor is an actuator that pushes at a site. Its command is a throttle from 0 to 1; `simulate.rotors` turns it into the
thrust in N that the actuator applies, T = c0 + c1 u + c2 u², where u follows the throttle through first-order lags
(Eschmann, Albani, Loianno, "Data-Driven System Identification of Quadrotors Subject to Motor Delays", IROS 2024).
"""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.twin.quantities.kinds import Quantity, Target, assign

FAMILY, MEMBER = "rotors", "all"
_FREE = int(mujoco.mjtJoint.mjJNT_FREE)
_TURN = 5  # of an actuator's gear: the torque about the site's z axis per force along it


def rotor_rows(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Numbers of the actuators that push at a site along its z axis."""
    at_site = model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_SITE)
    return np.flatnonzero(at_site & (model.actuator_gear[:, 2] != 0.0))


def rotor_drag(target: Target) -> None:
    """Torque per thrust of every rotor, in the sense in which the model lets it turn."""
    model, chosen = target.model, rotor_rows(target.model)
    gear = np.repeat(model.actuator_gear[None, chosen], len(target.value("drag")), axis=0)
    gear[..., _TURN] = np.sign(model.actuator_gear[chosen, _TURN]) * target.value("drag")[:, None]
    target.put("actuator_gear", chosen, gear)


def carrier_dofs(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Degrees of freedom of the body that carries the rotors in which it turns about its x and y axes."""
    if not len(chosen := rotor_rows(model)):
        return np.zeros(0, dtype=np.intp)
    body = int(model.site_bodyid[model.actuator_trnid[chosen[0], 0]])
    return int(model.body_dofadr[model.body_rootid[body]]) + np.array([3, 4])


def _nominal_drag(model: mujoco.MjModel, name: str) -> float:  # noqa: ARG001  # the table's
    return float(np.abs(model.actuator_gear[rotor_rows(model)[0], _TURN]))


def _no_rotors(model: mujoco.MjModel, name: str) -> str:  # noqa: ARG001  # the table's
    free = len(rotor_rows(model)) and model.jnt_type[model.dof_jntid[carrier_dofs(model)[0]]] == _FREE
    return "" if free else "no free body of the model has an actuator that pushes at a site of it along its z axis"


def _stage(
    quantity: str, unit: str, low: float, high: float, meaning: str, *, default: float | None = None
) -> Quantity:
    return Quantity(
        family=FAMILY,
        member=MEMBER,
        quantity=quantity,
        unit=unit,
        low=low,
        high=high,
        default=default,
        given=default is None,
        stage="drive",
        lacks=_no_rotors,
        meaning=meaning,
    )


def _rotors() -> Iterator[Quantity]:
    yield _stage("thrust/constant", "N", -10.0, 10.0, "c0 of a rotor's thrust c0 + c1 u + c2 u², u its throttle")
    yield _stage("thrust/linear", "N", -100.0, 100.0, "c1 of a rotor's thrust")
    yield _stage("thrust/quadratic", "N", -100.0, 100.0, "c2 of a rotor's thrust")
    yield _stage("lag", "s", 0.0, 1.0, "time constant with which a rotor follows its throttle", default=0.0)
    yield _stage(
        "second_lag", "s", 0.0, 1.0, "time constant of a further lag before that: electronics, filters", default=0.0
    )
    yield Quantity(
        family=FAMILY,
        member=MEMBER,
        quantity="drag",
        unit="m",
        low=0.0,
        high=1.0,
        compute=rotor_drag,
        writes=("actuator_gear",),
        nominal=_nominal_drag,
        lacks=_no_rotors,
        meaning="torque about its own axis per thrust of a rotor",
    )
    yield Quantity(
        family=FAMILY,
        member=MEMBER,
        quantity="damping",
        unit="N·m·s/rad",
        low=0.0,
        high=10.0,
        slots=assign("dof_damping"),
        lacks=_no_rotors,
        meaning="torque of all rotors together against roll and pitch: a blade that meets the air faster lifts more",
    )


ROTORS: tuple[Quantity, ...] = tuple(_rotors())
