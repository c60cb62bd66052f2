"""What a simulated episode's states say of themselves: contacts, energy, what moves freely, and the next states."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.curate.recording import Recording
from twinloop.curate.registry import Twins
from twinloop.rollout.substeps import Restepper
from twinloop.simulate.protocol import STATE_SPEC, state_columns
from twinloop.twin import Twin

Array = NDArray[np.float64]
_BIT = mujoco.mjtState
_NO_STATES = "It was not simulated here: it has no states of the whole world."


@dataclass(frozen=True, kw_only=True)
class Account:
    """T control steps of one episode, computed with the parameters that were drawn for it; SI, world axes.

    ``time`` ``(T + 1,)``. ``depth`` ``(T,)`` is the deepest contact at each step in m, ``norm`` ``(T,)`` the depth at
    which that contact is as stiff as it gets, ``pair`` the two bodies. ``energy`` ``(T + 1,)`` is kinetic and potential
    energy in J, ``work`` ``(T,)`` the most that drives and pushes can have added in each step. ``objects`` are the free
    bodies, ``position`` and ``velocity`` ``(T + 1, k, 3)`` theirs, ``touched`` ``(T, k)`` whether each touches a thing,
    ``fall`` ``(3,)`` the acceleration of gravity. ``miss`` ``(T,)`` is by how much the state after each step differs
    from the one that follows from the state before it, in rad or m, velocities times the step's duration;
    ``miss_joint`` is what differs most.
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


def account_of(recording: Recording, twins: Twins) -> Account:
    """The account of a simulated episode.

    Raises:
        InputError: it has no states, there is no twin, or the twin is not the one that it was made with.
    """
    return recording.fact("account", lambda asked: _account(asked, twins))


def _account(recording: Recording, twins: Twins) -> Account:
    episode = recording.simulated()
    if episode is None:
        raise InputError(_NO_STATES)
    twin = twins(recording)
    stepper = Restepper.of_episode(twin, episode)
    notes = _Notes(twin, len(stepper))
    stepper.look(notes.see)
    model = stepper.run([]).model
    qpos, qvel = (episode.states[:, state_columns(model, int(bit))] for bit in (_BIT.mjSTATE_QPOS, _BIT.mjSTATE_QVEL))
    time = episode.states[:, 0]
    places = [int(model.jnt_qposadr[joint]) for joint in notes.free]
    dofs = [int(model.jnt_dofadr[joint]) for joint in notes.free]
    miss, joint = _misses(stepper, qpos, qvel, time)
    return Account(
        time=time,
        depth=notes.depth,
        norm=notes.norm,
        pair=tuple(notes.pair),
        energy=np.append(notes.energy, _energy(model, episode.states[-1])),
        work=_work(model, qvel, time, notes.pushed),
        objects=tuple(model.body(model.jnt_bodyid[joint]).name for joint in notes.free),
        position=np.stack([qpos[:, a : a + 3] for a in places], axis=1) if places else np.empty((len(qpos), 0, 3)),
        velocity=np.stack([qvel[:, a : a + 3] for a in dofs], axis=1) if dofs else np.empty((len(qpos), 0, 3)),
        touched=notes.touched,
        fall=np.array(model.opt.gravity),
        miss=miss,
        miss_joint=joint,
    )


class _Notes:
    """What is seen of each step."""

    def __init__(self, twin: Twin, steps: int) -> None:
        model = twin.model
        self.free = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE).tolist()
        self._body = {int(model.jnt_bodyid[joint]): place for place, joint in enumerate(self.free)}
        self._root = model.body_weldid
        self.depth, self.norm, self.energy = (np.zeros(steps) for _ in range(3))
        self.pushed = np.zeros(steps)
        self.pair = [""] * steps
        self.touched = np.zeros((steps, len(self.free)), dtype=np.bool_)

    def see(self, step: int, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        """See `rollout.substeps.Look`."""
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


def _energy(model: mujoco.MjModel, state: Array) -> float:
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, state, STATE_SPEC)
    mujoco.mj_forward(model, data)
    mujoco.mj_energyPos(model, data)
    mujoco.mj_energyVel(model, data)
    return float(data.energy.sum())


def _work(model: mujoco.MjModel, qvel: Array, time: Array, pushed: Array) -> Array:
    """The most that drives, at their force limits, and pushes can do in each step, ``(T,)`` in J.

    Infinite where a drive has no limit, or something is pushed: nothing then bounds what is added.
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


def _misses(stepper: Restepper, qpos: Array, qvel: Array, time: Array) -> tuple[Array, tuple[str, ...]]:
    """How far each next state is from the one that follows, and which joint is furthest off."""
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
