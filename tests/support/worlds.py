"""Tiny worlds for measurements: an MJCF with some parameters, run without commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from twinloop.simulate import InitialState, Trajectories, open_backend, rollout
from twinloop.twin import Twin, load_twin

HZ = 100


def make_world(
    folder: Path, body: str, params: list[str], *, substeps: int = 10, option: str = "", head: str = ""
) -> Twin:
    """A twin of an MJCF ``worldbody`` with the named parameters; ``head`` is the XML before it."""
    xml = f'<mujoco><option integrator="implicitfast" cone="elliptic" {option}/>{head}'
    (folder / "world.xml").write_text(f"{xml}<worldbody>{body}</worldbody></mujoco>")
    rows = [{"name": name, "source": "test"} for name in params]
    spec = {"name": "world", "model": "world.xml", "control_hz": HZ, "substeps": substeps, "params": rows}
    (folder / "world.yaml").write_text(yaml.safe_dump(spec))
    return load_twin(folder / "world.yaml")


def start(twin: Twin, nworld: int, *, qpos: object = None, qvel: object = None) -> InitialState:
    """Worlds at home, or at other positions and velocities."""
    home = InitialState.home(twin, nworld)
    return InitialState(
        qpos=home.qpos if qpos is None else np.broadcast_to(np.asarray(qpos, float), home.qpos.shape),
        qvel=home.qvel if qvel is None else np.broadcast_to(np.asarray(qvel, float), home.qvel.shape),
        mocap_pos=home.mocap_pos,
        mocap_quat=home.mocap_quat,
        command=home.command,
    )


def run(twin: Twin, values: dict, seconds: float, *, backend: str = "threads", **begin: object) -> Trajectories:
    """Worlds with the given values, ``seconds`` long; all must stay valid."""
    nworld = max((np.size(value) for value in values.values()), default=1)
    nstep = round(seconds * HZ)
    commands = np.zeros((nworld, nstep, twin.model.nu))
    table = twin.table(nworld, values)
    result = rollout(open_backend(backend), twin, table, start(twin, nworld, **begin), commands, nstep)
    assert result.valid.all(), result.reason
    return result
