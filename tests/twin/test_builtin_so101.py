"""The SO-101 twin against the published table, the servo's equations, and what cameras must see."""

import copy
from itertools import pairwise

import mujoco
import numpy as np
import pytest

from twinloop.twin import load_twin

# World frame at q = 0: joint anchors in mm, axes, and the driven bodies' mass in kg, centre of mass in mm and inertia
# in 1e-6 kg.m^2 (xx, yy, zz, xy, xz, yz), computed from TheRobotStudio/SO-ARM100, Simulation/SO101/so101_new_calib.xml.
ANCHOR = np.array(
    [
        [38.84, 0, 62.40],
        [69.23, -18.28, 116.60],
        [97.23, -18.28, 229.17],
        [232.13, -18.28, 234.37],
        [293.23, -0.18, 234.37],
        [316.63, 17.62, 255.46],
    ]
)
AXIS = np.array([[0, 0, -1], [0, 1, 0], [0, 1, 0], [0, 1, 0], [-1, 0, 0], [0, -0.9988, -0.0487]])
MASS = np.array([0.100, 0.103, 0.104, 0.079, 0.087, 0.012])
COM = np.array(
    [
        [69.60, -0.02, 87.67],
        [77.62, 0.13, 206.45],
        [195.30, 0.01, 232.41],
        [270.75, 9.84, 234.47],
        [318.42, 0.06, 234.60],
        [346.66, -1.56, 252.95],
    ]
)
INERTIA = np.array(
    [
        [83.76, 81.04, 23.98, -0.08, -1.16, -0.15],
        [147.32, 142.49, 40.80, -0.01, -19.78, 0.04],
        [28.74, 145.29, 159.84, -1.26, -7.41, -0.05],
        [25.39, 21.00, 36.83, -3.64, 0.02, 0.05],
        [34.51, 43.36, 27.51, -0.23, 5.73, 0.44],
        [1.89, 5.29, 6.61, -0.13, 0.31, -0.06],
    ]
)
JOINTS = ["shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper"]

# Feetech STS3215 at 7.4 V, P = 16 (Rhoban/bam m1).
KT, R, VOLT, P_GAIN, DUTY = 1.2116, 2.676, 7.4, 16, 0.97
STALL = KT * VOLT / R


@pytest.fixture(scope="module")
def twin():
    return load_twin("so101_tabletop")


@pytest.fixture
def arm(twin):
    """Model and data of the arm at q = 0 with the cube far away."""
    data = mujoco.MjData(twin.model)
    data.qpos[twin.joint_qpos] = 0.0
    data.qpos[twin.model.joint("cube").qposadr[0]] = -0.3
    mujoco.mj_forward(twin.model, data)
    return twin.model, data


def expected_mass_matrix():
    """Joint-space inertia at q = 0 from the table alone: sum over bodies of Jv' m Jv + Jw' I Jw."""
    anchor, com, matrix = 1e-3 * ANCHOR, 1e-3 * COM, np.zeros((6, 6))
    for body in range(6):
        chain = np.arange(body + 1)
        linear, angular = np.zeros((3, 6)), np.zeros((3, 6))
        angular[:, chain] = AXIS[chain].T
        linear[:, chain] = np.cross(AXIS[chain], com[body] - anchor[chain]).T
        xx, yy, zz, xy, xz, yz = 1e-6 * INERTIA[body]
        inertia = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        matrix += MASS[body] * linear.T @ linear + angular.T @ inertia @ angular
    return matrix


def test_total_mass(twin):
    bodies = [body for body in range(twin.model.nbody) if twin.model.body(body).name not in {"world", "cube", "target"}]
    assert twin.model.body_mass[bodies].sum() == pytest.approx(0.632, abs=1e-9)


def test_joints_stand_where_the_table_says_with_its_axes(arm):
    _, data = arm
    for row, name in enumerate(JOINTS):
        assert data.joint(name).xanchor == pytest.approx(1e-3 * ANCHOR[row], abs=1e-9)
        assert data.joint(name).xaxis == pytest.approx(AXIS[row] / np.linalg.norm(AXIS[row]), abs=1e-9)


def test_link_lengths(arm):
    _, data = arm
    anchors = [data.joint(name).xanchor for name in JOINTS]
    lengths = [1e3 * np.linalg.norm(b - a) for a, b in pairwise(anchors)]
    assert lengths == pytest.approx([64.8, 116.0, 135.0, 63.7, 36.2], abs=0.06)


def test_mass_matrix_at_zero_is_that_of_the_table(twin, arm):
    model, data = arm
    full = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, full)
    rows = twin.joint_qvel
    measured = full[np.ix_(rows, rows)] - np.diag(model.dof_armature[rows])
    assert np.abs(measured - expected_mass_matrix()).max() < 1e-7


def test_gravity_torque_at_zero_is_that_of_the_table(twin, arm):
    _, data = arm
    expected = np.zeros(6)
    for joint in range(6):
        for body in range(joint, 6):
            arm_m = 1e-3 * (COM[body] - ANCHOR[joint])
            expected[joint] += AXIS[joint] @ np.cross(arm_m, [0, 0, 9.81 * MASS[body]])
    assert data.qfrc_bias[twin.joint_qvel] == pytest.approx(expected, abs=1e-6)


def test_servo_numbers_follow_from_the_motor(twin):
    model = twin.model
    assert model.actuator_gainprm[:, 0] == pytest.approx(STALL * 0.166 * P_GAIN, rel=1e-3)
    assert model.actuator_biasprm[:, 1] == pytest.approx(-model.actuator_gainprm[:, 0])
    assert model.actuator_biasprm[:, 2] == pytest.approx(0.0)
    assert model.actuator_forcerange[:5, 1] == pytest.approx(STALL * DUTY, rel=1e-3)
    assert model.actuator_forcerange[5, 1] == pytest.approx(0.5 * STALL, rel=1e-3)
    assert model.dof_damping[twin.joint_qvel] == pytest.approx(KT**2 / R + 0.0591, rel=1e-3)


def test_saturated_servo_runs_at_the_speed_where_back_emf_balances(twin, arm):
    """Duty 0.97 into the motor, minus viscous and Coulomb friction: the speed of the motor's own equation."""
    model, data = arm
    pan = model.joint("shoulder_pan")
    data.qpos[pan.qposadr[0]] = -1.9
    data.ctrl[:] = 0.0
    data.ctrl[0] = 1.9
    speed = []
    while data.qpos[pan.qposadr[0]] < 1.9 - 0.4:  # saturated until 20.9 deg before the goal
        mujoco.mj_step(model, data)
        speed.append(data.qvel[pan.dofadr[0]])
    expected = (DUTY * STALL - 0.0524) / (KT**2 / R + 0.0591)
    assert max(speed) == pytest.approx(expected, rel=0.02)
    assert max(speed) < VOLT / KT


def test_servo_sags_under_load_as_its_gain_says(twin, arm):
    """1.04 N.m on the elbow: 6.7 deg at P = 16 and 7.4 V, less what Coulomb friction carries."""
    model, data = copy.copy(arm[0]), arm[1]
    model.opt.gravity[:], data.ctrl[:] = 0.0, 0.0
    dof = model.joint("elbow_flex").dofadr[0]
    data.qfrc_applied[dof] = 1.04
    mujoco.mj_step(model, data, nstep=2000)
    sag = np.degrees(data.qpos[twin.joint_qpos[2]])
    assert sag == pytest.approx(6.7, abs=0.4)


def test_friction_of_the_object_rules_its_contacts(twin):
    table = twin.table(1, {"object/cube/friction/slide": 0.37})
    model = twin.mjspec.copy().compile()
    twin.fields(table).write_inplace(model, 0)
    data = mujoco.MjData(model)
    data.qpos[:] = twin.home()[0]
    data.qpos[2] -= 1e-5
    mujoco.mj_forward(model, data)
    assert data.ncon > 0
    assert {round(float(contact.friction[0]), 6) for contact in data.contact} == {0.37}


@pytest.mark.parametrize("name", ["so101_tabletop", "panda_tabletop"])
@pytest.mark.parametrize("camera", ["front", "wrist"])
def test_cameras_see_cube_target_and_gripper(name, camera):
    """Counted by casting the camera's rays, one per image element of 60 x 80."""
    twin = load_twin(name)
    model, data = twin.model, mujoco.MjData(twin.model)
    data.qpos[:] = twin.home()[0]
    mujoco.mj_forward(model, data)
    seen = geoms_seen(model, data, camera)
    assert seen.count("cube") >= 12  # of 4800
    assert seen.count("target") >= 12
    assert sum(name.startswith("finger") for name in seen) >= 12


def geoms_seen(model, data, camera, height=60, width=80):
    half = np.tan(np.radians(model.camera(camera).fovy[0]) / 2)
    v, u = np.meshgrid(
        np.linspace(half, -half, height), np.linspace(-half, half, width) * width / height, indexing="ij"
    )
    directions = np.stack([u, v, -np.ones_like(u)], axis=-1).reshape(-1, 3)
    directions = directions @ data.camera(camera).xmat.reshape(3, 3).T
    origin = data.camera(camera).xpos
    geom, names = np.zeros(1, dtype=np.int32), []
    for direction in directions:
        mujoco.mj_ray(model, data, origin, direction / np.linalg.norm(direction), None, True, -1, geom, None)
        names.append(model.geom(int(geom[0])).name if geom[0] >= 0 else "")
    return names
