"""Simulate falling objects until they rest, and determine their contacts."""

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

    ``qpos`` ``(nworld, nq)`` are the final positions, ``at_rest`` ``(nworld,)`` is whether a world is at rest, ``time``
    ``(nworld,)`` since when, in s (NaN: not), ``contacts`` its final contacts, one per world.
    """

    qpos: NDArray[np.float64]
    at_rest: NDArray[np.bool_]
    time: NDArray[np.float64]
    contacts: tuple[Contacts, ...]


@dataclass(frozen=True, kw_only=True)
class Contacts:
    """Contacts in one world: pairs of bodies and of geoms ``(ncon, 2)``, and depths in m, positive inside."""

    bodies: NDArray[np.intp]
    geoms: NDArray[np.intp]
    depth: NDArray[np.float64]

    def deepest(self, bodies: Iterable[int]) -> float:
        """Return the depth of the deepest contact of any of these bodies, in m; 0 without contacts."""
        part = np.isin(self.bodies, list(bodies)).any(axis=1)
        return float(self.depth[part].max(initial=0.0))

    def find_supported(self, ground: int) -> set[int]:
        """Return the bodies that a chain of contacts joins to the geom ``ground``."""
        reached = {int(body) for pair, at in zip(self.bodies, self.geoms, strict=True) if ground in at for body in pair}
        reached.discard(0)
        while True:
            near = np.isin(self.bodies, list(reached)).any(axis=1)
            more = reached | {int(body) for body in self.bodies[near].ravel() if body}
            if more == reached:
                return reached
            reached = more

    def find_partners(self, body: int) -> set[tuple[int, int]]:
        """Return (body, geom) of everything that touches a body."""
        found = (self.bodies == body).any(axis=1)
        return {
            (int(pair[side]), int(geoms[side]))
            for pair, geoms in zip(self.bodies[found], self.geoms[found], strict=True)
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
    """Simulate free bodies until they rest, each world separately, with the robot held by its initial command.

    A world first runs with drag on the falling bodies, which soon ends rolling and rocking. Then they are pushed
    slightly in several directions, and the simulation continues without drag: a body balanced on an edge falls over. A
    world is at rest if all bodies rest again after each push.

    Args:
        joints: ids of the ``n`` free joints that are checked.
        falling: whether a body is dropped in a world, ``(nworld, n)``.
        longest: maximum time, in s.
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
    for look in range(1, round(longest / _LOOK) + 1):
        batch.rollout(every, np.repeat(controls[running], every, axis=1), record=(), ids=running)
        still = _are_at_rest(qvel[running[:, None, None], dofs]) | (phase[running] == 0) & (look >= _DRAGGED)
        nudged = running[still & (phase[running] < len(_NUDGES))]
        damping[nudged[:, None, None], dofs] = undamped
        qvel[nudged[:, None, None], dofs] += _NUDGES[phase[nudged]][:, None] * falling[nudged][..., None]
        phase[running] += still
        time[running[phase[running] > len(_NUDGES)]] = look * every * twin.dt
        running = running[phase[running] <= len(_NUDGES)]
        if not len(running):
            break
    settled = qpos.copy()
    contacts = find_contacts(twin, table, initial, settled)
    return SettledWorlds(qpos=settled, at_rest=~np.isnan(time), time=time, contacts=contacts)


def _compute_drag(twin: Twin, batch: Batch, joints: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the damping ``(nworld, n, 6)`` that slows each body with the time constant ``_SLOWED``."""
    bodies = twin.model.jnt_bodyid[joints]
    mass, inertia = (batch.expand(name)[:, bodies] for name in ("body_mass", "body_inertia"))
    return np.concatenate([np.repeat(mass[..., None], 3, axis=2), inertia], axis=2) / _SLOWED


def find_contacts(
    twin: Twin, params: ParamTable, initial: InitialState, qpos: NDArray[np.float64]
) -> tuple[Contacts, ...]:
    """Return the contacts of every world at positions ``(nworld, nq)``."""
    batch = make_batch(twin, params, initial, 1)
    batch.bind("qpos")[...] = np.where(np.isfinite(qpos), qpos, 0.0)
    data = mujoco.MjData(twin.model)
    return tuple(_contacts(batch.get_model(world), batch.get_data(world, data)) for world in range(len(qpos)))


def _contacts(model: mujoco.MjModel, data: mujoco.MjData) -> Contacts:
    mujoco.mj_fwdPosition(model, data)
    geoms, distance = data.contact.geom.astype(np.intp).reshape(-1, 2), data.contact.dist
    near = distance < _TOUCH
    return Contacts(bodies=model.geom_bodyid[geoms[near]].astype(np.intp), geoms=geoms[near], depth=-distance[near])


def _are_at_rest(velocity: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether all free bodies with velocities ``(nworld, n, 6)`` are at rest, ``(nworld,)``."""
    speed = np.sqrt((velocity[..., :3] ** 2).sum(axis=-1))
    spin = np.sqrt((velocity[..., 3:] ** 2).sum(axis=-1))
    return ((speed < REST_SPEED) & (spin < REST_SPIN)).all(axis=1)


def _drop_timed_effects(params: ParamTable) -> ParamTable:
    """Return the table without pushes and timing errors."""
    kept = [i for i, name in enumerate(params.names) if not name.startswith(_NOT_YET)]
    return ParamTable(names=tuple(params.names[i] for i in kept), values=params.values[:, kept])
