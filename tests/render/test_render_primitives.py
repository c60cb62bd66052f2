"""Where rays meet primitives: closed forms against MuJoCo's own intersection, over sizes, poses and rays."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.render.primitives import PRIMITIVES, ROUND, intersect_primitives

KINDS = {"plane": 0, "sphere": 2, "capsule": 3, "ellipsoid": 4, "cylinder": 5, "box": 6}
WORLD = "<mujoco><worldbody><geom type='{}' size='.1 .2 .3' contype='0'/></worldbody></mujoco>"


@pytest.fixture(scope="module")
def worlds() -> dict[str, tuple[mujoco.MjModel, mujoco.MjData]]:
    models = {name: mujoco.MjModel.from_xml_string(WORLD.format(name)) for name in KINDS}
    return {name: (model, mujoco.MjData(model)) for name, model in models.items()}


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 2**32 - 1))
def test_distances_and_normals_are_those_of_the_engine(worlds: dict, kind: str, seed: int) -> None:
    (model, data), rng = worlds[kind], np.random.default_rng(seed)
    model.geom_size[0] = rng.uniform(0.02, 0.5, 3)
    pose, camera = random_pose(rng, 0.3), random_pose(rng, 0.3)
    away = rng.normal(size=3) + 2.0 * unit(rng.normal(size=3))
    # From outside, and no geom here reaches farther than 1 m; a ray from within returns its exit point.
    camera[:3, 3] = pose[:3, 3] + away * max(1.0, 1.1 / np.linalg.norm(away))
    data.geom_xpos[0], data.geom_xmat[0] = pose[:3, 3], pose[:3, :3].ravel()
    towards = (pose[:3, 3] + rng.uniform(-0.4, 0.4, (40, 3)) - camera[:3, 3]) @ camera[:3, :3]
    rays = towards * rng.uniform(0.2, 3.0, (40, 1))  # of any length
    ids = np.zeros(40, dtype=np.int32)
    if kind == "plane" and (camera[:3, 3] - pose[:3, 3]) @ pose[:3, 2] < 0.0:
        return  # its other side, which is not drawn
    distance, normal = intersect_primitives(PRIMITIVES, ids, rays, camera, model, data)
    for i, ray in enumerate(rays):
        outward, world_ray = np.zeros(3), camera[:3, :3] @ ray
        expected = mujoco.mju_rayGeom(
            data.geom_xpos[0], data.geom_xmat[0], size_of(kind, model), camera[:3, 3], world_ray, KINDS[kind], outward
        )
        if expected < 0.0:
            assert np.isnan(distance[i])
            continue
        np.testing.assert_allclose(distance[i], expected, rtol=1e-7)
        np.testing.assert_allclose(normal[i], outward @ camera[:3, :3], atol=1e-6)


def size_of(kind: str, model: mujoco.MjModel) -> np.ndarray:
    """Return the geom's size; zeros for a plane, whose size limits the engine's rays."""
    return np.zeros(3) if kind == "plane" else model.geom_size[0]


def random_pose(rng: np.random.Generator, spread: float) -> np.ndarray:
    pose, matrix = np.eye(4), np.zeros(9)
    mujoco.mju_quat2Mat(matrix, unit(rng.normal(size=4)))
    pose[:3, :3], pose[:3, 3] = matrix.reshape(3, 3), rng.normal(scale=spread, size=3)
    return pose


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def test_what_is_nothing_or_no_such_kind_stays_unknown(worlds: dict) -> None:
    model, data = worlds["box"]
    mujoco.mj_kinematics(model, data)
    camera = np.eye(4)
    camera[2, 3] = -3.0
    rays = np.tile([0.0, 0.0, 1.0], (2, 1))
    ids = np.array([-1, 0], dtype=np.int32)
    distance, normal = intersect_primitives(PRIMITIVES, ids, rays, camera, model, data)
    assert np.isnan(distance[0])
    assert np.isfinite(distance[1])
    np.testing.assert_array_equal(normal[1], [0.0, 0.0, -1.0])
    assert np.isnan(intersect_primitives(ROUND, ids, rays, camera, model, data)[0]).all()
