"""Between motor and link: friction that is more than Coulomb's, and where the twin has gears their play and wind-up."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco

from twinloop.twin.quantities.kinds import Quantity, Slot, assign

MOTOR, GEAR = "{}/motor", "{}/gear"  # names of a joint's motor side, and of the tendon from there to the link


def is_motor_side(name: str) -> bool:
    """Whether a joint or body of that name is the motor side of a gear."""
    return name.endswith(MOTOR.format(""))


def motor_joint(model: mujoco.MjModel, name: str) -> int:
    """The joint on the motor's side of a joint's gear; the joint itself where it has none."""
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, MOTOR.format(name))
    return index if index >= 0 else model.joint(name).id


def _lacks_gear(model: mujoco.MjModel, name: str) -> str:
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_TENDON, GEAR.format(name))
    return "" if index >= 0 else "backlash belongs to joints with gears (robot.gears)"


def _lacks_spring(model: mujoco.MjModel, name: str) -> str:
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_TENDON, GEAR.format(name))
    elastic = index >= 0 and model.tendon_stiffness[index] > 0
    return (
        "" if elastic else "gear_stiffness belongs to the joints of a robot with elastic gears (robot.gears.stiffness)"
    )


def _lacks_drive(model: mujoco.MjModel, name: str) -> str:
    joint = motor_joint(model, name)
    driven = (model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT) & (model.actuator_trnid[:, 0] == joint)
    return "" if driven.any() else "load_friction belongs to a joint that an actuator turns"


def _friction() -> Iterator[Quantity]:
    for quantity, unit, low, high, default, lacks, meaning in (
        ("stiction", "1", 1.0, 20.0, 1.0, None, "friction at rest over Coulomb friction in motion"),
        ("stribeck_velocity", "rad/s", 1e-4, 10.0, 0.1, None, "speed at which the difference has fallen to 1/e"),
        ("load_friction", "1", 0.0, 0.9, 0.0, _lacks_drive, "dry friction per torque of the joint's actuator"),
    ):
        yield Quantity(
            family="joint",
            quantity=quantity,
            unit=unit,
            low=low,
            high=high,
            default=default,
            stage="drive",
            lacks=lacks,
            meaning=meaning,
        )


GEARS: tuple[Quantity, ...] = (
    *_friction(),
    Quantity(
        family="joint",
        quantity="backlash",
        unit="rad",
        low=0.0,
        high=0.5,
        slots=tuple(
            Slot(field=field, column=column, factor=factor)
            for field in ("tendon_range", "tendon_lengthspring")
            for column, factor in enumerate((-0.5, 0.5))
        ),
        lacks=_lacks_gear,
        meaning="play of the gear, from flank to flank",
    ),
    Quantity(
        family="joint",
        quantity="gear_stiffness",
        unit="N·m/rad",
        low=1e-3,
        high=1e6,
        transform="log",
        slots=assign("tendon_stiffness"),
        lacks=_lacks_spring,
        meaning="stiffness of the gear's wind-up",
    ),
)
