"""Start an arm with position servos at home, and make it follow a reference despite the servos' lag and compliance."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.simulate import InitialState
from twinloop.simulate.arrays import ArrayLibrary
from twinloop.simulate.command import command_map
from twinloop.tasks.kinematics import Chain
from twinloop.twin import Twin

_INTEGRAL_GAIN = 0.4  # per control step, over 1 + lag: the loop is stable up to pi/2, and the true lag may be twice
_SETTLING_SPEED = 0.4  # rad/s: the error of a faster reference is mostly lag and is not integrated
_INTEGRAL_LIMIT = 0.35  # rad or m


@dataclass(frozen=True, kw_only=True)
class ServoModel:
    """Nominal position servos of the k joints of an arm.

    Attributes:
        actuators: index of each joint's actuator in the command, ``(k,)``.
        stiffness: position gain of each servo, ``(k,)`` in N·m/rad.
        lag: time from command to motion in control steps, ``(k,)``: damping / stiffness plus the nominal command delay.
        command_low: lower limit of each command, ``(k,)`` in rad or m.
        command_high: upper limit of each command, ``(k,)``.
        control_hz: control steps per second.
    """

    actuators: NDArray[np.intp]
    stiffness: NDArray[np.float64]
    lag: NDArray[np.float64]
    command_low: NDArray[np.float64]
    command_high: NDArray[np.float64]
    control_hz: float

    @property
    def gain(self) -> NDArray[np.float64]:
        """Integral gain of a `ServoTracker`, per control step, ``(k,)``."""
        return _INTEGRAL_GAIN / (1.0 + self.lag)

    @classmethod
    def of(cls, twin: Twin, chain: Chain) -> ServoModel:
        """Return the servos of a twin that drive the joints of a kinematic chain.

        Raises:
            InputError: If a joint of the chain has no actuator, or is not position-controlled.
        """
        robot, model = twin.robot, twin.model
        names = [model.joint(int(joint)).name for joint in chain.joints]
        missing = [name for name in names if name not in robot.joints]
        if missing or robot.control != "position":
            what = f"no actuator for the joint {missing[0]}" if missing else f"{robot.control} control"
            raise InputError(
                f"The robot of {twin.name} has {what}; a scripted expert needs position servos on every joint between "
                "the base and the tool site."
            )
        columns = np.array([robot.joints.index(name) for name in names])
        stiffness = -model.actuator_biasprm[columns, 1]
        delays = [f"actuator/{robot.actuator_names[i]}/delay" for i in columns]
        delay = np.array([twin.params[name].nominal if name in twin.params else 0.0 for name in delays])
        damping = model.dof_damping[twin.motor_qvel[columns]] - model.actuator_biasprm[columns, 2]
        limited = model.actuator_ctrllimited[columns].astype(bool)[:, None]
        span = np.where(limited, model.actuator_ctrlrange[columns], [-np.inf, np.inf])
        return cls(
            actuators=columns,
            stiffness=stiffness,
            lag=(damping / stiffness + delay) * twin.control_hz,
            command_low=span[:, 0],
            command_high=span[:, 1],
            control_hz=twin.control_hz,
        )


def column_order(nu: int, driven: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return column indices that replace the commands of driven actuators and keep the previous commands of all others.

    The result ``(nu,)`` is used as ``concatenate([new, previous], axis=1)[:, order]``. ``new`` has one column per
    driven actuator, ``previous`` has ``nu`` columns.

    Args:
        nu: number of actuators.
        driven: indices of the driven actuators.
    """
    order = len(driven) + np.arange(nu)
    order[driven] = np.arange(len(driven))
    return order


class ServoTracker:
    """Tracking controller of an arm: feedforward against servo lag and gravity, and integral feedback.

    The integral starts from the command that held the arm still before the first step. The encoder's offset and the
    servo's true stiffness determine that command, so the controller compensates both from the start.
    """

    def __init__(
        self,
        servo: ServoModel,
        *,
        command: NDArray[np.float64],
        reference: NDArray[np.float64],
        gravity: NDArray[np.float64],
        max_step: float,
    ) -> None:
        """Prepare to compute commands with which the servos follow a path, from an arm at rest.

        Shapes are for nworld worlds and k joints.

        Args:
            servo: nominal servos of the arm.
            command: the previous command, ``(nworld, k)``.
            reference: joint positions at which this command holds the arm, ``(nworld, k)`` in rad or m.
            gravity: joint torques that hold these positions, ``(nworld, k)`` in N·m or N.
            max_step: largest change of a command in one control step, rad.
        """
        there = ArrayLibrary.of(command).asarray
        self._stiffness, self._lag, self._gain = (there(values) for values in (servo.stiffness, servo.lag, servo.gain))
        self._low, self._high = there(servo.command_low), there(servo.command_high)
        self._max_step = max_step
        self._settling_step = _SETTLING_SPEED / servo.control_hz
        self._command = command
        self._integral = command - reference - gravity / self._stiffness

    def command(
        self,
        *,
        reference: NDArray[np.float64],
        step: NDArray[np.float64],
        measured: NDArray[np.float64],
        target: NDArray[np.float64],
        gravity: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return the next command; all arrays are ``(nworld, k)``, in rad or m except ``gravity``.

        Args:
            reference: required joint positions now, to compare with ``measured``.
            step: change of the reference in the next control step.
            measured: measured joint positions now.
            target: required joint positions after the next control step.
            gravity: joint torques that hold the joints at ``target``, in N·m or N.
        """
        xp = array_namespace(measured)
        settling = xp.clip(1.0 - xp.abs(step) / self._settling_step, 0.0, 1.0)
        error = settling * (reference - measured)
        self._integral = xp.clip(self._integral + self._gain * error, -_INTEGRAL_LIMIT, _INTEGRAL_LIMIT)
        wanted = target + self._lag * step + gravity / self._stiffness + self._integral
        change = xp.clip(wanted - self._command, -self._max_step, self._max_step)
        self._command = xp.clip(self._command + change, self._low, self._high)
        return self._command


class Arm:
    """Arm of a twin's robot: home pose, kinematic chain from the base to the tool site, and servos.

    Attributes:
        twin: the twin.
        home: ``qpos`` of the home pose.
        home_command: command of the home pose.
        home_position: position of the tool site in the home pose, ``(3,)`` in m.
        chain: kinematic chain from the base to the tool site.
        servo: nominal servos of the chain's joints.
    """

    def __init__(self, twin: Twin, hand: str = "") -> None:
        """Read the arm of a twin.

        Args:
            twin: the twin.
            hand: name of the arm's hand in ``robot.hands``; by default the robot's main hand.

        Raises:
            InputError: If the robot names no tool site or has no position servos.
            UnknownNameError: If the robot has no such hand.
        """
        tool = twin.robot.find_hand(hand).tcp
        if tool is None:
            raise InputError(f"The robot of {twin.name} names no tool site. Add `robot.tcp` to its YAML.")
        self.twin = twin
        self.home, self.home_command = twin.home()
        self.chain = Chain(twin.model, tool, self.home)
        self.home_position = self.chain.pose(self.home[None, self.chain.qpos]).position[0]
        self.servo = ServoModel.of(twin, self.chain)

    def make_initial_state(
        self, params: ParamTable, noise: float, *, stream: str, run_seed: int, episodes: Sequence[int], attempt: int
    ) -> InitialState:
        """Return the initial state of worlds, with the arm near home and held still there.

        The previous command of a world is the one that holds the arm in its initial position under gravity, with that
        world's encoder and servo stiffness.

        Args:
            params: parameter values of the worlds.
            noise: largest deviation of a joint from home, in rad; uniform.
            stream: name that makes these random numbers independent of those drawn for other purposes.
            run_seed: seed of the run.
            episodes: episode number of each world.
            attempt: how often these episodes were simulated before; each attempt has other random numbers.
        """
        chain, initial = self.chain, InitialState.home(self.twin, params.nworld)
        qpos = initial.qpos.copy()
        u = uniforms(run_seed, stream, episodes, size=chain.njoint, attempt=attempt)
        arm = np.clip(self.home[chain.qpos] + noise * (2.0 * u - 1.0), chain.limits[:, 0], chain.limits[:, 1])
        qpos[:, chain.qpos] = arm
        return dataclasses.replace(
            initial, qpos=self.twin.align_motors(qpos), command=self._holding_commands(params, arm)
        )

    def stiffness(self, params: ParamTable) -> NDArray[np.float64]:
        """Return the position gains of the k servos in worlds, ``(nworld, k)`` in N·m/rad or N/m."""
        names = [f"actuator/{self.twin.robot.actuator_names[i]}/kp" for i in self.servo.actuators]
        pairs, ones = zip(names, self.servo.stiffness, strict=True), np.ones(params.nworld)
        return np.stack([params.get(name, ones * nominal) for name, nominal in pairs], axis=-1)

    def _holding_commands(self, params: ParamTable, arm: NDArray[np.float64]) -> NDArray[np.float64]:
        columns, stiffness = self.servo.actuators, self.stiffness(params)
        offset, scale = command_map(self.twin, params)
        target = np.tile(self.home_command, (params.nworld, 1))
        target[:, columns] = arm + self.chain.gravity_torques(self.chain.pose(arm)) / stiffness
        return (target - offset) / scale


def mocap_rows(twin: Twin) -> dict[str, int]:
    """Return the row in ``mocap_pos`` of every mocap body, by name."""
    model = twin.model
    return {model.body(b).name: int(model.body_mocapid[b]) for b in np.flatnonzero(model.body_mocapid >= 0)}


def mocap_row(twin: Twin, name: str) -> int:
    """Return the row in ``mocap_pos`` of the mocap body with the given name.

    Raises:
        UnknownNameError: If no mocap body has that name.
    """
    rows = mocap_rows(twin)
    if name not in rows:
        raise UnknownNameError("mocap body", name, rows, where=f"the twin {twin.name}")
    return rows[name]
