"""Check the states of a simulated episode: penetration, energy, contacts, and objects that teleport or float."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.curate.check import Measurement
from twinloop.curate.judging import KnownLimitCheck
from twinloop.curate.motion import find_longest_run
from twinloop.curate.recording import RecordedEpisode
from twinloop.curate.registry import EpisodeTwins
from twinloop.rollout.substeps import PhysicsStepper
from twinloop.simulate.protocol import STATE_SPEC, state_columns
from twinloop.twin import Twin

Array = NDArray[np.float64]
_BIT = mujoco.mjtState
_NO_STATES = "The episode was not simulated by twinloop, so it has no simulator states."


@dataclass(frozen=True, kw_only=True)
class StepQuantities:
    """Quantities of the T control steps of one episode, recomputed with its drawn parameters; SI units, world axes.

    Attributes:
        time: time of each state ``(T + 1,)``.
        depth: largest penetration depth of all contacts at each step ``(T,)``, in m.
        solimp_width: depth at which this contact reaches its full stiffness, the width of MuJoCo's ``solimp`` ``(T,)``,
            in m.
        pair: names of the two bodies of this contact.
        energy: kinetic and potential energy at each state ``(T + 1,)``, in J.
        work: largest possible work of the drives in each step ``(T,)``, in J; infinite if it is unbounded.
        objects: names of the k free bodies.
        position: position of each free body at each state ``(T + 1, k, 3)``.
        velocity: linear velocity of each free body at each state ``(T + 1, k, 3)``.
        touched: whether each free body has a contact ``(T, k)``.
        gravity: acceleration of gravity ``(3,)``.
        state_error: largest difference between the stored next state and the state recomputed from the stored one
            ``(T,)``, in rad or m. Differences of velocities are multiplied by the step's duration.
        state_error_joint: name of the joint with this difference.
    """

    time: Array
    depth: Array
    solimp_width: Array
    pair: tuple[str, ...]
    energy: Array
    work: Array
    objects: tuple[str, ...]
    position: Array
    velocity: Array
    touched: NDArray[np.bool_]
    gravity: Array
    state_error: Array
    state_error_joint: tuple[str, ...]


def compute_step_quantities(recording: RecordedEpisode, twins: EpisodeTwins) -> StepQuantities:
    """Recompute next states, contacts and energies of a simulated episode from its stored states, step by step.

    The result is computed once per recording.

    Raises:
        InputError: If the episode has no states, has no twin, or was made with another twin.
    """
    return recording.compute_once("account", lambda asked: _compute_step_quantities(asked, twins))


def _compute_step_quantities(recording: RecordedEpisode, twins: EpisodeTwins) -> StepQuantities:
    episode = recording.load_sim_episode()
    if episode is None:
        raise InputError(_NO_STATES)
    twin = twins(recording)
    stepper = PhysicsStepper.of_episode(twin, episode)
    record = _StepRecord(twin, len(stepper))
    stepper.visit_steps(record.record_step)
    model = stepper.run([]).model
    qpos, qvel = (episode.states[:, state_columns(model, int(bit))] for bit in (_BIT.mjSTATE_QPOS, _BIT.mjSTATE_QVEL))
    time = episode.states[:, 0]
    places = [int(model.jnt_qposadr[joint]) for joint in record.free]
    dofs = [int(model.jnt_dofadr[joint]) for joint in record.free]
    miss, joint = _compute_state_errors(stepper, qpos, qvel, time)
    return StepQuantities(
        time=time,
        depth=record.depth,
        solimp_width=record.solimp_width,
        pair=tuple(record.pair),
        energy=np.append(record.energy, _compute_energy(model, episode.states[-1])),
        work=_compute_maximal_work(model, qvel, time, record.pushed),
        objects=tuple(model.body(model.jnt_bodyid[joint]).name for joint in record.free),
        position=np.stack([qpos[:, a : a + 3] for a in places], axis=1) if places else np.empty((len(qpos), 0, 3)),
        velocity=np.stack([qvel[:, a : a + 3] for a in dofs], axis=1) if dofs else np.empty((len(qpos), 0, 3)),
        touched=record.touched,
        gravity=np.array(model.opt.gravity),
        state_error=miss,
        state_error_joint=joint,
    )


class _StepRecord:
    """Energy, contacts and external forces at each control step, recorded while an episode is recomputed.

    Args:
        twin: twin of the episode.
        steps: number of control steps.
    """

    def __init__(self, twin: Twin, steps: int) -> None:
        model = twin.model
        self.free = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE).tolist()
        self._body = {int(model.jnt_bodyid[joint]): place for place, joint in enumerate(self.free)}
        self._root = model.body_weldid
        self.depth, self.solimp_width, self.energy = (np.zeros(steps) for _ in range(3))
        self.pushed = np.zeros(steps)
        self.pair = [""] * steps
        self.touched = np.zeros((steps, len(self.free)), dtype=np.bool_)

    def record_step(self, step: int, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        """Record one control step; a callback for `PhysicsStepper.visit_steps`."""
        mujoco.mj_energyPos(model, data)
        mujoco.mj_energyVel(model, data)
        self.energy[step] = data.energy.sum()
        self.pushed[step] = np.abs(data.xfrc_applied).sum()
        contact = data.contact
        kept = [row for row in range(data.ncon) if contact.efc_address[row] >= 0]
        for row in kept:
            bodies = [int(self._root[model.geom_bodyid[geom]]) for geom in contact.geom[row] if geom >= 0]
            for body in bodies:
                if body in self._body:
                    self.touched[step, self._body[body]] = True
            if -contact.dist[row] > self.depth[step]:
                self.depth[step], self.solimp_width[step] = -contact.dist[row], contact.solimp[row][2]
                self.pair[step] = " and ".join(model.body(body).name or "world" for body in bodies)


def _compute_energy(model: mujoco.MjModel, state: Array) -> float:
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, state, STATE_SPEC)
    mujoco.mj_forward(model, data)
    mujoco.mj_energyPos(model, data)
    mujoco.mj_energyVel(model, data)
    return float(data.energy.sum())


def _compute_maximal_work(model: mujoco.MjModel, qvel: Array, time: Array, pushed: Array) -> Array:
    """Return the largest possible work of the drives at their force limits in each step, ``(T,)`` in J.

    The work is infinite if a drive has no force limit or an external force is applied.

    Args:
        model: MuJoCo model.
        qvel: joint velocities ``(T + 1, nv)``.
        time: time of each state ``(T + 1,)``, in s.
        pushed: sum of the absolute external forces and torques in each step ``(T,)``.
    """
    rates = np.maximum(np.abs(qvel[1:]), np.abs(qvel[:-1]))
    power = np.zeros(len(rates))
    for actuator in range(model.nu):
        joint = int(model.actuator_trnid[actuator, 0])
        kind = int(model.actuator_trntype[actuator])
        bounded = model.actuator_forcelimited[actuator] and kind == mujoco.mjtTrn.mjTRN_JOINT
        if not bounded:
            return np.full(len(rates), np.inf)
        most = float(np.abs(model.actuator_forcerange[actuator]).max() * abs(model.actuator_gear[actuator, 0]))
        power += most * rates[:, int(model.jnt_dofadr[joint])]
    return np.where(pushed > 0, np.inf, power * np.diff(time))


def _compute_state_errors(
    stepper: PhysicsStepper, qpos: Array, qvel: Array, time: Array
) -> tuple[Array, tuple[str, ...]]:
    """Return the distance of each stored next state from the recomputed one ``(T,)``, and the joint that differs most.

    The distance is the largest difference of a position or velocity, in rad or m. Differences of velocities are
    multiplied by the step's duration.

    Args:
        stepper: recomputes the physics steps of the episode.
        qpos: stored positions ``(T + 1, nq)``.
        qvel: stored velocities ``(T + 1, nv)``.
        time: time of each state ``(T + 1,)``, in s.
    """
    steps = stepper.run()
    model, spans = steps.model, np.diff(time)
    next_qpos, next_qvel = steps.qpos[:, -1], steps.qvel[:, -1]
    apart, worst = np.zeros(len(next_qpos)), [""] * len(next_qpos)
    owner = model.dof_jntid
    for row in range(len(next_qpos)):
        offset = np.zeros(model.nv)
        mujoco.mj_differentiatePos(model, offset, 1.0, next_qpos[row], qpos[row + 1])
        off = np.maximum(np.abs(offset), np.abs(qvel[row + 1] - next_qvel[row]) * spans[row])
        far = int(np.argmax(off)) if model.nv else 0
        apart[row] = off[far] if model.nv else 0.0
        worst[row] = model.joint(int(owner[far])).name if model.nv else ""
    return apart, tuple(worst)


_FALLS = 0.5  # share of g: an object with less downward acceleration is supported or floats
_BEFORE_MM = 30.0  # allowance for logged poses without velocities: a fast motion may change speed by this much


class StateCheck(KnownLimitCheck):
    """Base class of checks that read the full simulator states, recomputed with the episode's drawn parameters."""

    reads = frozenset({"states"})

    def __init__(self, twins: EpisodeTwins) -> None:
        self._twins = twins

    def load_step_quantities(self, recording: RecordedEpisode) -> StepQuantities:
        """Return the recomputed quantities of a simulated episode; see `compute_step_quantities` for the errors."""
        return compute_step_quantities(recording, self._twins)


class Penetration(StateCheck):
    """Check for bodies that penetrate each other deeper than several widths of their contact.

    The width is a parameter of MuJoCo's ``solimp``: a contact stiffens up to this depth and has constant stiffness
    beyond it. The value is the largest ratio of contact depth to this width; it is suspect above 4 and bad above 8.
    """

    name = "physics/penetration"
    meaning = "bodies penetrate each other deeper than a soft contact allows"
    unit = "widths"
    limit, bad = 4.0, 8.0
    source = "widths of the contact's solimp; a firm grasp takes one or two (docs/guides/curation.md)"

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the largest ratio of contact depth to contact width, the depth of full stiffness in ``solimp``."""
        quantities = self.load_step_quantities(recording)
        ratio = quantities.depth / np.maximum(quantities.solimp_width, 1e-6)
        if not quantities.depth.any():
            return [Measurement(value=0.0, text="There is no contact.")]
        at = int(np.argmax(ratio))
        said = (
            f"{quantities.pair[at]} penetrate each other by {1e3 * quantities.depth[at]:.2f} mm at frame {at}, "
            f"{ratio[at]:.2f} times the contact's width."
        )
        return [Measurement(value=float(ratio[at]), text=said, first_frame=at, last_frame=at)]


class EnergyJumps(StateCheck):
    """Check for mechanical energy that rises by more than the largest possible work of the drives.

    The value is the unexplained rise in one control step, in J.
    """

    name = "physics/energy"
    meaning = "mechanical energy rises faster than the drives can work"
    unit = "J"
    limit, bad = 0.01, 0.05
    source = "energy returned by soft contacts is below this (docs/guides/curation.md)"

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the largest rise of energy beyond the possible work of the drives in one control step, in J."""
        quantities = self.load_step_quantities(recording)
        if not np.isfinite(quantities.work).any():
            return [
                Measurement(
                    value=None, text="The work is unbounded: a drive has no force limit, or forces are applied."
                )
            ]
        excess = np.diff(quantities.energy) - quantities.work
        at = int(np.argmax(excess))
        said = (
            f"Energy rises by {quantities.energy[at + 1] - quantities.energy[at]:.4f} J after frame {at}, but the "
            f"drives can add at most {quantities.work[at]:.4f} J."
        )
        return [Measurement(value=max(float(excess[at]), 0.0), text=said, first_frame=at, last_frame=at + 1)]


class Teleports(StateCheck):
    """Check for objects that move further in one step than their speed and gravity allow.

    The allowed distance is the larger of the speeds before and after the step, times its duration, plus the distance of
    free fall.
    """

    name = "physics/teleport"
    meaning = "an object moves further in one step than its speed and gravity allow"
    unit = "mm"
    limit, bad = 3.0, 10.0
    source = "the distance beyond the larger of its two speeds plus free fall"
    reads = KnownLimitCheck.reads  # also the poses in a log

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return, for each object, the largest distance beyond the allowed one in one step, in mm."""
        made = [
            self._measure_jump(name, _compute_step_lengths(p), None, _compute_fall_distances(t))
            for name, t, p in _list_logged_poses(recording)
        ]
        if recording.states is None:
            return made or [Measurement(value=None, text="It has neither states nor poses of objects.")]
        quantities = self.load_step_quantities(recording)
        speed = np.linalg.norm(quantities.velocity, axis=2)
        for place, name in enumerate(quantities.objects):
            allowed = np.maximum(speed[1:, place], speed[:-1, place]) * np.diff(quantities.time)
            made.append(
                self._measure_jump(
                    name,
                    _compute_step_lengths(quantities.position[:, place]),
                    allowed,
                    _compute_fall_distances(quantities.time),
                )
            )
        return made or [Measurement(value=None, text="No object moves freely.")]

    @staticmethod
    def _measure_jump(name: str, moved: Array, allowed: Array | None, falls: Array) -> Measurement:
        if allowed is None:  # no speeds were logged: estimate them from the steps before and after
            wide = np.concatenate([moved[:1], moved, moved[-1:]])
            allowed = np.maximum(wide[:-2], wide[2:]) + _BEFORE_MM * 1e-3
        excess = moved - allowed - falls
        at = int(np.argmax(excess)) if len(excess) else 0
        value = max(float(excess[at]), 0.0) if len(excess) else 0.0
        said = (
            f"{name} moves {1e3 * moved[at]:.1f} mm after frame {at}, {1e3 * value:.1f} mm further than its speed and "
            "gravity allow."
        )
        return Measurement(value=1e3 * value, channel=name, text=said, first_frame=at, last_frame=at + 1)


def _list_logged_poses(recording: RecordedEpisode) -> list[tuple[str, Array, Array]]:
    """Return the name, times ``(T,)`` in s and positions ``(T, 3)`` in m of each body with logged poses."""
    signals = recording.raw.signals.items()
    return [(n.removeprefix("pose/"), s.time, s.values[:, :3]) for n, s in signals if n.startswith("pose/") and len(s)]


def _compute_step_lengths(position: Array) -> Array:
    return np.linalg.norm(np.diff(position, axis=0), axis=1)


def _compute_fall_distances(time: Array) -> Array:
    return 0.5 * 9.81 * np.diff(time) ** 2


class Floating(StateCheck):
    """Check for objects that touch nothing and do not fall.

    The value is the longest time without a contact during which the acceleration along gravity stays below half of
    gravity.
    """

    name = "physics/float"
    meaning = "an object rests or glides in the air, touching nothing"
    unit = "s"
    limit, bad = 0.08, 0.2
    source = "a contact that is open for a moment lasts a step or two"

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return, for each object, the longest time in s during which it touches nothing and does not fall."""
        quantities = self.load_step_quantities(recording)
        dt = np.diff(quantities.time)
        gravity = float(np.linalg.norm(quantities.gravity))
        if not quantities.objects or gravity == 0:
            return [Measurement(value=None, text="No object moves freely under gravity.")]
        falls = np.diff(quantities.velocity, axis=0) / dt[:, None, None] @ (quantities.gravity / gravity)
        made = []
        for place, name in enumerate(quantities.objects):
            floating = ~quantities.touched[:, place] & (falls[:, place] < _FALLS * gravity)
            first, stop = find_longest_run(floating)
            seconds = float(dt[first:stop].sum())
            said = f"{name} touches nothing from frame {first} to {stop} ({seconds:.2f} s) and does not fall."
            made.append(Measurement(value=seconds, channel=name, text=said, first_frame=first, last_frame=stop))
        return made


class NextState(StateCheck):
    """Check for states that do not follow from the previous state, the recorded command and the drawn parameters.

    Every control step is simulated again from its stored state, and the result is compared with the next stored state.
    """

    name = "physics/next_state"
    meaning = "a state does not follow from the one before it, by the twin with the episode's own parameters"
    unit = "rad or m"
    limit, bad = 1e-4, 1e-3
    source = "backends in single precision stay within 2e-6 in a second (docs/project/architecture.md)"

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the largest difference between a stored next state and the recomputed one, in rad or m."""
        quantities = self.load_step_quantities(recording)
        at = int(np.argmax(quantities.state_error))
        wrong = np.flatnonzero(quantities.state_error > self.limit)
        said = (
            f"The stored state of {quantities.state_error_joint[at]} after frame {at} differs by "
            f"{quantities.state_error[at]:.3g} rad or m from the simulated one; {len(wrong)} of "
            f"{len(quantities.state_error)} steps differ by more than the limit."
        )
        first, last = (int(wrong[0]), int(wrong[-1] + 1)) if len(wrong) else (at, at + 1)
        return [Measurement(value=float(quantities.state_error[at]), text=said, first_frame=first, last_frame=last)]
