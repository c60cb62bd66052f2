"""Compute tables of contacts, joint forces and external forces of an episode from its stored states and commands.

The values at frame t are MuJoCo's results for the state of frame t. Controls and external forces are those of the
first physics step after frame t. The values equal those of the simulation bit for bit, including delayed commands and
the actuator models (drives); see `rollout.substeps`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.records import SimEpisode
from twinloop.dataset.annotations import PREFIX, build_table
from twinloop.render.annotate import InstanceTable
from twinloop.rollout.substeps import PhysicsStepper
from twinloop.twin import Twin

_GENERALIZED = {
    "acceleration": "qacc",
    "actuator": "qfrc_actuator",
    "passive": "qfrc_passive",
    "constraint": "qfrc_constraint",
    "bias": "qfrc_bias",
}


def dynamics_tables(twin: Twin, episode: SimEpisode, wanted: Sequence[str]) -> dict[str, pa.Table]:
    """Return the tables of contacts and forces in an episode, to pass as ``tables`` to `DatasetWriter.commit_block`.

    Args:
        twin: twin version that made the episode.
        episode: record of the episode.
        wanted: names of annotations. ``contacts`` gives the tables ``annotations/contacts`` and ``annotations/forces``;
            ``joints`` gives ``annotations/joints``; all other names are ignored.

    Returns:
        Tables by name; see `dataset.annotations` for their columns.

    Raises:
        InputError: If another twin made the episode, or the episode lacks required data.
    """
    if not {"contacts", "joints"} & set(wanted):
        return {}
    steps = _Steps(twin, contacts="contacts" in wanted, joints="joints" in wanted)
    PhysicsStepper.of_episode(twin, episode).visit_steps(steps.append_step)
    return steps.tables(episode.number)


class _Steps:
    """Rows of an episode's tables of contacts, external forces and joint forces, collected step by step.

    Args:
        twin: twin of the episode.
        contacts: whether to collect contacts and external forces.
        joints: whether to collect joint forces.
    """

    def __init__(self, twin: Twin, *, contacts: bool, joints: bool) -> None:
        names = [
            name for name, requested in (("contacts", contacts), ("forces", contacts), ("joints", joints)) if requested
        ]
        self._columns: dict[str, defaultdict[str, list[Any]]] = {name: defaultdict(list) for name in names}
        model, self._things = twin.model, InstanceTable.of(twin)
        self._bodies = [model.body(i).name or f"body_{i}" for i in range(model.nbody)]
        self._geoms = [model.geom(i).name or f"geom_{i}" for i in range(model.ngeom)]
        self._joints, self._qpos = _coordinates(model)

    def append_step(self, step: int, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        """Append the contacts, external forces and joint forces of one control step to the tables.

        They are MuJoCo's results at the start of the step.
        """
        if "contacts" in self._columns:
            self._append("contacts", step, data, self._contacts(model, data))
            self._append("forces", step, data, self._forces(data))
        if "joints" in self._columns:
            self._append("joints", step, data, self._generalized_forces(model, data))

    def tables(self, number: int) -> dict[str, pa.Table]:
        result: dict[str, pa.Table] = {}
        for name, columns in self._columns.items():
            rows = len(columns["frame_index"])
            result[f"{PREFIX}/{name}"] = build_table(name, {**columns, "number": [number] * rows}, rows)
        return result

    def _append(self, name: str, step: int, data: mujoco.MjData, columns: dict[str, Sequence[Any]]) -> None:
        rows, target = len(next(iter(columns.values()))), self._columns[name]
        target["frame_index"] += [step] * rows
        target["time"] += [data.time] * rows
        for key, values in columns.items():
            target[key] += list(values)

    def _contacts(self, model: mujoco.MjModel, data: mujoco.MjData) -> dict[str, Sequence[Any]]:
        """Return the columns of the contact table for one control step.

        It has the contacts between rigid geoms that MuJoCo's constraint solver includes.
        """
        found = [i for i in range(data.ncon) if data.contact.efc_address[i] >= 0 and (data.contact.geom[i] >= 0).all()]
        pairs = data.contact.geom[found].reshape(-1, 2)
        wrenches = np.array([contact_wrench(model, data, i) for i in found]).reshape(-1, 2, 3)
        first, second = pairs.T.tolist()
        return {
            "body1": [self._bodies[i] for i in model.geom_bodyid[first]],
            "body2": [self._bodies[i] for i in model.geom_bodyid[second]],
            "geom1": [self._geoms[i] for i in first],
            "geom2": [self._geoms[i] for i in second],
            "instance1": self._things.of_geom[first].tolist(),
            "instance2": self._things.of_geom[second].tolist(),
            "position": data.contact.pos[found].tolist(),
            "normal": data.contact.frame[found].reshape(-1, 9)[:, :3].tolist(),
            "distance": data.contact.dist[found].tolist(),
            "force": wrenches[:, 0].tolist(),
            "torque": wrenches[:, 1].tolist(),
        }

    def _forces(self, data: mujoco.MjData) -> dict[str, Sequence[Any]]:
        """Return the columns of the external-force table for one control step: forces and torques on bodies."""
        pushed = np.flatnonzero(data.xfrc_applied.any(axis=1))
        return {
            "body": [self._bodies[i] for i in pushed],
            "point": data.xipos[pushed].tolist(),
            "force": data.xfrc_applied[pushed, :3].tolist(),
            "torque": data.xfrc_applied[pushed, 3:].tolist(),
        }

    def _generalized_forces(self, model: mujoco.MjModel, data: mujoco.MjData) -> dict[str, Sequence[Any]]:
        """Return the columns of the joint-force table for one control step.

        They are position, velocity, acceleration and generalized forces of every degree of freedom.
        """
        applied = data.qfrc_applied.copy()
        for body in np.flatnonzero(data.xfrc_applied.any(axis=1)):
            force, torque = data.xfrc_applied[body, :3], data.xfrc_applied[body, 3:]
            mujoco.mj_applyFT(model, data, force, torque, data.xipos[body], int(body), applied)
        position = np.where(self._qpos >= 0, data.qpos[self._qpos], np.nan)
        fields = {name: getattr(data, field).tolist() for name, field in _GENERALIZED.items()}
        return {
            "name": self._joints,
            "position": position.tolist(),
            "velocity": data.qvel.tolist(),
            **fields,
            "applied": applied.tolist(),
        }


def contact_wrench(model: mujoco.MjModel, data: mujoco.MjData, contact: int) -> NDArray[np.float64]:
    """Return force and torque ``(2, 3)`` of one contact at the contact point, in world axes, in N and N·m.

    They are those that the first geom of the contact exerts on the second.

    Args:
        model, data: posed model with computed contact forces.
        contact: index of the contact in ``data.contact``.
    """
    wrench = np.empty(6)
    mujoco.mj_contactForce(model, data, contact, wrench)
    return wrench.reshape(2, 3) @ data.contact.frame[contact].reshape(3, 3)


def _coordinates(model: mujoco.MjModel) -> tuple[list[str], NDArray[np.intp]]:
    """Return the names of the degrees of freedom, ``nv`` of them, and their indices in qpos ``(nv,)``.

    The index is -1 for the degrees of freedom of ball and free joints, which have no single coordinate in qpos.
    """
    names, indices = list[str](), list[int]()
    for joint in range(model.njnt):
        name, width = model.joint(joint).name or f"joint_{joint}", len(model.joint(joint).damping)
        names += [name] if width == 1 else [f"{name}/{i}" for i in range(width)]
        indices += [int(model.jnt_qposadr[joint])] if width == 1 else [-1] * width
    return names, np.array(indices, dtype=np.intp)
