"""The array kinematics agrees with MuJoCo's, world by world, and a world does not see its neighbours."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.core.seeds import uniforms
from twinloop.tasks.hand import GripperHand
from twinloop.tasks.kinematics import Chain
from twinloop.tasks.reaching import GraspFrame, joint_step, tool_error
from twinloop.twin import load_twin

ARMS = ["so101_tabletop", "panda_tabletop"]
MIXED = """
<mujoco><worldbody><body name="rail" pos=".1 .2 .3" euler="20 10 30">
  <joint name="slide" type="slide" axis="0 1 1" range="-1 1"/><geom size=".02" mass="2" pos=".1 0 .02"/>
  <body name="link" pos=".3 0 .1" euler="0 40 0" gravcomp="0.25">
    <joint name="turn" axis="1 1 0" pos=".02 0 .01" ref="0.3"/><joint name="more" axis="0 0 1"/>
    <geom size=".03" mass="1" pos=".1 .1 0"/><body pos=".05 0 0"><geom size=".01" mass=".5" pos="0 .2 .1"/></body>
    <site name="tool" pos=".2 .1 -.1" euler="10 20 30"/>
  </body></body></worldbody></mujoco>
"""


def chain_of(name):
    twin = load_twin(name)
    return twin.model, Chain(twin.model, twin.robot.tcp, twin.home()[0]), twin.home()[0]


def mixed_chain():
    model = mujoco.MjModel.from_xml_string(MIXED)
    return model, Chain(model, "tool", model.qpos0), model.qpos0


def some_positions(chain, nworld):
    low, high = np.clip(chain.limits, -2.0, 2.0).T
    return low + (high - low) * uniforms(5, "q", range(nworld), size=chain.njoint)


CASES = [*ARMS, "mixed"]


@pytest.fixture(params=CASES)
def case(request):
    return mixed_chain() if request.param == "mixed" else chain_of(request.param)


def test_pose_jacobian_and_gravity_are_mujocos(case):
    model, chain, reference = case
    site = next(i for i in range(model.nsite) if model.site(i).name in {"tcp", "tool"})
    positions = some_positions(chain, 16)
    pose = chain.pose(positions)
    jacobian, gravity = chain.jacobian(pose), chain.gravity_torques(pose)
    data = mujoco.MjData(model)
    linear, angular = np.zeros((3, model.nv)), np.zeros((3, model.nv))
    for world, q in enumerate(positions):
        data.qpos[:] = reference
        data.qpos[chain.qpos] = q
        mujoco.mj_forward(model, data)
        mujoco.mj_jacSite(model, data, linear, angular, site)
        np.testing.assert_allclose(pose.position[world], data.site_xpos[site], atol=1e-12)
        columns = np.stack([column[world] for column in pose.columns], axis=1)
        np.testing.assert_allclose(columns, data.site_xmat[site].reshape(3, 3), atol=1e-12)
        np.testing.assert_allclose(jacobian[world], np.concatenate([linear, angular])[:, chain.dof], atol=1e-12)
        held = (data.qfrc_bias - data.qfrc_gravcomp)[chain.dof]
        np.testing.assert_allclose(gravity[world], held, atol=1e-10)


def test_a_world_is_the_same_alone_and_in_any_company(case):
    _, chain, _ = case
    positions = some_positions(chain, 37)
    together = chain.pose(positions)
    for world in (0, 3, 36):
        alone = chain.pose(positions[world : world + 1])
        np.testing.assert_array_equal(alone.position[0], together.position[world])
        np.testing.assert_array_equal(chain.jacobian(alone)[0], chain.jacobian(together)[world])
        np.testing.assert_array_equal(chain.gravity_torques(alone)[0], chain.gravity_torques(together)[world])


@pytest.mark.parametrize("name", ARMS)
def test_joint_steps_bring_the_hand_where_it_is_asked(name):
    twin = load_twin(name)
    _, chain, home = chain_of(name)
    section = twin.spec.task["pick_and_place"]
    low, high = section["grasp_height"], section["lift_height"]
    frame = GraspFrame(chain, GripperHand.of(twin), home, tilt=section["approach_tilt"], heights=(low, high))
    u = uniforms(1, "goals", range(64), size=4)
    box = np.array([section["x"], section["y"], (low, high)])
    goal = box[:, 0] + (box[:, 1] - box[:, 0]) * u[:, :3]
    turn = frame.alignment_turn(goal, np.pi * (u[:, 3] - 0.5), np.pi / 2)
    assert np.abs(turn).max() <= np.pi / 4 + 1e-12
    columns = frame.tool_axes(goal, turn)
    q = np.tile(home[chain.qpos], (64, 1))
    for _ in range(120):
        pose = chain.pose(q)
        step = joint_step(chain.jacobian(pose), tool_error(pose, goal, columns), home[chain.qpos] - q)
        q = np.clip(q + np.clip(step, -0.1, 0.1), *chain.limits.T)
    error = np.abs(tool_error(chain.pose(q), goal, columns))
    assert error[:, :3].max() < 1e-3
    assert error[:, 3:].max() < 0.05


@pytest.mark.parametrize("name", ARMS)
def test_grasp_axes_are_a_rotation_that_opens_along_the_objects_side(name):
    twin = load_twin(name)
    _, chain, home = chain_of(name)
    hand = GripperHand.of(twin)
    frame = GraspFrame(chain, hand, home, tilt=0.3, heights=(0.0, 0.1))
    goal = np.array([[0.3, 0.1, 0.0], [0.3, -0.1, 0.05], [0.4, 0.0, 0.2]])
    yaw = np.array([0.2, -1.0, 0.7])
    columns = np.stack(frame.tool_axes(goal, frame.alignment_turn(goal, yaw, np.pi / 2)), axis=2)
    np.testing.assert_allclose(columns.swapaxes(1, 2) @ columns, np.tile(np.eye(3), (3, 1, 1)), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(columns), 1.0)
    opening = hand.opening[1] * columns[0, :, hand.opening[0]]
    assert abs(np.sin(2 * (np.arctan2(opening[1], opening[0]) - yaw[0]))) < 1e-12
    approach = hand.approach[1] * columns[:, :, hand.approach[0]]
    np.testing.assert_allclose(np.arccos(-approach[:, 2]), [0.0, 0.15, 0.3], atol=1e-7)


def test_a_hand_is_read_from_the_model():
    so101, panda = (GripperHand.of(load_twin(name)) for name in ARMS)
    assert (so101.approach, so101.opening, so101.one_sided) == ((0, 1.0), (2, 1.0), True)
    assert (panda.approach, panda.opening, panda.one_sided) == ((2, 1.0), (1, 1.0), False)
    assert panda.tip == pytest.approx(0.0584 + 0.041 + 0.013 - 0.1034, abs=1e-9)


def test_a_site_without_a_serial_arm_is_refused():
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><site name="still"/><body name="b"><freejoint name="loose"/><geom size="1"/>'
        '<site name="free"/></body></worldbody></mujoco>'
    )
    with pytest.raises(InputError, match="'still' has no joint; an arm of hinge and slide joints is expected"):
        Chain(model, "still", model.qpos0)
    with pytest.raises(InputError, match="'free' passes the ball or free joint 'loose'"):
        Chain(model, "free", model.qpos0)
