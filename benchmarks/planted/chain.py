"""Simulate chains of servo joints whose true parameters are known, independently of twinloop's own stages.

Of MuJoCo only the rigid bodies are used: mass matrix and bias force (gravity, Coriolis) of the links. Servo, delay,
torque limit, friction, gears, heat, encoders and the integration in time are computed here.

The integrator is a leapfrog: positions at times n h, velocities half a step before. Velocity gain, damping and gears
are averaged over the step (implicit), position gain and gravity are taken at its middle, so that the error is of second
order in h. Coulomb friction is the impulse within its limit that stops a joint if it can (projected Gauss-Seidel).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.twin import Twin

Array = NDArray[np.float64]
STEP = 1e-3  # s; halving it changes readings by less than 0.2 mrad (tests)
# s at the first command before the recording: the slowest servo has a time constant of 0.2 s, a soft gear of 0.5 s.
_SETTLE, _GEAR_SETTLE = 1.5, 3.0
_SWEEPS, _CONVERGED = 30, 1e-6  # most sweeps of the friction solver; rad/s at which it ends
_SWITCHES = 4  # most passes in which servos of one step may reach or leave their torque limit


@dataclass(frozen=True, kw_only=True)
class Gear:
    """Gears that are not rigid: motors (reflected inertia, friction, servo) drive links through springs.

    Attributes:
        stiffness: Stiffness beyond the gap, N·m/rad, shape ``(n,)`` for n joints.
        damping: Damping beyond the gap, N·m·s/rad, shape ``(n,)``.
        gap: Backlash from flank to flank, rad, shape ``(n,)``.
        link_encoder: Whether reading and position gain use the angle after the gear; the velocity gain always uses the
            motor's speed.
    """

    stiffness: Array
    damping: Array
    gap: Array
    link_encoder: bool


@dataclass(frozen=True, kw_only=True)
class PlantedChain:
    """True values of a chain of n joints, SI units, shape ``(n,)`` each unless stated.

    A reading is the true angle minus ``zero``. Servos work on readings: their true target is command + ``bias`` +
    ``zero``, and their torque ``clip(kp (target - angle) - kd speed, ±torque_limit)``.

    Attributes:
        kp: Position gain.
        kd: Velocity gain, inside the torque limit.
        torque_limit: Largest torque of the servo.
        damping: Viscous damping, outside the torque limit.
        frictionloss: Coulomb friction.
        armature: Reflected inertia of the rotor.
        delay: Time from a command to its effect, s.
        zero: True angle at which the reading is 0.
        links: Factor on mass and inertia by name of the link.
        resolution: Size of an encoder count; 0 for none.
        noise: Standard deviation of a reading, before it is rounded to counts.
        bias: Offset of every command.
        stribeck_ratio: Static friction over Coulomb friction.
        stribeck_velocity: Speed at which static minus Coulomb friction has fallen to 1/e.
        gear: Elastic gears or backlash; None for rigid gears.
        fade_factor: Factor on ``kp`` and ``torque_limit`` that hot motors approach; one number.
        fade_time: Time constant of their heating, s; one number.
        jitter: Largest extra delay of a command, uniform from 0, s; one number.
    """

    kp: Array
    kd: Array
    torque_limit: Array
    damping: Array
    frictionloss: Array
    armature: Array
    delay: Array
    zero: Array
    links: dict[str, float]
    resolution: Array
    noise: Array
    bias: float | Array = 0.0
    stribeck_ratio: float | Array = 1.0
    stribeck_velocity: float | Array = 1.0
    gear: Gear | None = None
    fade_factor: float = 1.0
    fade_time: float = 1.0
    jitter: float = 0.0


def simulate(
    twin: Twin, planted: PlantedChain, commands: Array, hz: float, rng: np.random.Generator, *, step: float = STEP
) -> Array:
    """Simulate N episodes one after the other and return their readings, ``(N, T, n)`` in rad (m for slides).

    Every episode starts at rest, settled at its first command. Reading t is taken at t/hz, just as command t is issued.

    Args:
        twin: Twin with the robot's links; see `LinkTerms` for what is used of it.
        planted: True values.
        commands: Commanded positions in rad (m for slides), shape ``(N, T, n)``.
        hz: Commands per second.
        rng: Generator of delay jitter and reading noise.
        step: Approximate integration step, s.
    """
    count, frames, _ = commands.shape
    substeps = round(1.0 / (hz * step))
    h = 1.0 / (hz * substeps)
    settle = round((_GEAR_SETTLE if planted.gear else _SETTLE) / h)
    ticks = np.arange(-settle, (frames - 1) * substeps + 1)
    jitter = planted.jitter * rng.random((count, frames, 1))
    late = np.arange(frames)[:, None] / hz + planted.delay + jitter
    targets = average_held(commands + planted.bias + planted.zero, late, (np.append(ticks, ticks[-1] + 1) - 0.5) * h)
    terms = LinkTerms(twin, planted.links)
    motion = ChainMotion(planted, commands[:, 0] + planted.bias + planted.zero, terms)
    starts = np.arange(count)[:, None] * frames / hz
    readings = np.empty_like(commands)
    for tick, target in zip(ticks.tolist(), targets, strict=True):
        if tick >= 0 and tick % substeps == 0:
            readings[:, tick // substeps] = motion.encoder
        heat = 1.0 - np.exp(-(starts + max(tick, 0) * h) / planted.fade_time)
        motion.advance(
            target, *terms.compute(motion.link, motion.link_speed), 1.0 + (planted.fade_factor - 1.0) * heat, h
        )
    readings += planted.noise * rng.standard_normal(readings.shape) - planted.zero
    counts = np.where(planted.resolution > 0.0, planted.resolution, 1.0)
    return np.where(planted.resolution > 0.0, np.round(readings / counts) * counts, readings)


def average_held(values: Array, since: Array, edges: Array) -> Array:
    """Return the means over the intervals between ``edges`` of values that are held until the next one arrives.

    Args:
        values: Values, shape ``(N, T, n)``; the first one holds from the beginning.
        since: Arrival of each value, s, shape ``(N, T, n)``; a value that a later one overtakes is lost.
        edges: Edges of m intervals of equal length, s, shape ``(m + 1,)``.

    Returns:
        Means, shape ``(m, N, n)``.
    """
    count, _, n = values.shape
    means = np.empty((len(edges) - 1, count, n))
    arrivals = np.minimum.accumulate(since[:, ::-1], axis=1)[:, ::-1]
    for row, column in np.ndindex(count, n):
        at = arrivals[row, 1:, column]
        knots = np.concatenate([edges[:1], np.maximum(at, edges[0]), [max(at[-1], edges[-1]) + 1.0]])
        integral = np.append(0.0, np.cumsum(values[row, :, column] * np.diff(knots)))
        means[:, row, column] = np.diff(np.interp(edges, knots, integral)) / (edges[1] - edges[0])
    return means


class LinkTerms:
    """Mass matrix and bias force of a twin's n robot joints, from its rigid bodies alone.

    A joint that an equality couples to a robot joint (the second finger of a gripper) adds its inertia, damping and
    friction to that joint. Controllers with gravity compensation compensate the twin's masses, not the true ones.

    Attributes:
        damping: Damping of coupled joints, shape ``(n,)``.
        frictionloss: Coulomb friction of coupled joints, shape ``(n,)``.
    """

    def __init__(self, twin: Twin, links: dict[str, float]) -> None:
        model = copy.copy(twin.model)
        for name, factor in links.items():
            row = model.body(name).id
            model.body_mass[row] *= factor
            model.body_inertia[row] *= factor
            model.body_gravcomp[row] /= factor
        names = list(twin.robot.joints)
        joints = np.array([model.joint(name).id for name in names])
        self._qpos, dofs = model.jnt_qposadr[joints], model.jnt_dofadr[joints]
        model.dof_armature[dofs] = 0.0
        self._reduce = np.zeros((model.nv, len(names)))
        self._reduce[dofs, np.arange(len(names))] = 1.0
        self._coupled: list[tuple[int, int, float, float]] = []
        for first, second, line in zip(model.eq_obj1id, model.eq_obj2id, model.eq_data, strict=True):
            if second in joints:
                column = int(np.flatnonzero(joints == second)[0])
                self._coupled.append((int(model.jnt_qposadr[first]), column, float(line[0]), float(line[1])))
                self._reduce[model.jnt_dofadr[first], column] = line[1]
        others = np.setdiff1d(np.arange(model.nv), dofs)
        self.damping = model.dof_damping[others] @ self._reduce[others] ** 2
        self.frictionloss = model.dof_frictionloss[others] @ np.abs(self._reduce[others])
        self._model, self._data = model, mujoco.MjData(model)
        mujoco.mj_setConst(model, self._data)
        self._data.qpos[:] = twin.home()[0]
        self._compensated = bool(np.any(model.body_gravcomp))

    def compute(self, angle: Array, speed: Array) -> tuple[Array, Array]:
        """Return mass matrices ``(N, n, n)`` and bias forces ``(N, n)`` at angles and speeds ``(N, n)``."""
        model, data, nv = self._model, self._data, self._model.nv
        qpos, qvel, held = data.qpos, data.qvel, data.qfrc_gravcomp
        velocities = speed @ self._reduce.T
        mass, bias = np.empty((len(angle), nv, nv)), np.empty((len(angle), nv))
        for row in range(len(angle)):
            qpos[self._qpos], qvel[:] = angle[row], velocities[row]
            for address, column, offset, slope in self._coupled:
                qpos[address] = offset + slope * angle[row, column]
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_makeM(model, data)
            mujoco.mj_comVel(model, data)
            mujoco.mj_rne(model, data, 0, bias[row])
            mujoco.mj_fullM(model, data, mass[row])
            if self._compensated:
                mujoco.mj_passive(model, data)
                bias[row] -= held
        return self._reduce.T @ mass @ self._reduce, bias @ self._reduce


class ChainMotion:
    """State of N episodes of a chain of n joints, at rest at first; with gears the n motors follow the n links.

    Attributes:
        angle: Angles in rad, shape ``(N, n)`` or, with gears, ``(N, 2 n)``.
        speed: Speeds half a step earlier in rad/s, same shape.
    """

    def __init__(self, planted: PlantedChain, start: Array, terms: LinkTerms | None = None) -> None:
        n = start.shape[1]
        self._p, self._n = planted, n
        self._damping = planted.damping + (0.0 if terms is None else terms.damping)
        self._dry = planted.frictionloss + (0.0 if terms is None else terms.frictionloss)
        self.angle = np.tile(start, (1, 2)) if planted.gear else start.copy()
        self.speed = np.zeros_like(self.angle)
        self._motor = slice(n, 2 * n) if planted.gear else slice(0, n)
        self._feedback = slice(0, n) if planted.gear is None or planted.gear.link_encoder else self._motor
        self._change = np.zeros_like(self.angle)
        self._friction = np.zeros((n, len(start)))

    @property
    def link(self) -> Array:
        """Angles of the links in rad, shape ``(N, n)``."""
        return self.angle[:, : self._n]

    @property
    def link_speed(self) -> Array:
        """Speeds of the links in rad/s, shape ``(N, n)``."""
        return self.speed[:, : self._n]

    @property
    def encoder(self) -> Array:
        """True angles where the encoders are, in rad, shape ``(N, n)``."""
        return self.angle[:, self._feedback]

    def advance(self, target: Array, mass: Array, bias: Array, fade: Array, h: float) -> None:
        """Advance all episodes by one step.

        Args:
            target: Mean true target of each servo during the step in rad, shape ``(N, n)``.
            mass: Mass matrices of the links, shape ``(N, n, n)``.
            bias: Bias forces of the links in N·m, shape ``(N, n)``.
            fade: Factors on position gain and torque limit, shape ``(N, 1)``.
            h: Step, s.
        """
        p, n, motor = self._p, self._n, self._motor
        size = self.angle.shape[1]
        matrix, force = np.zeros((len(target), size, size)), np.zeros_like(self.angle)
        matrix[:, :n, :n] = mass
        force[:, :n] = -bias
        diagonal = matrix.reshape(len(target), -1)[:, :: size + 1][:, motor]
        diagonal += p.armature + 0.5 * h * self._damping
        force[:, motor] -= self._damping * self.speed[:, motor]
        if p.gear:
            self._couple(p.gear, matrix, force, h)
        limit = p.torque_limit * fade
        wanted = p.kp * fade * (target - self.encoder) - p.kd * self.speed[:, motor]
        applied, speed = wanted - 0.5 * p.kd * self._change[:, motor], self.speed
        for _ in range(_SWITCHES):
            side = np.where(np.abs(applied) > limit, np.sign(applied), 0.0)  # of the torque limit; 0: within it
            soft = np.where(side == 0.0, 0.5 * h * p.kd, 0.0)
            drive = np.where(side == 0.0, wanted, side * limit)
            diagonal += soft
            force[:, motor] += drive
            speed = self._solve(matrix, force, h)
            diagonal -= soft
            force[:, motor] -= drive
            applied = wanted - 0.5 * p.kd * (speed - self.speed)[:, motor]
            if np.array_equal(side, np.where(np.abs(applied) > limit, np.sign(applied), 0.0)):
                break
        self._change = speed - self.speed
        self.speed = speed
        self.angle = self.angle + h * speed

    def _couple(self, gear: Gear, matrix: Array, force: Array, h: float) -> None:
        """Add the gears that touch to matrix and force, in place."""
        n = self._n
        twist, half = self.angle[:, n:] - self.angle[:, :n], 0.5 * gear.gap
        touching = np.abs(twist) >= half
        stiffness, damping = np.where(touching, gear.stiffness, 0.0), np.where(touching, gear.damping, 0.0)
        pull = stiffness * (twist - np.copysign(half, twist)) + damping * (self.speed[:, n:] - self.speed[:, :n])
        force[:, :n] += pull
        force[:, n:] -= pull
        tie, at = 0.5 * h * damping + 0.25 * h**2 * stiffness, np.arange(n)
        matrix[:, at, at] += tie
        matrix[:, at + n, at + n] += tie
        matrix[:, at, at + n] -= tie
        matrix[:, at + n, at] -= tie

    def _solve(self, matrix: Array, force: Array, h: float) -> Array:
        """Return the speeds after one step with Coulomb friction, ``(N, size)``."""
        response = np.asarray(h * np.linalg.inv(matrix), dtype=np.float64)
        speed = self.speed + (response @ force[:, :, None])[:, :, 0]
        dry = self._dry
        if np.any(np.asarray(self._p.stribeck_ratio) != 1.0):
            gone = np.exp(-np.abs(self.speed[:, self._motor]) / self._p.stribeck_velocity)
            dry = dry * (1.0 + (self._p.stribeck_ratio - 1.0) * gone)
        return self._rub(speed, response, np.broadcast_to(dry, self.link.shape)) if np.any(dry) else speed

    def _rub(self, speed: Array, response: Array, dry: Array) -> Array:
        """Return the speeds after friction within ``dry`` ``(N, n)``; ``response`` is speed per torque."""
        motor = range(*self._motor.indices(self.angle.shape[1]))
        columns = np.ascontiguousarray(response.transpose(1, 2, 0)[self._motor])  # (n, size, N), symmetric
        own = np.stack([columns[j, row] for j, row in enumerate(motor)])
        high = np.ascontiguousarray(dry.T)
        low, f = -high, np.minimum(np.maximum(self._friction, -high), high)
        v = np.ascontiguousarray(speed.T) + np.einsum("jse,je->se", columns, f)
        for _ in range(_SWEEPS):
            before = f.copy()
            for j, row in enumerate(motor):
                new = np.minimum(np.maximum(f[j] - v[row] / own[j], low[j]), high[j])
                v += columns[j] * (new - f[j])
                f[j] = new
            if np.max(np.abs(f - before) * own) < _CONVERGED:
                break
        v[self._motor][np.abs(f) < high] = 0.0  # exactly at rest
        self._friction = f
        return v.T
