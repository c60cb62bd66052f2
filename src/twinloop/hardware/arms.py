"""Simulate several recording sessions of one virtual robot at once.

A virtual robot is a twin with hidden parameters. `VirtualRobot` simulates one session behind the robot protocol, and
`virtual_log` records many sessions in one batch. Both use this code, so a session has bit for bit the same result alone
and in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from twinloop.core.errors import InputError
from twinloop.core.seeds import uniforms
from twinloop.hardware.hidden import HiddenParameters, require_rigid_gears
from twinloop.sensors.servo import encoder_command, encoder_reading
from twinloop.simulate import InitialState
from twinloop.simulate.threads import make_batch
from twinloop.twin import Twin
from twinloop.twin.compiling import compile_model
from twinloop.twin.gear import BEARING, JointGear, add_gears, convert_qpos_to_geared
from twinloop.twin.quantities.joints import GEAR, MOTOR

_ANY_PLAY = 2e-3  # placeholder; `VirtualArms` writes the backlash per world


@dataclass(frozen=True, kw_only=True)
class GearedTwin:
    """Twin with backlash in its gears, so that every robot joint has a motor side and a link side.

    Attributes:
        twin: the twin on a MuJoCo model that has a motor joint and a link joint for every robot joint; parameters of a
            joint's drive apply to its motor side.
        motor_qpos: index of each robot joint's motor side in qpos, ``(n,)`` for n joints.
        link_qpos: index of each joint's link side in qpos.
        motor_dof: index of each joint's motor side in qvel.
        link_dof: index of each joint's link side in qvel.
        torque: index in sensordata of the torque that each joint's gear transmits.
        gear: index of the MuJoCo tendon that models each joint's gear.
    """

    twin: Twin
    motor_qpos: NDArray[np.intp]
    link_qpos: NDArray[np.intp]
    motor_dof: NDArray[np.intp]
    link_dof: NDArray[np.intp]
    torque: NDArray[np.intp]
    gear: NDArray[np.intp]

    def convert_qpos(self, twin: Twin, qpos: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return positions of the geared model, with gears in mid-backlash.

        Args:
            twin: the twin without gears.
            qpos: its positions, ``(nq,)``.
        """
        return convert_qpos_to_geared(self.twin.model, twin.model, qpos)


def add_robot_gears(twin: Twin) -> GearedTwin:
    """Return the twin with backlash at every robot joint, and with no limits on the controls of its actuators.

    `VirtualArms` limits the commands itself. It then adds the difference of motor and link position to each control of
    a servo, and this sum may exceed the limits. All dry friction is at the motors; `VirtualArms` later moves the
    bearings' share of it to the link side.
    """
    spec = twin.mjspec.copy()
    joints = twin.robot.joints
    require_rigid_gears(twin)
    kind = mujoco.mjtObj.mjOBJ_JOINT
    missing = [name for name in joints if mujoco.mj_name2id(twin.model, kind, MOTOR.format(name)) < 0]
    add_gears(spec, {name: JointGear(backlash=_ANY_PLAY) for name in missing}, bearing=0.0, where=twin.name)
    model = compile_model(spec)
    model.actuator_ctrllimited[:] = 0
    geared = replace(twin, model=model, mjspec=spec)
    return GearedTwin(
        twin=geared,
        motor_qpos=geared.motor_qpos,
        link_qpos=geared.joint_qpos,
        motor_dof=geared.motor_qvel,
        link_dof=geared.joint_qvel,
        torque=np.array([model.sensor(GEAR.format(name)).adr[0] for name in joints]),
        gear=np.array([model.tendon(GEAR.format(name)).id for name in joints]),
    )


_ARRIVAL_ROUND_OFF = 1e-9


class CommandQueue:
    """Queue of commands, each with an arrival time per world and actuator; times count physics steps.

    Args:
        initial: the command that is active before the first one arrives, ``(nworld, nu)`` for nu actuators.
    """

    def __init__(self, initial: NDArray[np.float64]) -> None:
        self._commands = initial[:, None].copy()  # (nworld, queue, nu), in the order of issue
        self._arrivals = np.full_like(self._commands, -np.inf)

    def send(self, command: NDArray[np.float64], arrival: NDArray[np.float64], now: NDArray[np.int64]) -> None:
        """Add a command. It never arrives before the previous command.

        Args:
            command: the command, ``(nworld, nu)``.
            arrival: its arrival time in physics steps, ``(nworld, 1)`` or ``(nworld, nu)``.
            now: the present physics step of each world, ``(nworld,)``.
        """
        settled = self._commands.shape[1] - 1
        while settled and not (self._arrivals[:, settled] <= now[:, None]).all():
            settled -= 1
        arrival = np.maximum(arrival, self._arrivals[:, -1])
        self._commands = np.concatenate([self._commands[:, settled:], command[:, None]], axis=1)
        self._arrivals = np.concatenate([self._arrivals[:, settled:], arrival[:, None]], axis=1)

    def active_command(self, now: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the newest command that has arrived, per actuator: ``(nworld, nu)``.

        ``now`` is the present physics step of each world, ``(nworld,)``.
        """
        arrived = self._arrivals <= now[:, None, None] + _ARRIVAL_ROUND_OFF
        newest = np.count_nonzero(arrived, axis=1) - 1
        return np.take_along_axis(self._commands, newest[:, None], axis=1)[:, 0]


# Time that an arm gets to come to rest under its own weight before a session begins: ten time constants (damping / kp
# = 68 ms) of the softest servo among the built-in twins, and half a second more for friction to catch it.
SETTLE_S = 1.2
_ROUND_OFF = 1e-6


class VirtualArms:
    """Sessions of one virtual robot, simulated together; arrays are ``(nsession, n)`` over the robot's n joints.

    Every session starts at time 0 with the arm at rest at the twin's home. In each physics step, the newest command
    that has arrived is active. The servo closes its loop on the link side of the gear, because the encoder of such a
    servo is there. Friction at the motor grows with the torque that the gear transmitted in the previous step.

    Args:
        twin: the nominal twin of this type of robot.
        hidden: the robot's true parameters.
        seed: seed of the noise.
        sessions: session numbers; noise and latency of a session depend only on seed and number.
        nthread: C threads (0: every core).
    """

    def __init__(
        self, twin: Twin, hidden: HiddenParameters, *, seed: int, sessions: Sequence[int], nthread: int = 0
    ) -> None:
        self._hidden, self._seed, self._sessions = hidden, seed, np.asarray(sessions, dtype=np.int64)
        limited = twin.model.actuator_ctrllimited.astype(bool)[:, None]
        self._limits = np.where(limited, twin.model.actuator_ctrlrange, [-np.inf, np.inf]).T
        self._feedback = _position_feedback(twin)
        self._servo = twin.robot.control == "position"
        self._table = twin.table(self.nsession, hidden.params)
        self._dt, self._geared, self.units = twin.dt, add_robot_gears(twin), twin.units
        self._command_units = twin.command_units
        self._load_columns()
        self._make_batch(twin, nthread)
        self._steps = np.zeros(self.nsession, dtype=np.int64)
        self._calls = {"oversleep": 0, "lateness": 0, "read": 0}
        self._line = CommandQueue(self._servo_target(np.tile(twin.home()[1], (self.nsession, 1))))
        self._run(np.full(self.nsession, round(SETTLE_S / self._dt)))
        self._steps[:] = 0

    @property
    def nsession(self) -> int:
        """Number of sessions."""
        return len(self._sessions)

    def now(self) -> NDArray[np.float64]:
        """Return the time since the start of each session in s, ``(nsession,)``."""
        return self._steps.astype(np.float64) * self._dt

    @property
    def link_positions(self) -> NDArray[np.float64]:
        """True joint positions on the link side, ``(nsession, n)`` in rad or m, without encoder errors."""
        return self._qpos[:, self._geared.link_qpos].copy()

    def wait_until(self, moment: float) -> None:
        """Simulate every session until the time ``moment`` in s, or a little longer by its clock's random delay."""
        late = np.rint(self._hidden.clock_jitter_s * self._draw("oversleep", 1)[:, 0] / self._dt).astype(np.int64)
        goal = math.ceil(moment / self._dt - _ROUND_OFF)
        self._run(np.where(self._steps < goal, goal + late - self._steps, 0))

    def observe(self) -> NDArray[np.float64]:
        """Return the present encoder readings, ``(nsession, n)``, in the units of the robot's logs."""
        noise = self._hidden.read_noise * ndtri(self._draw("read", len(self._hidden.count)))
        counted = np.round((self._qpos[:, self._geared.link_qpos] + noise) / self._hidden.count) * self._hidden.count
        return self.units.from_si(encoder_reading(counted, self._offset, self._scale))

    def command(self, action: ArrayLike) -> NDArray[np.float64]:
        """Issue commands ``(nsession, n)``; return them clipped to the robot's limits.

        Commands are in the units of the robot's logs (per second with velocity control), or in N·m with torque control.

        Raises:
            InputError: If a command is not finite.
        """
        values = np.asarray(action, dtype=np.float64)
        if not np.isfinite(values).all():
            wrong = self.units.names[int(np.argwhere(~np.isfinite(values))[0, 1])]
            raise InputError(
                f"The command of {wrong} is not finite. Send numbers, or nothing to hold the last command."
            )
        sent = np.clip(self._command_units.to_si(values), *self._limits)
        lateness = self._hidden.command_jitter_s * self._draw("lateness", 1)
        arrival = self._steps[:, None] + (self._delay + lateness) / self._dt
        self._line.send(self._servo_target(sent), arrival, self._steps)
        return self._command_units.from_si(sent)

    def _load_columns(self) -> None:
        def column(family: str, quantity: str) -> NDArray[np.float64]:
            return self._geared.twin.column(self._table, family, quantity)

        self._offset, self._scale = column("sensor", "offset"), column("sensor", "scale")
        self._bias, self._delay = column("actuator", "bias"), column("actuator", "delay")

    def _make_batch(self, twin: Twin, nthread: int) -> None:
        geared, home = self._geared, InitialState.home(twin, self.nsession)
        qpos = np.tile(geared.convert_qpos(twin, twin.home()[0]), (self.nsession, 1))
        initial = InitialState(
            qpos=qpos,
            qvel=np.zeros((self.nsession, geared.twin.model.nv)),
            mocap_pos=home.mocap_pos,
            mocap_quat=home.mocap_quat,
            command=home.command,
        )
        self._batch = make_batch(geared.twin, self._table, initial, nthread)
        self._batch.expand("tendon_range")[:, geared.gear] = self._hidden.backlash[:, None] / 2 * [-1.0, 1.0]
        self._friction = self._batch.expand("dof_frictionloss")
        dry = self._friction[:, geared.motor_dof]
        self._friction[:, geared.link_dof] = BEARING * dry
        self._dry = (1.0 - BEARING) * dry
        self._qpos, self._ctrl = self._batch.bind("qpos"), self._batch.bind("ctrl")
        self._torque = self._batch.bind("sensordata")

    def _servo_target(self, command: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the true positions to which the servos move for a command.

        This is the position at which the erroneous encoder shows the command, plus the actuator's bias. Velocities and
        torques are returned unchanged.
        """
        return encoder_command(command, self._offset, self._scale) + self._bias if self._servo else command

    def _draw(self, stream: str, size: int) -> NDArray[np.float64]:
        """Return the next uniform random numbers of one named stream in every session, ``(nsession, size)``."""
        step = self._calls[stream]
        self._calls[stream] += 1
        return uniforms(self._seed, f"virtual/{stream}", self._sessions, size=size, step=step)

    def _run(self, count: NDArray[np.int64]) -> None:
        """Simulate ``count[i]`` physics steps of recording session i; ``count`` has shape ``(nsession,)``."""
        for done in range(int(count.max(initial=0))):
            self._step(np.flatnonzero(count > done))

    def _step(self, sessions: NDArray[np.intp]) -> None:
        geared, hidden = self._geared, self._hidden
        # kp (control − motor) becomes kp (command − link): the servo's feedback is on the link side.
        ahead = self._qpos[:, geared.motor_qpos] - self._qpos[:, geared.link_qpos]
        self._ctrl[...] = self._line.active_command(self._steps) + self._feedback * ahead
        transmitted = np.abs(self._torque[:, geared.torque])
        self._friction[:, geared.motor_dof] = self._dry + hidden.load_friction * transmitted
        self._batch.step(sessions)
        self._steps[sessions] += 1


def _position_feedback(twin: Twin) -> NDArray[np.float64]:
    """Return the share of position feedback in each actuator, ``(nu,)``: 1 for a position servo, 0 for a motor.

    It is −(position coefficient of ``biasprm``) / (gain of ``gainprm``) in MuJoCo, and 1 for its PID controller. With
    it, the feedback can be moved to the link side of the gear.
    """
    model = twin.model
    bias = model.actuator_biasprm[:, 1]
    gain = np.where(model.actuator_gaintype == mujoco.mjtGain.mjGAIN_PID, -bias, model.actuator_gainprm[:, 0])
    return np.divide(-bias, gain, out=np.zeros(model.nu), where=gain != 0)
