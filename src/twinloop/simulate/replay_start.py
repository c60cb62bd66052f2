"""Determine the initial states of a log's windows from measurements, and apply a fit's corrections to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from twinloop.core.errors import UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode
from twinloop.simulate.channels import free_joint, interpolate_at_frames
from twinloop.simulate.protocol import InitialState
from twinloop.twin import Twin
from twinloop.twin.quantities.rotation import rotate_vectors

Array = NDArray[np.float64]
_LOCAL = ("position", "rotation", "velocity", "spin")


@dataclass(frozen=True, kw_only=True)
class WindowStart:
    """Initial states of windows, and the components of these states that a fit may correct.

    There are m correctable components, first positions and then velocities.

    Attributes:
        initial: initial states of everything except the robot's joints.
        joints: encoder readings of the joint positions in SI units, shape ``(nwindow, n)``. The true positions follow
            from them with the encoders' offset and scale, which are parameters.
        speeds: joint velocities in SI units, as measured by the same encoders, shape ``(nwindow, n)``.
        dofs: degree of freedom of each correctable component, shape ``(m,)``.
        nposition: number of correctable components that are positions (in MuJoCo's tangent space).
        sd: prior standard deviation of each correction, shape ``(m,)``.
    """

    initial: InitialState
    joints: Array
    speeds: Array
    dofs: NDArray[np.intp]
    nposition: int
    sd: Array

    def take(self, rows: NDArray[np.intp]) -> WindowStart:
        """Return the initial states of the windows with the given indices."""
        return replace(self, initial=self.initial.take(rows), joints=self.joints[rows], speeds=self.speeds[rows])

    def make_initial_states(self, twin: Twin, table: ParamTable, local: Array) -> InitialState:
        """Return the initial states of simulated worlds: all windows in order, repeated for each set of parameters.

        Args:
            twin: the twin.
            table: parameters, one row per simulated world.
            local: corrections of the m correctable components (positions, then velocities) of each world's initial
                state, shape ``(nworld, m)``.
        """
        repeats = table.nworld // self.initial.nworld
        initial = self.initial.take(np.tile(np.arange(self.initial.nworld), repeats))
        qpos, qvel = initial.qpos.copy(), initial.qvel.copy()
        if twin.spec.robot is not None:
            offset, scale = (twin.column(table, "sensor", name) for name in ("offset", "scale"))
            qpos[:, twin.joint_qpos] = np.tile(self.joints, (repeats, 1)) * scale + offset
            qvel[:, twin.joint_qvel] = np.tile(self.speeds, (repeats, 1)) * scale
        if len(self.sd):
            corrections = np.zeros((2, table.nworld, twin.model.nv))
            corrections[0][:, self.dofs[: self.nposition]] = local[:, : self.nposition]
            corrections[1][:, self.dofs[self.nposition :]] = local[:, self.nposition :]
            qpos, qvel = integrate_positions(twin.model, qpos, corrections[0]), qvel + corrections[1]
        if twin.spec.robot is not None:
            qpos = twin.align_motors(qpos)
            qvel[:, twin.motor_qvel] = qvel[:, twin.joint_qvel]
            twin.align_coupled_joints(qpos, qvel)
        return replace(initial, qpos=qpos, qvel=qvel)


def integrate_positions(model: mujoco.MjModel, qpos: Array, move: Array) -> Array:
    """Return positions ``(nworld, nq)`` after a displacement in tangent space, as ``mj_integratePos`` does.

    The displacement ``move`` has the shape ``(nworld, nv)``.
    """
    result = qpos.copy()
    for joint in range(model.njnt):
        kind, at, dof = int(model.jnt_type[joint]), int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])
        free = kind == int(mujoco.mjtJoint.mjJNT_FREE)
        if not free and kind != int(mujoco.mjtJoint.mjJNT_BALL):
            result[:, at] += move[:, dof]
            continue
        if free:
            result[:, at : at + 3] += move[:, dof : dof + 3]
            at, dof = at + 3, dof + 3
        turn = Rotation.from_rotvec(move[:, dof : dof + 3])
        rotated = Rotation.from_quat(result[:, at : at + 4], scalar_first=True) * turn
        result[:, at : at + 4] = rotated.as_quat(scalar_first=True)
    return result


def read_starts(
    twin: Twin,
    starts: Sequence[tuple[Episode, int]],
    *,
    joints: Mapping[int, Array],
    columns: Sequence[int],
    commands: Mapping[int, Array],
    resting: bool,
    sd: Mapping[str, float],
    history: int,
) -> WindowStart:
    """Determine the initial states of windows from the measurements at their first frames.

    Args:
        twin: the twin.
        starts: episode and first frame of each window.
        joints: for each episode number the positions of the robot's joints in SI units, shape ``(T, n)``.
        columns: for each joint of the twin, its column in the log.
        commands: for each episode number the commands in the actuators' units, shape ``(T, nu)``.
        resting: whether to start with zero velocity.
        sd: prior standard deviations of the components that may be corrected, by ``position``, ``rotation``,
            ``velocity`` and ``spin``; units as in `ReplayOptions.local`.
        history: number of commands to keep from before a window.

    Raises:
        UnknownNameError: If a key of ``sd`` is unknown.
    """
    home = InitialState.home(twin, len(starts))
    qpos, qvel = home.qpos.copy(), home.qvel.copy()
    bodies = _free_bodies(twin.model)
    for body in bodies:
        _place(twin.model, body, starts, qpos, qvel, resting=resting)
    mocap_pos, mocap_quat = _place_mocap_bodies(twin.model, starts, home)
    n = len(columns) if joints else 0
    speeds = (
        {e.index: _read_joint_velocities(e, joints[e.index], columns) for e, _ in starts}
        if joints and not resting
        else {}
    )
    dofs, nposition, widths = _select_correctable_dofs(twin, bodies if not n else [], sd)
    earlier = np.stack([_select_earlier_commands(commands[e.index], frame, history) for e, frame in starts])
    return WindowStart(
        initial=replace(
            home,
            qpos=qpos,
            qvel=qvel,
            mocap_pos=mocap_pos,
            mocap_quat=mocap_quat,
            command=earlier[:, 0],
            earlier=earlier[:, 1:],
        ),
        joints=np.stack([joints[e.index][frame] for e, frame in starts]) if n else np.zeros((len(starts), 0)),
        speeds=np.stack([speeds[e.index][frame] for e, frame in starts]) if speeds else np.zeros((len(starts), n)),
        dofs=dofs,
        nposition=nposition,
        sd=widths,
    )


def _free_bodies(model: mujoco.MjModel) -> list[str]:
    free = np.flatnonzero(model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE))
    return [model.body(int(model.jnt_bodyid[joint])).name for joint in free]


def _place(
    model: mujoco.MjModel, body: str, starts: Sequence[tuple[Episode, int]], qpos: Array, qvel: Array, *, resting: bool
) -> None:
    """Set a free body to its logged pose and velocity in all windows; it stays at home if its pose was not logged.

    Args:
        model: the model.
        body: name of the body.
        starts: episode and first frame of each window.
        qpos: positions of all windows, changed in place.
        qvel: velocities of all windows, changed in place.
        resting: whether to keep the velocity at zero.
    """
    at, dof = free_joint(model, body)
    for row, (episode, frame) in enumerate(starts):
        if f"pose/{body}" in episode.signals:
            qpos[row, at : at + 7] = interpolate_at_frames(episode, f"pose/{body}")[frame]
        if not resting and f"twist/{body}" in episode.signals:
            qvel[row, dof : dof + 6] = interpolate_at_frames(episode, f"twist/{body}")[frame]
        elif not resting:
            qvel[row, dof + 3 : dof + 6] = _read_angular_velocity(model, body, episode, frame)


def _place_mocap_bodies(
    model: mujoco.MjModel, starts: Sequence[tuple[Episode, int]], home: InitialState
) -> tuple[Array, Array]:
    """Return positions and quaternions of the mocap bodies in all windows: logged ones, or those at home.

    Mocap bodies do not move, so that the median over the episode removes a tracker's noise.
    """
    positions, quaternions = home.mocap_pos.copy(), home.mocap_quat.copy()
    for body in np.flatnonzero(model.body_mocapid >= 0):
        signal, column = f"pose/{model.body(int(body)).name}", int(model.body_mocapid[body])
        for row, (episode, _) in enumerate(starts):
            if signal in episode.signals:
                pose = np.median(episode.signals[signal].values, axis=0)
                positions[row, column], quaternions[row, column] = pose[:3], pose[3:] / np.linalg.norm(pose[3:])
    return positions, quaternions


def _read_angular_velocity(model: mujoco.MjModel, body: str, episode: Episode, frame: int) -> Array:
    """Return the angular velocity that a gyroscope on the body measured, in the body's axes in rad/s, shape ``(3,)``.

    It is 0 if there is no gyroscope.
    """
    for site in np.flatnonzero(model.site_bodyid == model.body(body).id):
        signal = f"angular_velocity/{model.site(int(site)).name}"
        if signal in episode.signals:
            return rotate_vectors(model.site_quat[site], interpolate_at_frames(episode, signal)[frame])
    return np.zeros(3)


def _read_joint_velocities(episode: Episode, positions: Array, columns: Sequence[int]) -> Array:
    """Return the measured joint velocities, shape ``(T, n)`` for T frames of n joints.

    If the log has none, they are finite differences of the positions.
    """
    if "joint_velocity" in episode.signals:
        return interpolate_at_frames(episode, "joint_velocity")[:, list(columns)]
    return np.gradient(positions, episode.time, axis=0)


def _select_earlier_commands(commands: Array, frame: int, history: int) -> Array:
    """Return the last ``1 + history`` commands before the frame ``frame``, oldest first, shape ``(1 + history, nu)``.

    Before the first command of the episode, the first command is repeated.
    """
    rows = np.arange(frame - history - 1, frame)
    return commands[np.maximum(rows, 0)]


def _select_correctable_dofs(
    twin: Twin, bodies: Sequence[str], sd: Mapping[str, float]
) -> tuple[NDArray[np.intp], int, Array]:
    """Return the degrees of freedom whose initial position or velocity a fit may correct.

    Args:
        twin: the twin.
        bodies: names of the free bodies; the robot's joints are included in addition.
        sd: prior standard deviations by kind of correction, see `ReplayOptions.local`.

    Returns:
        Degrees of freedom (positions, then velocities), number of positions among them, and their standard deviations.
    """
    for key in sd:
        if key not in _LOCAL:
            raise UnknownNameError("correction of a first state", key, _LOCAL)
    robot = twin.joint_qvel if twin.spec.robot is not None else np.array([], dtype=np.intp)
    free = np.array([free_joint(twin.model, body)[1] for body in bodies], dtype=np.intp)
    moving = np.concatenate([robot, (free[:, None] + np.arange(3)).ravel()])
    turning = (free[:, None] + np.arange(3, 6)).ravel()
    parts = [(moving, "position"), (turning, "rotation"), (moving, "velocity"), (turning, "spin")]
    chosen = [(dofs, sd[key]) for dofs, key in parts if key in sd]
    nposition = sum(len(dofs) for dofs, key in parts[:2] if key in sd)
    columns = np.concatenate([dofs for dofs, _ in chosen]) if chosen else np.array([], dtype=np.intp)
    return columns, nposition, np.concatenate([np.full(len(d), s) for d, s in chosen]) if chosen else np.array([])
