"""The Panda twin against the maker's tables."""

import mujoco
import numpy as np
import pytest

from twinloop.twin import load_twin

# Craig's Denavit-Hartenberg rows (a, d, alpha) of joints 1 to 7 and the flange: the maker's documentation.
DH = [
    (0.0, 0.333, 0.0),
    (0.0, 0.0, -np.pi / 2),
    (0.0, 0.316, np.pi / 2),
    (0.0825, 0.0, np.pi / 2),
    (-0.0825, 0.384, -np.pi / 2),
    (0.0, 0.0, np.pi / 2),
    (0.088, 0.0, np.pi / 2),
    (0.0, 0.107, 0.0),
]
ARM = slice(0, 7)


@pytest.fixture(scope="module")
def twin():
    return load_twin("panda_tabletop")


def flange(q):
    pose = np.eye(4)
    for (a, d, alpha), angle in zip(DH, [*q, 0.0], strict=True):
        ca, sa, ct, st = np.cos(alpha), np.sin(alpha), np.cos(angle), np.sin(angle)
        pose = pose @ np.array(
            [[ct, -st, 0, a], [st * ca, ct * ca, -sa, -d * sa], [st * sa, ct * sa, ca, d * ca], [0, 0, 0, 1]]
        )
    return pose


def test_forward_kinematics_is_the_makers(twin):
    random = np.random.default_rng(3)
    data = mujoco.MjData(twin.model)
    for _ in range(20):
        low, high = twin.joint_ranges[ARM].T
        q = random.uniform(low, high)
        data.qpos[twin.joint_qpos[ARM]] = q
        mujoco.mj_kinematics(twin.model, data)
        expected = flange(q)
        assert data.body("hand").xpos == pytest.approx(expected[:3, 3], abs=1e-9)
        turned = expected[:3, :3] @ [[np.sqrt(0.5), np.sqrt(0.5), 0], [-np.sqrt(0.5), np.sqrt(0.5), 0], [0, 0, 1]]
        assert data.body("hand").xmat.reshape(3, 3) == pytest.approx(turned, abs=1e-9)


def test_masses_limits_and_ranges(twin):
    model = twin.model
    links = [f"link{i}" for i in range(1, 8)]
    masses = [4.970684, 0.646926, 3.228604, 3.587895, 1.225946, 1.666555, 0.735522]
    assert [model.body(name).mass[0] for name in links] == pytest.approx(masses)
    assert model.actuator_forcerange[ARM, 1] == pytest.approx([87.0] * 4 + [12.0] * 3)
    assert twin.joint_ranges[3] == pytest.approx([-3.0718, -0.0698])
    assert twin.joint_ranges[5] == pytest.approx([-0.0175, 3.7525])


def test_arm_holds_its_pose_against_gravity_at_home(twin):
    model, data = twin.model, mujoco.MjData(twin.model)
    data.qpos[:], data.ctrl[:] = twin.home()
    mujoco.mj_step(model, data, nstep=500)
    moved = data.qpos[twin.joint_qpos[ARM]] - twin.home()[0][twin.joint_qpos[ARM]]
    assert np.abs(moved).max() < 1e-4


def test_fingers_move_together_and_share_the_force(twin):
    model, data = twin.model, mujoco.MjData(twin.model)
    data.qpos[:], data.ctrl[:] = twin.home()
    data.ctrl[-1] = 0.02
    mujoco.mj_step(model, data, nstep=1000)
    fingers = [data.joint(name).qpos[0] for name in ("finger_joint1", "finger_joint2")]
    assert fingers == pytest.approx([0.02, 0.02], abs=3e-4)
