"""The double pendulum and the tossed cube against closed forms of their published parameters."""

import mujoco
import numpy as np
import pytest

from twinloop.twin import load_twin

# dfki-ric-underactuated-lab/double_pendulum, design C.1, model 1.0.
L1, M1, R1, I1 = 0.2, 0.5234602302310271, 0.2, 0.031887199591513114
M2, R2, I2 = 0.6255677234174437, 0.25569305436052964, 0.05086984812807257
COULOMB = [0.16 * np.pi / 2, 0.12 * np.pi / 2]  # cf · atan(100 q̇) at speed
ROTOR = 36.0 * 6.287203962819607e-05
G = 9.81


@pytest.fixture(scope="module")
def pendulum():
    return load_twin("double_pendulum")


def manipulator(q, v):
    """Mass matrix, and gravity plus Coriolis torques, of the published two-link arm."""
    c2, s2 = np.cos(q[1]), np.sin(q[1])
    coupled = I2 + M2 * L1 * R2 * c2
    mass = np.array([[I1 + I2 + M2 * L1**2 + 2 * M2 * L1 * R2 * c2 + ROTOR, coupled], [coupled, I2 + ROTOR]])
    h = M2 * L1 * R2 * s2
    coriolis = np.array([-h * (2 * v[0] * v[1] + v[1] ** 2), h * v[0] ** 2])
    far = M2 * R2 * G * np.sin(q[0] + q[1])
    gravity = np.array([(M1 * R1 + M2 * L1) * G * np.sin(q[0]) + far, far])
    return mass, coriolis + gravity


def test_pendulum_is_the_published_one(pendulum):
    model, data, random = pendulum.model, mujoco.MjData(pendulum.model), np.random.default_rng(5)
    for _ in range(20):
        data.qpos[:], data.qvel[:] = random.uniform(-3, 3, 2), random.uniform(-5, 5, 2)
        mujoco.mj_forward(model, data)
        full = np.zeros((2, 2))
        mujoco.mj_fullM(model, data, full)
        mass, bias = manipulator(data.qpos, data.qvel)
        assert full == pytest.approx(mass, rel=1e-4)
        assert data.qfrc_bias == pytest.approx(bias, rel=1e-3, abs=1e-4)
    assert model.dof_frictionloss == pytest.approx(COULOMB)
    assert model.dof_damping == pytest.approx([0.001, 0.001])


def test_pendulum_hangs_at_zero_and_positive_torque_turns_it_towards_x(pendulum):
    model, data = pendulum.model, mujoco.MjData(pendulum.model)
    mujoco.mj_forward(model, data)
    assert data.site("tcp").xpos[[0, 2]] == pytest.approx([0.0, 0.1])
    data.ctrl[:] = [1.0, 0.0]
    mujoco.mj_step(model, data, nstep=100)
    assert data.qpos[0] > 0
    mujoco.mj_kinematics(model, data)
    assert data.site("tcp").xpos[0] > 0


@pytest.fixture(scope="module")
def cube():
    return load_twin("cube_toss")


def test_cube_is_the_published_one(cube):
    body = cube.model.body("cube")
    assert body.mass[0] == pytest.approx(0.37)
    assert body.inertia == pytest.approx([0.00081] * 3)
    assert 2 * cube.model.geom("cube").size == pytest.approx([0.1048] * 3)


@pytest.mark.parametrize("height", [0.02, 0.1, 0.3])
def test_flat_drop_rebounds_with_the_published_restitution(cube, height):
    model, data = cube.model, mujoco.MjData(cube.model)
    data.qpos[2] += height
    before, after = 0.0, -np.inf
    for _ in range(round(0.6 / cube.dt)):
        mujoco.mj_step(model, data)
        if after == -np.inf and not data.ncon:
            before = -data.qvel[2]
        else:
            after = max(after, float(data.qvel[2]))
    assert before == pytest.approx(np.sqrt(2 * G * height), rel=0.01)
    assert after / before == pytest.approx(0.125, abs=0.006)


def test_sliding_cube_slows_by_the_published_friction(cube):
    model, data = cube.model, mujoco.MjData(cube.model)
    mujoco.mj_step(model, data, nstep=500)
    data.qvel[:] = 0.0
    data.qvel[0] = 1.0
    mujoco.mj_step(model, data, nstep=50)
    start, t = data.qvel[0], data.time
    mujoco.mj_step(model, data, nstep=400)
    assert (start - data.qvel[0]) / (data.time - t) == pytest.approx(0.18 * G, rel=0.02)


def test_cube_rests_on_its_side(cube):
    model, data = cube.model, mujoco.MjData(cube.model)
    mujoco.mj_step(model, data, nstep=3000)
    assert data.qpos[2] == pytest.approx(0.0524, abs=1e-3)
    assert np.abs(data.qvel).max() < 1e-4
