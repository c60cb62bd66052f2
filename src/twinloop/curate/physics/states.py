"""Check a simulated episode's states: penetration, energy, contacts, objects that teleport or float."""

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
from twinloop.rollout.substeps import Restepper
from twinloop.simulate.protocol import STATE_SPEC, state_columns
from twinloop.twin import Twin

Array = NDArray[np.float64]
_BIT = mujoco.mjtState
_NO_STATES = "It was not simulated here: it has no states of the whole world."


@dataclass(frozen=True, kw_only=True)
class StateAccount:
    """T control steps of one episode, computed with its drawn parameters; SI units, world axes.

    ``time`` ``(T + 1,)``. ``depth`` ``(T,)`` is the deepest contact at each step in m, ``norm`` ``(T,)`` the depth at
    which that contact reaches its full stiffness, ``pair`` the two bodies. ``energy`` ``(T + 1,)`` is kinetic and
    potential energy in J, ``work`` ``(T,)`` the maximal work of drives and applied forces in each step. ``objects`` are
    the free bodies, ``position`` and ``velocity`` ``(T + 1, k, 3)`` theirs, ``touched`` ``(T, k)`` whether each has a
    contact, ``fall`` ``(3,)`` the acceleration of gravity. ``miss`` ``(T,)`` is the largest difference between the
    stored next state and the one recomputed from the stored state, in rad or m, velocities times the step's duration;
    ``miss_joint`` is the joint with this difference.
    """

    time: Array
    depth: Array
    norm: Array
    pair: tuple[str, ...]
    energy: Array
    work: Array
    objects: tuple[str, ...]
    position: Array
    velocity: Array
    touched: NDArray[np.bool_]
    fall: Array
    miss: Array
    miss_joint: tuple[str, ...]


def compute_account(recording: RecordedEpisode, twins: EpisodeTwins) -> StateAccount:
    """Return the step data of a simulated episode.

    Raises:
        InputError: it has no states, there is no twin, or another twin made the episode.
    """
    return recording.compute_once("account", lambda asked: _compute_account(asked, twins))


def _compute_account(recording: RecordedEpisode, twins: EpisodeTwins) -> StateAccount:
    episode = recording.load_sim_episode()
    if episode is None:
        raise InputError(_NO_STATES)
    twin = twins(recording)
    stepper = Restepper.of_episode(twin, episode)
    notes = _StepRecord(twin, len(stepper))
    stepper.visit_steps(notes.record_step)
    model = stepper.run([]).model
    qpos, qvel = (episode.states[:, state_columns(model, int(bit))] for bit in (_BIT.mjSTATE_QPOS, _BIT.mjSTATE_QVEL))
    time = episode.states[:, 0]
    places = [int(model.jnt_qposadr[joint]) for joint in notes.free]
    dofs = [int(model.jnt_dofadr[joint]) for joint in notes.free]
    miss, joint = _compute_state_errors(stepper, qpos, qvel, time)
    return StateAccount(
        time=time,
        depth=notes.depth,
        norm=notes.norm,
        pair=tuple(notes.pair),
        energy=np.append(notes.energy, _compute_energy(model, episode.states[-1])),
        work=_compute_maximal_work(model, qvel, time, notes.pushed),
        objects=tuple(model.body(model.jnt_bodyid[joint]).name for joint in notes.free),
        position=np.stack([qpos[:, a : a + 3] for a in places], axis=1) if places else np.empty((len(qpos), 0, 3)),
        velocity=np.stack([qvel[:, a : a + 3] for a in dofs], axis=1) if dofs else np.empty((len(qpos), 0, 3)),
        touched=notes.touched,
        fall=np.array(model.opt.gravity),
        miss=miss,
        miss_joint=joint,
    )


class _StepRecord:
    """Energy, contacts and applied forces, recorded at each control step."""

    def __init__(self, twin: Twin, steps: int) -> None:
        model = twin.model
        self.free = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE).tolist()
        self._body = {int(model.jnt_bodyid[joint]): place for place, joint in enumerate(self.free)}
        self._root = model.body_weldid
        self.depth, self.norm, self.energy = (np.zeros(steps) for _ in range(3))
        self.pushed = np.zeros(steps)
        self.pair = [""] * steps
        self.touched = np.zeros((steps, len(self.free)), dtype=np.bool_)

    def record_step(self, step: int, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        """Record one step; see `rollout.substeps.Look`."""
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
                self.depth[step], self.norm[step] = -contact.dist[row], contact.solimp[row][2]
                self.pair[step] = " and ".join(model.body(body).name or "world" for body in bodies)


def _compute_energy(model: mujoco.MjModel, state: Array) -> float:
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, state, STATE_SPEC)
    mujoco.mj_forward(model, data)
    mujoco.mj_energyPos(model, data)
    mujoco.mj_energyVel(model, data)
    return float(data.energy.sum())


def _compute_maximal_work(model: mujoco.MjModel, qvel: Array, time: Array, pushed: Array) -> Array:
    """Return the maximal work of drives, at their force limits, in each step, ``(T,)`` in J.

    Infinite if a drive has no limit or an external force is applied, because the work is then unbounded.
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


def _compute_state_errors(stepper: Restepper, qpos: Array, qvel: Array, time: Array) -> tuple[Array, tuple[str, ...]]:
    """Return the distance of each stored next state from the recomputed one, and the joint that differs most."""
    steps = stepper.run()
    model, spans = steps.model, np.diff(time)
    places, speeds = steps.qpos[:, -1], steps.qvel[:, -1]
    apart, worst = np.zeros(len(places)), [""] * len(places)
    owner = model.dof_jntid
    for row in range(len(places)):
        turned = np.zeros(model.nv)
        mujoco.mj_differentiatePos(model, turned, 1.0, places[row], qpos[row + 1])
        off = np.maximum(np.abs(turned), np.abs(qvel[row + 1] - speeds[row]) * spans[row])
        far = int(np.argmax(off)) if model.nv else 0
        apart[row] = off[far] if model.nv else 0.0
        worst[row] = model.joint(int(owner[far])).name if model.nv else ""
    return apart, tuple(worst)


_FALLS = 0.5  # share of g: an object with less downward acceleration is supported or floats
_BEFORE_MM = 30.0  # allowance for logged poses without velocities: a fast motion may change speed by this much


class StateCheck(KnownLimitCheck):
    """A check of the full simulator states, with the episode's own drawn parameters."""

    reads = frozenset({"states"})

    def __init__(self, twins: EpisodeTwins) -> None:
        self._twins = twins

    def load_account(self, recording: RecordedEpisode) -> StateAccount:
        """Return the step data of a simulated episode; raises as `compute_account`."""
        return compute_account(recording, self._twins)


class Penetration(StateCheck):
    """Bodies that penetrate more than their contact stiffness allows.

    A MuJoCo contact stiffens over the ``width`` of its ``solimp`` and has constant stiffness beyond it. The value is
    the depth of the deepest contact in widths.
    """

    name = "physics/penetration"
    meaning = "bodies penetrate each other deeper than a soft contact allows"
    unit = "widths"
    limit, bad = 4.0, 8.0
    source = "widths of the contact's solimp; a firm grasp takes one or two (docs/guides/curation.md)"

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the largest ratio of contact depth to contact width."""
        found = self.load_account(recording)
        ratio = found.depth / np.maximum(found.norm, 1e-6)
        if not found.depth.any():
            return [Measurement(value=0.0, said="There is no contact.")]
        at = int(np.argmax(ratio))
        said = (
            f"{found.pair[at]} penetrate each other by {1e3 * found.depth[at]:.2f} mm at frame {at}, {ratio[at]:.2f} "
            "times the contact's width."
        )
        return [Measurement(value=float(ratio[at]), said=said, first_frame=at, last_frame=at)]


class EnergyJumps(StateCheck):
    """Mechanical energy that rises by more than the work of drives at their force limits.

    The value is the rise in one control step that no drive explains, in J.
    """

    name = "physics/energy"
    meaning = "mechanical energy rises faster than the drives can work"
    unit = "J"
    limit, bad = 0.01, 0.05
    source = "energy returned by soft contacts is below this (docs/guides/curation.md)"

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the largest rise of energy beyond the work of the drives in one control step, in J."""
        found = self.load_account(recording)
        if not np.isfinite(found.work).any():
            return [
                Measurement(value=None, said="A drive without a force limit, or applied forces, could add any energy.")
            ]
        excess = np.diff(found.energy) - found.work
        at = int(np.argmax(excess))
        said = (
            f"Energy rises by {found.energy[at + 1] - found.energy[at]:.4f} J after frame {at}, where the drives could "
            f"do {found.work[at]:.4f} J."
        )
        return [Measurement(value=max(float(excess[at]), 0.0), said=said, first_frame=at, last_frame=at + 1)]


class Teleports(StateCheck):
    """Objects that move further in one step than their speed before or after it, plus free fall, allows."""

    name = "physics/teleport"
    meaning = "an object moves further in one step than its speed and gravity allow"
    unit = "mm"
    limit, bad = 3.0, 10.0
    source = "the distance beyond the larger of its two speeds plus free fall"
    reads = KnownLimitCheck.reads  # poses of a log too

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the largest unexplained movement of each object in one step, in mm."""
        made = [
            self._measure_jump(name, _compute_step_lengths(p), None, _compute_fall_distances(t))
            for name, t, p in _list_logged_poses(recording)
        ]
        if recording.states is None:
            return made or [Measurement(value=None, said="It has neither states nor poses of objects.")]
        found = self.load_account(recording)
        speed = np.linalg.norm(found.velocity, axis=2)
        for place, name in enumerate(found.objects):
            carried = np.maximum(speed[1:, place], speed[:-1, place]) * np.diff(found.time)
            made.append(
                self._measure_jump(
                    name, _compute_step_lengths(found.position[:, place]), carried, _compute_fall_distances(found.time)
                )
            )
        return made or [Measurement(value=None, said="Nothing moves freely.")]

    @staticmethod
    def _measure_jump(name: str, gone: Array, carried: Array | None, falls: Array) -> Measurement:
        if carried is None:  # no speeds were logged: estimate them from the steps before and after
            wide = np.concatenate([gone[:1], gone, gone[-1:]])
            carried = np.maximum(wide[:-2], wide[2:]) + _BEFORE_MM * 1e-3
        excess = gone - carried - falls
        at = int(np.argmax(excess)) if len(excess) else 0
        value = max(float(excess[at]), 0.0) if len(excess) else 0.0
        said = (
            f"{name} moves {1e3 * gone[at]:.1f} mm after frame {at}, {1e3 * value:.1f} mm further than its speed and "
            "gravity allow."
        )
        return Measurement(value=1e3 * value, channel=name, said=said, first_frame=at, last_frame=at + 1)


def _list_logged_poses(recording: RecordedEpisode) -> list[tuple[str, Array, Array]]:
    """Return the name, times ``(T,)`` in s and positions ``(T, 3)`` in m of each body with logged poses."""
    signals = recording.raw.signals.items()
    return [(n.removeprefix("pose/"), s.time, s.values[:, :3]) for n, s in signals if n.startswith("pose/") and len(s)]


def _compute_step_lengths(position: Array) -> Array:
    return np.linalg.norm(np.diff(position, axis=0), axis=1)


def _compute_fall_distances(time: Array) -> Array:
    return 0.5 * 9.81 * np.diff(time) ** 2


class Floating(StateCheck):
    """Objects that touch nothing and do not fall."""

    name = "physics/float"
    meaning = "an object rests or glides in the air, touching nothing"
    unit = "s"
    limit, bad = 0.08, 0.2
    source = "a contact that is open for a moment lasts a step or two"

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the longest time for which each object touches nothing and does not fall, in s."""
        found = self.load_account(recording)
        dt = np.diff(found.time)
        pull = float(np.linalg.norm(found.fall))
        if not found.objects or pull == 0:
            return [Measurement(value=None, said="Nothing moves freely under gravity.")]
        falls = np.diff(found.velocity, axis=0) / dt[:, None, None] @ (found.fall / pull)
        made = []
        for place, name in enumerate(found.objects):
            held = ~found.touched[:, place] & (falls[:, place] < _FALLS * pull)
            first, stop = find_longest_run(held)
            seconds = float(dt[first:stop].sum())
            said = f"{name} touches nothing from frame {first} to {stop} ({seconds:.2f} s) and does not fall."
            made.append(Measurement(value=seconds, channel=name, said=said, first_frame=first, last_frame=stop))
        return made


class NextState(StateCheck):
    """States that do not follow from the previous ones under the recorded commands and the drawn parameters.

    Every control step is simulated again from its stored state and compared with the next stored state.
    """

    name = "physics/next_state"
    meaning = "a state does not follow from the one before it, by the twin with the episode's own parameters"
    unit = "rad or m"
    limit, bad = 1e-4, 1e-3
    source = "backends in single precision stay within 2e-6 in a second (docs/project/architecture.md)"

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the largest difference of a stored next state from the recomputed one, in rad or m."""
        found = self.load_account(recording)
        at = int(np.argmax(found.miss))
        wrong = np.flatnonzero(found.miss > self.limit)
        said = (
            f"The state of {found.miss_joint[at]} after frame {at} is {found.miss[at]:.3g} rad or m from the one that "
            f"follows; {len(wrong)} of {len(found.miss)} steps do not follow."
        )
        first, last = (int(wrong[0]), int(wrong[-1] + 1)) if len(wrong) else (at, at + 1)
        return [Measurement(value=float(found.miss[at]), said=said, first_frame=first, last_frame=last)]
