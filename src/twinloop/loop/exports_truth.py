"""What a generated dataset's twin knows of its episodes, for exporters that know no twin: models, controls, bodies."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.params import ParamTable
from twinloop.core.records import Provenance, StoredSimulation
from twinloop.dataset.exporters.mcap import export_mcap
from twinloop.dataset.exporters.protocol import Exporter
from twinloop.dataset.exporters.rerun import export_rerun
from twinloop.dataset.exporters.robomimic import export_robomimic
from twinloop.dataset.exporters.streams import open_reader
from twinloop.dataset.exporters.truth import NOTHING, Bodies, Shape, Truth
from twinloop.dataset.reader import DatasetReader
from twinloop.dataset.simulation_table import TABLE, stored_simulation
from twinloop.generate.config import GenerateConfig, load_plan
from twinloop.generate.replay import root_config
from twinloop.loop.exports_labels import label_events
from twinloop.rollout.episodes import INITIAL_COMMAND
from twinloop.rollout.replay import recorded_params
from twinloop.rollout.step_inputs import step_inputs
from twinloop.simulate.drives import Drives
from twinloop.simulate.protocol import STATE_SPEC, state_poses
from twinloop.twin import Twin
from twinloop.twin.model_limits import ENGINE_ERRORS, check_model_text
from twinloop.twin.model_text import model_text, world_model_inplace

_GEOM = mujoco.mjtGeom
_KINDS = {
    int(_GEOM.mjGEOM_BOX): "box",
    int(_GEOM.mjGEOM_SPHERE): "sphere",
    int(_GEOM.mjGEOM_ELLIPSOID): "ellipsoid",
    int(_GEOM.mjGEOM_CAPSULE): "capsule",
    int(_GEOM.mjGEOM_CYLINDER): "cylinder",
    int(_GEOM.mjGEOM_MESH): "mesh",
}
_HIDDEN = 3  # MuJoCo's viewer shows the geom groups 0 to 2
_WRITERS = {"robomimic": export_robomimic, "mcap": export_mcap, "rerun": export_rerun}


def with_truth(exporter: Exporter, source: Path) -> Exporter:
    """The exporter with what the dataset's twin and the workspace's labels know, where the format shows it."""
    writer = _WRITERS.get(exporter.name)
    if writer is None:
        return exporter
    reader = open_reader(source)
    truth, events = truth_of(reader) or NOTHING, label_events(reader)
    truth = truth if events is None else replace(truth, events=events)
    return replace(exporter, write=partial(writer, truth=truth))


def truth_of(reader: DatasetReader) -> Truth | None:
    """What is known of a dataset that a simulator made, or that came with one's models; None of any other."""
    if not reader.ours:
        return None
    if TABLE in reader.side_tables:
        return Truth(simulation=partial(stored_simulation, reader), bodies=partial(_imported_bodies, reader))
    if "generate" not in root_config(reader):
        return None
    try:
        twin = load_plan(GenerateConfig.model_validate(root_config(reader)["generate"])).twin
    except TwinloopError as error:
        return Truth(notes=(f"without the twin, so without models and poses: {error}",))
    if twin.hash != reader.spec.twin_hash:
        was = f"{twin.name} is {twin.hash[:12]} now and was {reader.spec.twin_hash[:12]}"
        return Truth(notes=(f"the twin has changed since ({was}), so without models and poses",))
    known = _Generated(reader, twin)
    return Truth(simulation=known.simulation, bodies=known.bodies, command=twin.robot.control)


class _Generated:
    """A generated dataset and the twin that made it."""

    def __init__(self, reader: DatasetReader, twin: Twin) -> None:
        self._reader, self.twin = reader, twin

    def simulation(self, index: int) -> StoredSimulation | None:
        """The episode's model with its parameters, its states, and what its actuators were given."""
        if self._reader.appended(index):
            return None
        provenance = self._reader.provenance(index)
        params = recorded_params(self.twin, provenance)
        text = model_text(self.twin, params)
        controls, notes = self._controls(index, params, provenance)
        return StoredSimulation(
            model=text.xml,
            assets=text.assets,
            states=self._reader.states(index),
            spec=STATE_SPEC,
            controls=controls,
            notes=notes,
        )

    def bodies(self, index: int) -> Bodies | None:
        """Where the episode's bodies are at each frame, and what they look like."""
        if self._reader.appended(index):
            return None
        model = copy.copy(self.twin.model)
        params = recorded_params(self.twin, self._reader.provenance(index))
        world_model_inplace(self.twin, params, model)
        return _bodies(model, self._reader.states(index)[:-1])

    def _controls(
        self, index: int, params: ParamTable, provenance: Provenance
    ) -> tuple[NDArray[np.float64] | None, tuple[str, ...]]:
        """What the actuators were given in every physics step, or why that alone does not make the episode again."""
        initial = np.atleast_2d(np.asarray(provenance.extra[INITIAL_COMMAND], dtype=np.float64))
        inputs = list(step_inputs(self.twin, params, initial, self._reader.commands(index)))
        said = {
            "drives change the model between physics steps": Drives(self.twin, params).active,
            "parameters change at control steps": self.twin.stepped_fields(params, [0]) is not None,
            "the physics step varies": any(step.timestep is not None for step in inputs),
            "bodies are pushed from outside": any(
                step.wrenches is not None and np.any(step.wrenches) for step in inputs
            ),
        }
        notes = tuple(f"controls left out, they do not suffice: {reason}" for reason, holds in said.items() if holds)
        return (None if notes else np.stack([step.controls for step in inputs])), notes


def _imported_bodies(reader: DatasetReader, index: int) -> Bodies | None:
    """Those of an episode whose model and states came in with its log."""
    kept = stored_simulation(reader, index)
    if kept is None or kept.spec != STATE_SPEC:
        return None
    where = f"The model of episode {index} in {reader.path}"
    check_model_text(kept.model, kept.assets, where=where)
    try:
        model = mujoco.MjModel.from_xml_string(kept.model, dict(kept.assets))
    except ENGINE_ERRORS as error:
        raise InputError(f"{where} is not one that MuJoCo reads: {' '.join(str(error).split())}") from error
    return _bodies(model, kept.states[: int(reader.lengths[index])])


def _bodies(model: mujoco.MjModel, states: NDArray[np.float64]) -> Bodies:
    position, quaternion = body_poses(model, states)
    names = tuple(model.body(i).name or f"body_{i}" for i in range(1, model.nbody))
    return Bodies(names=names, position=position, quaternion=quaternion, shapes=tuple(_shapes(model)))


def body_poses(model: mujoco.MjModel, states: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Positions ``(T, nbody - 1, 3)`` and quaternions wxyz of all bodies but the world, from recorded states."""
    data = mujoco.MjData(model)
    poses = state_poses(model, states)
    position, quaternion = (np.empty((len(states), model.nbody - 1, width)) for width in (3, 4))
    for frame in range(len(states)):
        data.qpos[:] = poses["qpos"][frame]
        data.mocap_pos.flat[:], data.mocap_quat.flat[:] = poses["mocap_pos"][frame], poses["mocap_quat"][frame]
        mujoco.mj_kinematics(model, data)
        position[frame], quaternion[frame] = data.xpos[1:], data.xquat[1:]
    return position, quaternion


def _shapes(model: mujoco.MjModel) -> Sequence[Shape]:
    """The geoms that MuJoCo's viewer shows, as shapes of their bodies; those of the world are named after it."""
    return [shape for geom in range(model.ngeom) if (shape := _shape(model, geom)) is not None]


def _shape(model: mujoco.MjModel, geom: int) -> Shape | None:
    kind, rgba = _KINDS.get(int(model.geom_type[geom])), model.geom_rgba[geom]
    if kind is None or model.geom_group[geom] >= _HIDDEN or not rgba[3] or not model.geom_size[geom].any():
        return None
    if (material := int(model.geom_matid[geom])) >= 0:
        rgba = model.mat_rgba[material]
    body = int(model.geom_bodyid[geom])
    vertices, faces = _mesh(model, int(model.geom_dataid[geom])) if kind == "mesh" else (None, None)
    return Shape(
        body=(model.body(body).name or f"body_{body}") if body else "world",
        kind=kind,  # pyright: ignore[reportArgumentType]
        size=tuple(model.geom_size[geom].tolist()),
        position=tuple(model.geom_pos[geom].tolist()),
        quaternion=tuple(model.geom_quat[geom].tolist()),
        rgba=tuple(rgba.tolist()),
        vertices=vertices,
        faces=faces,
    )


def _mesh(model: mujoco.MjModel, mesh: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    first, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
    start, faces = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
    return model.mesh_vert[first : first + count].copy(), model.mesh_face[start : start + faces].copy()
