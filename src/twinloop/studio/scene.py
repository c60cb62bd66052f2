"""Compute what the three-dimensional view of an episode shows: the shapes of its twin, and their pose in each frame."""

from __future__ import annotations

import base64
import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from twinloop.core.errors import InputError
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate.replay import open_recorded_twin
from twinloop.render.triangles import make_triangles
from twinloop.rollout.replay import recorded_params
from twinloop.simulate.protocol import STATE_SPEC
from twinloop.studio.data import StudioData
from twinloop.studio.twin_replay import open_workspace_twin, replay_in_twin
from twinloop.twin import Twin

_CHORD = 1e-3  # m; largest distance of the drawn triangles inside a round shape
_MOST_FRAMES = 20_000
_SHOWN_GROUPS = 3  # MuJoCo's own viewer shows the geoms of groups 0 to 2


def describe_scene(data: StudioData, episode_id: str) -> dict[str, Any]:
    """Return the visible shapes of an episode's twin: triangles in their own axes in m, and colours.

    Corners are base64 of float32 ``(n, 3)``, triangles base64 of uint32 ``(m, 3)``. The poses of `read_poses` have the
    order of ``geoms``. ``source`` says where the poses come from: ``states`` of the simulation, or measured ``joints``.

    Raises:
        InputError: If neither is known; see `twin_replay.replay_in_twin`.
    """
    twin, model, _, source = _open(data, episode_id)
    return {**_describe_shapes(model), "twin": twin.name, "source": source}


def describe_robot(data: StudioData) -> dict[str, Any]:
    """Return the visible shapes of the workspace's twin, as `describe_scene` does."""
    twin = open_workspace_twin(data)
    return {**_describe_shapes(twin.model), "twin": twin.name, "source": "joints"}


def read_robot_poses(data: StudioData, rows: Sequence[Mapping[str, float]]) -> bytes:
    """Return the pose of every visible shape of the workspace's twin as float32 ``(n, ngeom, 7)``, see `read_poses`.

    Args:
        data: the workspace.
        rows: positions of joints by name, in rad or m, for each of the n poses; others are those of the home pose.
    """
    model = open_workspace_twin(data).model
    home = model.key_qpos[0] if model.nkey else model.qpos0
    qpos = np.tile(home, (len(rows), 1))
    for number, row in enumerate(rows):
        for name, value in row.items():
            joint = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, name)
            if joint >= 0 and np.isfinite(value):
                qpos[number, model.jnt_qposadr[joint]] = value
    return _compute_poses(model, qpos, "joints").tobytes()


def _describe_shapes(model: mujoco.MjModel) -> dict[str, Any]:
    geoms = []
    for geom in _list_visible(model):
        made: dict[str, Any] = {"name": model.geom(geom).name, "rgba": _read_colour(model, geom)}
        if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_PLANE:
            made["plane"] = [float(half) or 2.0 for half in model.geom_size[geom][:2]]  # MuJoCo: 0 is infinite
        else:
            corners, triangles = make_triangles(model, geom, chord=_CHORD)
            made["corners"] = _encode(corners.astype(np.float32))
            made["triangles"] = _encode(triangles.astype(np.uint32))
        geoms.append(made)
    return {"geoms": geoms, "center": model.stat.center.tolist(), "extent": float(model.stat.extent)}


def read_poses(data: StudioData, episode_id: str, *, of_twin: bool = False) -> bytes:
    """Return the pose of every visible shape in every frame, as float32 ``(nframe, ngeom, 7)``.

    A pose is the position in the world in m and the quaternion (w, x, y, z).

    Args:
        data: the workspace.
        episode_id: the episode.
        of_twin: the twin's replay of the episode instead of the episode itself.
    """
    _, model, rows, source = _open(data, episode_id)
    if of_twin:
        shown = replay_in_twin(data, episode_id)
        rows, source = shown.twin_qpos, "joints"
        if (shown.logs.twin.model.nq, shown.logs.twin.model.ngeom) != (model.nq, model.ngeom):
            raise InputError(
                f"The workspace's twin {shown.logs.twin.name} has other shapes than the twin that simulated the "
                "episode, so the two cannot be drawn together."
            )
    if len(rows) > _MOST_FRAMES:
        raise InputError(f"The episode has {len(rows)} frames; at most {_MOST_FRAMES} are shown in three dimensions.")
    return _compute_poses(model, rows, source).tobytes()


def _compute_poses(model: mujoco.MjModel, rows: NDArray[np.float64], source: str) -> NDArray[np.float32]:
    state, visible = mujoco.MjData(model), _list_visible(model)
    poses = np.empty((len(rows), len(visible), 7), np.float32)
    for frame, row in enumerate(rows):
        if source == "states":
            mujoco.mj_setState(model, state, row, STATE_SPEC)
        else:
            state.qpos[:] = row
        mujoco.mj_kinematics(model, state)
        poses[frame, :, :3] = state.geom_xpos[visible]
        turned = Rotation.from_matrix(state.geom_xmat[visible].reshape(-1, 3, 3))
        poses[frame, :, 3:] = turned.as_quat(scalar_first=True)
    return poses


def _open(data: StudioData, episode_id: str) -> tuple[Twin, mujoco.MjModel, NDArray[np.float64], str]:
    """Return the twin of an episode, its model, one row of states or joint positions per frame, and which of them."""
    reader, index = data.open_episode(episode_id)
    ours = reader.written_by_twinloop and not reader.is_appended(index)
    provenance = reader.provenance(index) if ours else None
    if provenance is not None and provenance.twin_hash and not reader.has_log(index):
        twin = _open_simulated(reader, provenance.config_hash)
        model = copy.copy(twin.model)
        twin.fields(recorded_params(twin, provenance), model=model).write_inplace(model, 0)
        return twin, model, reader.states(index)[:-1], "states"
    shown = replay_in_twin(data, episode_id)
    return shown.logs.twin, copy.copy(shown.logs.twin.model), shown.measured_qpos, "joints"


@functools.lru_cache(maxsize=8)
def _open_simulated(reader: DatasetReader, config_hash: str) -> Twin:
    return open_recorded_twin(reader, config_hash)


def _list_visible(model: mujoco.MjModel) -> NDArray[np.intp]:
    opaque = np.array([_read_colour(model, geom)[3] > 0 for geom in range(model.ngeom)], dtype=bool)
    return np.flatnonzero((model.geom_group < _SHOWN_GROUPS) & opaque & (model.geom_type != mujoco.mjtGeom.mjGEOM_SDF))


def _read_colour(model: mujoco.MjModel, geom: int) -> list[float]:
    material = model.geom_matid[geom]
    colour = model.geom_rgba[geom] if material < 0 else model.mat_rgba[material]
    return [round(float(value), 4) for value in colour]


def _encode(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
