"""Simulate falling objects until they are at rest, and determine their contacts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate.command import CommandPath
from twinloop.simulate.protocol import InitialState
from twinloop.simulate.threads import make_batch
from twinloop.twin import Twin

# At rest: slower than this. Our choice: such an object moves 1 mm in the time of a grasp.
REST_SPEED, REST_SPIN = 0.002, 0.05  # m/s, rad/s
_LOOK = 0.1  # s between checks
_SLOWED = 0.1  # s; time constant of the drag
# m/s and rad/s about the body's axes: twice what tips an object that 0.5 mm of rolling friction holds on an edge 18 mm
# from its centre, and a quarter of the energy that tips a bottle of 90 x 30 mm.
_NUDGES = np.array([[0.0, 0.0, 0.0, 1.5, 1.2, 0.5], [0.0, 0.0, 0.0, -1.2, 1.5, -0.5]])
_DRAGGED = 10  # checks after which a world continues without drag, at rest or not
_TOUCH = 2e-4  # m: geoms closer than this touch; soft contacts support an object with less than a tenth of it
_NOT_YET = ("push/", "timing/")  # effects that start with the episode, not before


@dataclass(frozen=True, kw_only=True)
class SettledWorlds:
    """Worlds after their objects have fallen.

    Attributes:
        qpos: final positions, shape ``(nworld, nq)``.
        at_rest: whether all objects of a world are at rest, shape ``(nworld,)``.
        rest_time: simulated time in s after which they were at rest, NaN if they are not, shape ``(nworld,)``.
        contacts: final contacts, one `Contacts` instance per world.
    """

    qpos: NDArray[np.float64]
    at_rest: NDArray[np.bool_]
    rest_time: NDArray[np.float64]
    contacts: tuple[Contacts, ...]


@dataclass(frozen=True, kw_only=True)
class Contacts:
    """Contacts of one world.

    Attributes:
        bodies: ids of the two bodies of each contact, shape ``(ncon, 2)``.
        geoms: ids of the two geoms, shape ``(ncon, 2)``.
        depth: penetration depth in m, positive if the geoms overlap, shape ``(ncon,)``.
    """

    bodies: NDArray[np.intp]
    geoms: NDArray[np.intp]
    depth: NDArray[np.float64]

    def deepest(self, bodies: Iterable[int]) -> float:
        """Return the largest penetration depth of the given bodies in m; 0 if they have no contacts."""
        involved = np.isin(self.bodies, list(bodies)).any(axis=1)
        return float(self.depth[involved].max(initial=0.0))

    def find_supported(self, ground: int) -> set[int]:
        """Return the ids of all bodies that touch the geom ``ground``, directly or through other bodies."""
        reached = {int(body) for pair, at in zip(self.bodies, self.geoms, strict=True) if ground in at for body in pair}
        reached.discard(0)
        while True:
            touching = np.isin(self.bodies, list(reached)).any(axis=1)
            extended = reached | {int(body) for body in self.bodies[touching].ravel() if body}
            if extended == reached:
                return reached
            reached = extended

    def find_partners(self, body: int) -> set[tuple[int, int]]:
        """Return body id and geom id of everything that touches the given body."""
        involved = (self.bodies == body).any(axis=1)
        return {
            (int(pair[side]), int(geoms[side]))
            for pair, geoms in zip(self.bodies[involved], self.geoms[involved], strict=True)
            for side in (0, 1)
            if pair[side] != body
        }


def settle(
    twin: Twin,
    params: ParamTable,
    initial: InitialState,
    joints: NDArray[np.intp],
    falling: NDArray[np.bool_],
    *,
    longest: float = 3.0,
    nthread: int = 0,
) -> SettledWorlds:
    """Simulate free bodies until they are at rest; the robot is held by its initial command.

    Each world first runs with additional drag on the falling bodies, which soon ends rolling and rocking. Then the
    bodies are pushed slightly in several directions, and the simulation continues without drag, so that a body
    balanced on an edge falls over. A world is at rest if all its bodies come to rest again after each push.

    Args:
        twin: the twin.
        params: parameters, one row per world; pushes and timing errors are ignored.
        initial: initial states of all worlds.
        joints: ids of the n free joints whose bodies are checked.
        falling: whether each body is dropped in each world, shape ``(nworld, n)``.
        longest: maximum simulated time, in s.
        nthread: number of C threads; 0 for every core.
    """
    table = _drop_timed_effects(params)
    batch = make_batch(twin, table, initial, nthread)
    controls = CommandPath(twin, table, initial.command).compute_controls(initial.command)[:, -1:]
    every = max(1, round(_LOOK / twin.dt))
    dofs = (twin.model.jnt_dofadr[joints][:, None] + np.arange(6)).astype(np.intp)
    damping, undamped = batch.expand("dof_damping"), twin.model.dof_damping[dofs]
    damping[:, dofs] = undamped + _compute_drag(twin, batch, joints) * falling[..., None]
    qpos, qvel, phase = batch.bind("qpos"), batch.bind("qvel"), np.zeros(initial.nworld, dtype=np.int64)
    time = np.full(initial.nworld, np.nan)
    running = np.arange(initial.nworld, dtype=np.int32)
    for check in range(1, round(longest / _LOOK) + 1):
        batch.rollout(every, np.repeat(controls[running], every, axis=1), record=(), ids=running)
        at_rest_now = _are_at_rest(qvel[running[:, None, None], dofs]) | (phase[running] == 0) & (check >= _DRAGGED)
        pushed = running[at_rest_now & (phase[running] < len(_NUDGES))]
        damping[pushed[:, None, None], dofs] = undamped
        qvel[pushed[:, None, None], dofs] += _NUDGES[phase[pushed]][:, None] * falling[pushed][..., None]
        phase[running] += at_rest_now
        time[running[phase[running] > len(_NUDGES)]] = check * every * twin.dt
        running = running[phase[running] <= len(_NUDGES)]
        if not len(running):
            break
    settled = qpos.copy()
    contacts = find_contacts(twin, table, initial, settled)
    return SettledWorlds(qpos=settled, at_rest=~np.isnan(time), rest_time=time, contacts=contacts)


def _compute_drag(twin: Twin, batch: Batch, joints: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return damping coefficients that slow each body with a time constant of 0.1 s, shape ``(nworld, n, 6)``.

    ``joints`` are the ids of the n free joints.
    """
    bodies = twin.model.jnt_bodyid[joints]
    mass, inertia = (batch.expand(name)[:, bodies] for name in ("body_mass", "body_inertia"))
    return np.concatenate([np.repeat(mass[..., None], 3, axis=2), inertia], axis=2) / _SLOWED


def find_contacts(
    twin: Twin, params: ParamTable, initial: InitialState, qpos: NDArray[np.float64]
) -> tuple[Contacts, ...]:
    """Return the contacts of every world at the given positions.

    Args:
        twin: the twin.
        params: parameters, one row per world.
        initial: initial states, of which the poses of mocap bodies are used.
        qpos: positions, shape ``(nworld, nq)``.
    """
    batch = make_batch(twin, params, initial, 1)
    batch.bind("qpos")[...] = np.where(np.isfinite(qpos), qpos, 0.0)
    data = mujoco.MjData(twin.model)
    return tuple(_contacts(batch.get_model(world), batch.get_data(world, data)) for world in range(len(qpos)))


def _contacts(model: mujoco.MjModel, data: mujoco.MjData) -> Contacts:
    mujoco.mj_fwdPosition(model, data)
    geoms, distance = data.contact.geom.astype(np.intp).reshape(-1, 2), data.contact.dist
    near = (distance < _TOUCH) & (geoms >= 0).all(axis=1)  # soft bodies have the index -1
    return Contacts(bodies=model.geom_bodyid[geoms[near]].astype(np.intp), geoms=geoms[near], depth=-distance[near])


def _are_at_rest(velocity: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for each world whether all its free bodies are at rest, shape ``(nworld,)``.

    ``velocity`` is linear and angular, shape ``(nworld, n, 6)`` for n bodies.
    """
    speed = np.sqrt((velocity[..., :3] ** 2).sum(axis=-1))
    spin = np.sqrt((velocity[..., 3:] ** 2).sum(axis=-1))
    return ((speed < REST_SPEED) & (spin < REST_SPIN)).all(axis=1)


def _drop_timed_effects(params: ParamTable) -> ParamTable:
    """Return the parameters excluding pushes and errors of the timing, because these effects begin with the episode.

    Errors of the timing are a wrong period or jitter of the control clock, and late or lost commands.
    """
    columns = [i for i, name in enumerate(params.names) if not name.startswith(_NOT_YET)]
    return ParamTable(names=tuple(params.names[i] for i in columns), values=params.values[:, columns])
