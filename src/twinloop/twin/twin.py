"""Define the compiled twin: a MuJoCo model with its control rate, parameters and sensors."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.core.units import UnitMap, unit_map_from_ranges
from twinloop.twin.devices import SensingDevice
from twinloop.twin.fields import FieldValues, field_values, find_coupled_params
from twinloop.twin.params import Param
from twinloop.twin.places import ROOM, Scenery, add_place, write_rooms_inplace
from twinloop.twin.quantities import default_value
from twinloop.twin.quantities.joints import find_motor_joint
from twinloop.twin.quantities.sensing import SENSING
from twinloop.twin.scene import SceneSlots
from twinloop.twin.servos import ServoSpec, preset_nominals
from twinloop.twin.spec import RobotSpec, TwinSpec
from twinloop.twin.textures import add_texture_pool

HOME = "home"


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A compiled MuJoCo model with its named parameters, control rate and sensors.

    Attributes:
        spec: Content of the twin's YAML file.
        model: Compiled model with the physics step `dt`. MuJoCo's automatic reset is disabled, because it hides
            divergence.
        params: Parameters by name, in the model's order.
        hash: SHA-256 hash of the content: YAML, model text and asset files. For a derived twin, a suffix names the
            change.
        mjspec: Source of the model, from which variants for rendering are compiled.
        servos: Servo preset of each robot joint; None for a joint without a preset.
        scene: Objects of the ``scene:`` section, or None if there is no such section.
        devices: Sensing devices by sensor name.
        gradual_commands: Whether motors reach a new command gradually over two physics steps, see
            `simulate.command.arrived_share`; for fits.
    """

    spec: TwinSpec
    model: mujoco.MjModel
    params: Mapping[str, Param]
    hash: str
    mjspec: mujoco.MjSpec = field(repr=False)
    servos: tuple[ServoSpec | None, ...] = ()
    scene: SceneSlots | None = None
    devices: Mapping[str, SensingDevice] = field(default_factory=dict)
    gradual_commands: bool = False

    @property
    def name(self) -> str:
        """Name of the twin."""
        return self.spec.name

    @property
    def control_hz(self) -> float:
        """Control rate in commands per second."""
        return self.spec.control_hz

    @property
    def substeps(self) -> int:
        """Physics steps per command."""
        return self.spec.substeps

    @property
    def dt(self) -> float:
        """Physics step in seconds."""
        return 1.0 / (self.spec.control_hz * self.spec.substeps)

    @property
    def robot(self) -> RobotSpec:
        """Robot of the twin: its joints, actuators and units.

        Raises:
            InputError: If the twin has no robot.
        """
        if self.spec.robot is None:
            raise InputError(
                f"The twin {self.name} has no robot: no named actuator drives a named joint. Add actuators to an MJCF, "
                "effort limits to a URDF's joints, or `robot:` to the twin's YAML."
            )
        return self.spec.robot

    @cached_property
    def joint_ranges(self) -> NDArray[np.float64]:
        """Lower and upper limit of each robot joint in rad or m, shape ``(njoint, 2)``."""
        ids = [self.model.joint(name).id for name in self.robot.joints]
        return self.model.jnt_range[ids].copy()

    def find_command_ranges(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the lower and the upper limit of each command, shape ``(nu,)`` each, in rad or m.

        These are the ranges of the joints. If commands are torques or velocities, they are the ranges of the actuators.

        Raises:
            InputError: If a joint has no range.
        """
        if self.robot.control != "position":
            limits, limited = self.model.actuator_ctrlrange, self.model.actuator_ctrllimited.astype(bool)
        else:
            limits = self.joint_ranges
            limited = limits[:, 0] < limits[:, 1]
        if not limited.all():
            joint = self.robot.joints[int(np.argmin(limited))]
            raise InputError(
                f"Actions are scaled to ranges, but {joint} of {self.name} has no range. Add a range to the model."
            )
        return limits[:, 0].copy(), limits[:, 1].copy()

    @cached_property
    def joint_qpos(self) -> NDArray[np.intp]:
        """Index in ``qpos`` of each robot joint, shape ``(njoint,)``."""
        return np.array([self.model.joint(name).qposadr[0] for name in self.robot.joints])

    @cached_property
    def joint_qvel(self) -> NDArray[np.intp]:
        """Index in ``qvel`` of each robot joint, shape ``(njoint,)``."""
        return np.array([self.model.joint(name).dofadr[0] for name in self.robot.joints])

    @cached_property
    def motor_qpos(self) -> NDArray[np.intp]:
        """Index in ``qpos`` of the motor side of each robot joint, or of the joint itself if it has no gear."""
        return self.model.jnt_qposadr[[find_motor_joint(self.model, name) for name in self.robot.joints]].astype(
            np.intp
        )

    @cached_property
    def motor_qvel(self) -> NDArray[np.intp]:
        """Index in ``qvel`` of the motor side of each robot joint, or of the joint itself if it has no gear."""
        return self.model.jnt_dofadr[[find_motor_joint(self.model, name) for name in self.robot.joints]].astype(np.intp)

    @property
    def encoder_qpos(self) -> NDArray[np.intp]:
        """Index in ``qpos`` of the position that each joint's encoder measures.

        This is the joint itself, or the motor side of its gear if the encoders are there.
        """
        return self.motor_qpos if self._encoders_before_gears else self.joint_qpos

    @property
    def encoder_qvel(self) -> NDArray[np.intp]:
        """Index in ``qvel`` of the velocity that each joint's encoder measures, shape ``(njoint,)``.

        This is the joint itself, or the motor side of its gear if the encoders are there.
        """
        return self.motor_qvel if self._encoders_before_gears else self.joint_qvel

    @property
    def _encoders_before_gears(self) -> bool:
        return self.robot.gears is not None and self.robot.gears.feedback == "motor"

    @cached_property
    def encoder_resolution(self) -> NDArray[np.float64]:
        """Size of one count of each joint's encoder in rad, shape ``(njoint,)``; 0 if unknown."""
        nominals = preset_nominals(self.robot, self.servos)
        return np.array([nominals.get(f"sensor/{joint}/resolution", 0.0) for joint in self.robot.joints])

    def align_motors(self, qpos: ArrayLike) -> NDArray[np.float64]:
        """Return a copy of positions with every motor at its link's position, in the middle of the gear's backlash.

        Args:
            qpos: Positions, shape ``(…, nq)``.
        """
        aligned = np.array(qpos, dtype=np.float64)
        if self.spec.robot is not None:
            aligned[..., self.motor_qpos] = aligned[..., self.joint_qpos]
        return aligned

    def align_coupled_joints(self, qpos: NDArray[np.float64], qvel: NDArray[np.float64]) -> None:
        """Set joints that an equality couples to a robot joint, such as a second finger, to their coupled state.

        Args:
            qpos: Positions, shape ``(…, nq)``, changed in place.
            qvel: Velocities, shape ``(…, nv)``, changed in place.
        """
        model, leaders = self.model, {self.model.joint(name).id for name in self.robot.joints}
        for row in np.flatnonzero((model.eq_type == int(mujoco.mjtEq.mjEQ_JOINT)) & model.eq_active0.astype(bool)):
            first, second = int(model.eq_obj1id[row]), int(model.eq_obj2id[row])
            if second in leaders and first not in leaders:
                move_coupled_joint(model, int(row), qpos, qvel)
            elif first in leaders and second >= 0 and second not in leaders:
                _move_leading_joint(model, int(row), qpos, qvel)

    @cached_property
    def units(self) -> UnitMap:
        """Unit conversion of the robot's joints, for datasets with the units of the twin's YAML."""
        return self.unit_map(self.robot.units)

    @cached_property
    def command_units(self) -> UnitMap:
        """Unit conversion of the robot's commands, which are positions, velocities or torques."""
        return self.units.of_commands(self.robot.control)

    def unit_map(self, units: list[str]) -> UnitMap:
        """Return the unit conversion of the robot's joints for the given units, based on the twin's joint ranges.

        Args:
            units: Unit of each joint, for example ``deg``.

        Raises:
            InputError: If the number of units is not the number of joints.
            UnknownNameError: If a unit does not exist.
        """
        if len(units) != len(self.robot.joints):
            joints = ", ".join(self.robot.joints)
            raise InputError(
                f"{len(units)} units are given for the {len(self.robot.joints)} joints of {self.name} ({joints}). "
                "Give one unit for each joint, in this order."
            )
        return unit_map_from_ranges(self.robot.joints, self.joint_ranges, units, source=f"joint ranges of {self.name}")

    def find_param(self, name: str) -> Param:
        """Return the parameter with the given name.

        Raises:
            UnknownNameError: If there is no such parameter; the message lists the nearest names.
        """
        if name not in self.params:
            raise UnknownNameError("parameter", name, self.params, where=f"twin {self.name}")
        return self.params[name]

    def table(self, nworld: int = 1, values: Mapping[str, ArrayLike] | None = None) -> ParamTable:
        """Return a parameter table with nominal values, some of them replaced.

        Args:
            nworld: Number of worlds, which are the rows of the table.
            values: Replaced values by parameter name, one number for all worlds or an array of shape ``(nworld,)``.

        Raises:
            UnknownNameError: If a name is not a parameter of this twin.
            BoundsError: If a value is outside its physical bounds.
        """
        names = tuple(self.params)
        matrix = np.tile([param.nominal for param in self.params.values()], (nworld, 1))
        for name, value in (values or {}).items():
            self.find_param(name).check(value)
            matrix[:, names.index(name)] = value
        return ParamTable(names=names, values=matrix)

    def fields(
        self,
        table: ParamTable,
        *,
        model: mujoco.MjModel | None = None,
        visual: bool = False,
        always: Container[str] = (),
    ) -> FieldValues:
        """Return the values of model fields that differ from the compiled model in any world, also for scene objects.

        Args:
            table: Parameter table of the worlds.
            model: Model with the same layout, such as one with a texture pool; by default the twin's model.
            visual: If true, compute the fields that affect images instead of those that affect motion. Sizes of objects
                are in both.
            always: Names of parameters whose fields are included even if no world changes them, for example because
                earlier worlds of a reused model have changed them.
        """
        values = field_values(model or self.model, self.params.values(), table, visual=visual, always=always)
        arrays, written = dict(values.arrays), False
        if self.scene is not None:
            written = self.scene.write_inplace(arrays, table, visual=visual, always=always)
        if visual and ROOM in table:
            write_rooms_inplace(arrays, model or self.model, table[ROOM].astype(int))
        return FieldValues(arrays=arrays, set_const=values.set_const or (written and not visual))

    def find_changed_params(self, table: ParamTable) -> set[str]:
        """Return the names of the parameters that differ from their nominal value in at least one world of a table."""
        nominal = np.array([self.params[name].nominal for name in table.names])
        return {
            name for name, changed in zip(table.names, (table.values != nominal).any(axis=0), strict=True) if changed
        }

    def stepped_fields(self, table: ParamTable, step: ArrayLike) -> FieldValues | None:
        """Return the values at one control step of the model fields that change during an episode.

        Args:
            table: Parameter table of the worlds.
            step: Index of the control step, one for all worlds or an array of shape ``(nworld,)``.

        Returns:
            The fields, or None if no model field changes during an episode.
        """
        names = {name for name in table.steps if self.params[name].quantity.fields}
        if not names:
            return None
        coupled = find_coupled_params(self.params.values(), names)
        return field_values(self.model, coupled, table.at(step), always=names)

    def column(
        self, table: ParamTable, family: str, quantity: str, default: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Return the values of one quantity of all robot joints in all worlds, shape ``(nworld, njoint)``.

        Args:
            table: Parameter table of the worlds.
            family: First part of the parameter names, for example ``actuator``, ``joint`` or ``sensor``.
            quantity: Last part of the parameter names, for example ``delay``.
            default: Value for a joint whose quantity is not a parameter of the twin, one number or an array of shape
                ``(njoint,)``; by default that of the quantity's declaration.
        """
        owners = self.robot.actuator_names if family == "actuator" else self.robot.joints
        names = [f"{family}/{owner}/{quantity}" for owner in owners]
        default = default_value(family, quantity) if default is None else default
        defaults = np.broadcast_to(np.asarray(default, dtype=np.float64), len(names))
        columns = zip(names, defaults.tolist(), strict=True)
        values = (table[name] if name in table else np.full(table.nworld, value) for name, value in columns)
        return np.stack(list(values), axis=-1)

    def sensor_values(self, table: ParamTable, name: str) -> dict[str, NDArray[np.float64]]:
        """Return the values of all quantities of one sensor by quantity name, each of shape ``(nworld,)``.

        Args:
            table: Parameter table of the worlds.
            name: Name of the sensor.

        Raises:
            UnknownNameError: If the twin has no such sensor.
        """
        if name not in self.devices:
            raise UnknownNameError("sensor", name, self.devices, where=f"twin {self.name}")
        kinds = [quantity for quantity in SENSING if quantity.device == self.devices[name].kind]
        return {
            kind.quantity: table.get(kind.path(name), np.full(table.nworld, self.params[kind.path(name)].nominal))
            for kind in kinds
        }

    def visual_model(self, scenery: Scenery) -> mujoco.MjModel:
        """Return the model compiled with random textures and rooms; the state layout and all other ids do not change.

        Args:
            scenery: The textures and rooms; without any, the twin's model itself is returned.

        Raises:
            InputError: If a panorama is missing, no image, or not the file with which the run was planned.
        """
        if not scenery.needs_model:
            return self.model
        variant = self.mjspec.copy()
        if scenery.texture_pool:
            add_texture_pool(variant, size=scenery.texture_pool, seed=scenery.seed)
        if scenery.rooms:
            add_place(variant, seed=scenery.seed, panoramas=scenery.panoramas)
        return variant.compile()

    def home(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return positions ``qpos`` and commands ``ctrl`` of the keyframe ``home``.

        If the model has no such keyframe, return the model's default positions and zero commands.
        """
        if any(self.model.key(i).name == HOME for i in range(self.model.nkey)):
            key = self.model.key(HOME)
            return key.qpos.copy(), key.ctrl.copy()
        return self.model.qpos0.copy(), np.zeros(self.model.nu)


def move_coupled_joint(model: mujoco.MjModel, row: int, qpos: NDArray[np.float64], qvel: NDArray[np.float64]) -> None:
    """Set a joint that an equality constraint couples to another joint to its coupled state, in place.

    Args:
        model: The model.
        row: Index of the constraint, of type joint with two joints.
        qpos: Positions, shape ``(…, nq)``.
        qvel: Velocities, shape ``(…, nv)``.
    """
    follower, leader = model.eq_obj1id[row], model.eq_obj2id[row]
    at, of = model.jnt_qposadr[follower], model.jnt_qposadr[leader]
    curve = np.polynomial.Polynomial(model.eq_data[row, :5])
    moved = qpos[..., of] - model.qpos0[of]
    qpos[..., at] = model.qpos0[at] + curve(moved)
    qvel[..., model.jnt_dofadr[follower]] = curve.deriv()(moved) * qvel[..., model.jnt_dofadr[leader]]


def _move_leading_joint(model: mujoco.MjModel, row: int, qpos: NDArray[np.float64], qvel: NDArray[np.float64]) -> None:
    """Set the second joint of a linear coupling to the state that belongs to that of its first joint, in place.

    Some models drive the first joint of the equality, and the second one then follows. Other couplings are left alone.
    """
    driven, follower = model.eq_obj1id[row], model.eq_obj2id[row]
    offset, slope, *curved = model.eq_data[row, :5]
    if slope == 0.0 or any(curved):
        return
    moved = qpos[..., model.jnt_qposadr[driven]] - model.qpos0[model.jnt_qposadr[driven]]
    at = model.jnt_qposadr[follower]
    qpos[..., at] = model.qpos0[at] + (moved - offset) / slope
    qvel[..., model.jnt_dofadr[follower]] = qvel[..., model.jnt_dofadr[driven]] / slope
