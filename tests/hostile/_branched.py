"""Models of branched trees, and plain MuJoCo as the reference for their dynamics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DENSE, SPARSE = mujoco.mjtJacobian.mjJAC_DENSE, mujoco.mjtJacobian.mjJAC_SPARSE
_STATE = mujoco.mjtState.mjSTATE_INTEGRATION


def tree(rng: np.random.Generator, joints: int, place: str = "0 0 0.4") -> str:
    """A floating body that carries a random tree of hinges; each joint's parent is one of the four before it."""
    children = {i: [] for i in range(joints)}
    for i in range(1, joints):
        children[int(rng.integers(max(0, i - 4), i))].append(i)

    def body(i: int) -> str:
        axis = rng.normal(size=3)
        numbers = [*(axis / np.linalg.norm(axis)), *rng.uniform(-0.12, 0.12, 3), *rng.uniform(-0.1, 0.1, 3)]
        n = [f"{number:.4f}" for number in numbers]
        return (
            f'<body pos="{" ".join(n[3:6])}"><joint axis="{" ".join(n[:3])}" damping="0.05" armature="0.002"/>'
            f'<geom type="capsule" size="0.025" fromto="0 0 0 {" ".join(n[6:])}" mass="0.1"/>'
            f"{''.join(map(body, children[i]))}</body>"
        )

    base = '<freejoint/><geom type="box" size="0.08 0.08 0.05" mass="1"/>'
    return f'<body pos="{place}">{base}{"".join(map(body, children[0]))}</body>'


def trees(seed: int, *, count: int = 3, joints: int = 27, option: str = "", extra: str = "") -> str:
    """MJCF of some branched trees over a plane."""
    rng = np.random.default_rng(seed)
    bodies = "".join(tree(rng, joints, f"{i % 3 * 0.9} {i // 3 * 0.9} 0.4") for i in range(count))
    return (
        f'<mujoco><option timestep="0.002" {option}/>{extra}'
        f'<worldbody><geom type="plane" size="9 9 0.1"/>{bodies}</worldbody></mujoco>'
    )


def written(folder: Path, xml: str, name: str = "trees.xml") -> Path:
    path = folder / name
    path.write_text(xml)
    return path


def with_jacobian(model: mujoco.MjModel, jacobian: int) -> mujoco.MjModel:
    """A model that differs in the constraint Jacobian alone."""
    import copy

    other = copy.copy(model)
    other.opt.jacobian = jacobian
    return other


def random_states(model: mujoco.MjModel, count: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """Positions and velocities with each floating body just above the plane."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        qpos = model.qpos0.copy()
        mujoco.mj_integratePos(model, qpos, rng.normal(size=model.nv), 1.0)
        for joint in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
            first = model.jnt_qposadr[joint]
            qpos[first : first + 3] = [*model.qpos0[first : first + 2], 0.12]
        yield qpos, 0.3 * rng.normal(size=model.nv)


def accelerations(model: mujoco.MjModel, states: list[tuple[Array, Array]]) -> Array:
    data, rows = mujoco.MjData(model), []
    for qpos, qvel in states:
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:] = qpos, qvel
        mujoco.mj_forward(model, data)
        rows.append(data.qacc.copy())
    return np.array(rows)


def relative(found: Array, reference: Array) -> float:
    """The largest difference of a row over the row's largest acceleration."""
    return float((np.abs(found - reference).max(axis=1) / np.abs(reference).max(axis=1)).max())


def stationarity(model: mujoco.MjModel, qpos: Array, qvel: Array, qacc: Array) -> float:
    """How far accelerations are from the minimum of MuJoCo's convex problem, relative to the forces that act.

    The gradient there is M (qacc - qacc_smooth) - J' f(J qacc - aref). It is computed from a dense Jacobian without
    any factorization, so that it depends on no solver.
    """
    dense = with_jacobian(model, DENSE)
    data = mujoco.MjData(dense)
    data.qpos[:], data.qvel[:] = qpos, qvel
    mujoco.mj_forward(dense, data)
    residual = np.zeros(data.nefc)
    mujoco.mj_mulJacVec(dense, data, residual, qacc)
    mujoco.mj_constraintUpdate(dense, data, residual - data.efc_aref, None, 0)
    inertial = np.zeros(dense.nv)
    mujoco.mj_mulM(dense, data, inertial, qacc - data.qacc_smooth)
    size = np.abs(data.qfrc_constraint).max() + np.abs(data.qfrc_smooth).max()
    return float(np.abs(inertial - data.qfrc_constraint).max() / size)


def simulated(model: mujoco.MjModel, steps: int, start: Callable[[mujoco.MjData], None] = lambda data: None) -> Array:
    """Positions after each physics step of plain MuJoCo, ``(steps, nq)``."""
    data, rows = mujoco.MjData(model), np.empty((steps, model.nq))
    start(data)
    for row in rows:
        mujoco.mj_step(model, data)
        row[:] = data.qpos
    return rows
