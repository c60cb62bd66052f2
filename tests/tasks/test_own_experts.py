"""Inverse kinematics and waypoint experts serve any arm, and a user's push expert is short."""

import inspect
import textwrap
from pathlib import Path

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.ur_arm import write_ur_arm
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.extension import load_class
from twinloop.randomize import Plan, default_draws
from twinloop.simulate import open_backend, rollout
from twinloop.tasks import BearingFrame, GraspFromAbove, OwnTask, Waypoint, WaypointExpert, open_task
from twinloop.tasks.arm import Arm
from twinloop.tasks.inverse_kinematics import solve_reach
from twinloop.tasks.predicates import in_disc
from twinloop.tasks.protocol import has_labels
from twinloop.twin import load_twin

PUSH = "examples/own_task/push.py:Push"


@pytest.fixture(scope="module")
def ur_arm(tmp_path_factory):
    return load_twin(write_ur_arm(tmp_path_factory.mktemp("ur")))


@pytest.fixture(scope="module", params=["so101_tabletop", "panda_tabletop", "ur_arm"])
def arm(request, ur_arm):
    return Arm(ur_arm if request.param == "ur_arm" else load_twin(request.param))


def reachable(arm, count=16):
    """Poses of random joint positions within the limits, around home."""
    chain = arm.chain
    home = arm.home[chain.qpos]
    low, high = np.clip(chain.limits, home[:, None] - 0.8, home[:, None] + 0.8).T
    return chain.pose(low + np.random.default_rng(3).uniform(size=(count, chain.njoint)) * (high - low))


def engine_tool(arm, q):
    """Positions and rotations of the tool by MuJoCo's own kinematics."""
    model, data, found = arm.twin.model, mujoco.MjData(arm.twin.model), []
    for row in q:
        data.qpos[:] = arm.home
        data.qpos[arm.chain.qpos] = row
        mujoco.mj_kinematics(model, data)
        site = data.site(arm.twin.robot.tcp)
        found.append((site.xpos.copy(), site.xmat.reshape(3, 3).copy()))
    return map(np.array, zip(*found, strict=True))


def test_solved_poses_are_those_of_the_engine_and_within_the_limits(arm):
    goal = reachable(arm)
    found = solve_reach(arm.chain, arm.home[arm.chain.qpos], goal.position, goal.columns)
    position, rotation = engine_tool(arm, found.q)
    assert found.reached(1e-3, 0.01).all()
    np.testing.assert_allclose(np.linalg.norm(position - goal.position, axis=1), found.position_error, atol=1e-9)
    np.testing.assert_allclose(rotation, np.stack(goal.columns, axis=-1), atol=0.012)
    low, high = arm.chain.limits.T
    assert ((found.q >= low) & (found.q <= high)).all()


def test_an_arm_of_five_joints_reaches_a_position_whose_pose_it_cannot_have():
    arm = Arm(load_twin("so101_tabletop"))
    chain, home = arm.chain, arm.home[arm.chain.qpos]
    pose = chain.pose(home[None])
    x, y, z = pose.columns
    leaning = (np.cos(0.5) * x + np.sin(0.5) * y, np.cos(0.5) * y - np.sin(0.5) * x, z)  # sideways: five joints cannot
    found = solve_reach(chain, home, pose.position, leaning)
    assert found.position_error[0] < 2e-3
    assert found.rotation_error[0] > 0.2
    free = solve_reach(chain, home, pose.position + np.array([0.0, 0.05, 0.02]))
    assert free.reached(2e-4).all()
    assert not solve_reach(chain, home, np.array([[2.0, 0.0, 0.2]])).reached(1.0).any()  # out of reach


@settings(max_examples=20, deadline=None)
@given(st.floats(-2.5, 2.5), st.floats(0.05, 0.5), st.floats(-1.0, 1.0))
def test_a_bearing_frame_keeps_the_tool_upright_and_turns_it_with_the_arm(angle, reach, turn):
    arm = Arm(load_twin("so101_tabletop"))
    frame, home = BearingFrame(arm.chain, arm.home), arm.chain.pose(arm.home[None, arm.chain.qpos])
    base = home.anchors[0, 0]
    bearing = np.arctan2(*(home.position[0] - base)[1::-1])
    point = base + np.array([reach * np.cos(bearing + angle), reach * np.sin(bearing + angle), 0.1])
    rotation = np.stack([axis[0] for axis in frame.tool_axes(point[None], np.array([turn]))], axis=1)
    change = rotation @ np.stack([axis[0] for axis in home.columns], axis=1).T
    c, s = np.cos(angle + turn), np.sin(angle + turn)
    np.testing.assert_allclose(change, [[c, -s, 0], [s, c, 0], [0, 0, 1]], atol=1e-9)


def worlds(twin, task, kind, count, seed=0):
    draws = [d for d in default_draws(twin) if kind == "default" or twin.params[d.names[0]].quantity.stage == "reset"]
    params = Plan(twin=twin, run_seed=seed, draws=tuple(draws)).draw(range(count))
    return params, task.reset(params, run_seed=seed, episodes=range(count))


def run(twin, task, kind, count, seed=0):
    params, initial = worlds(twin, task, kind, count, seed)
    return rollout(open_backend("threads"), twin, params, initial, task.expert(initial), task.nstep)


def test_waypoints_are_reached_in_order_by_an_arm_of_six_joints(ur_arm):
    task = type("Touch", (OwnTask,), {"seconds": 4.0})(ur_arm)
    params, initial = worlds(ur_arm, task, "nominal", 3)
    goals = np.array([[0.5, 0.2, 0.2], [0.4, -0.2, 0.3]])
    expert = WaypointExpert(task.arm, initial, [Waypoint(name=str(i), position=goal) for i, goal in enumerate(goals)])
    made = rollout(open_backend("threads"), ur_arm, params, initial, expert, task.nstep)
    distance = np.linalg.norm(task.position(made.states, "tool")[:, :, None] - goals, axis=-1)
    assert (distance.min(axis=1) < 0.005).all()
    assert (distance.argmin(axis=1)[:, 0] < distance.argmin(axis=1)[:, 1]).all()
    assert (distance[:, -1, 1] < 0.003).all()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            {"position": lambda now: now.tool[:, :2]},
            r"position of .* 'up' has the shape \(3, 2\), but needs \(3, 3\)",
        ),
        (
            {"turn": lambda now: now.turn[:, None]},
            r"turn of .* 'up' has the shape \(3, 1\), but needs \(3,\)",
        ),
        ({"position": [0.1, 0.2]}, r"has the shape \(2,\), but needs \(3, 3\)"),
        ({"position": lambda now: now.tool + np.zeros(7)}, r"'up' cannot be computed: operands.*now.tool \(3, 3\)"),
    ],
)
def test_a_goal_of_a_wrong_shape_is_an_error_that_names_the_waypoint(ur_arm, wrong, words):
    task = OwnTask(ur_arm)
    params, initial = worlds(ur_arm, task, "nominal", 3)
    expert = WaypointExpert(task.arm, initial, [Waypoint(name="up", **wrong)])
    with pytest.raises(InputError, match=words):
        rollout(open_backend("threads"), ur_arm, params, initial, expert, 1)


def test_a_function_gives_one_row_per_world_or_one_for_all(ur_arm):
    task = OwnTask(ur_arm)
    params, initial = worlds(ur_arm, task, "nominal", 2)
    alike = [lambda now: now.tool + np.array([0, 0, 0.05]), lambda now: now.tool[0] + np.array([0, 0, 0.05])]
    experts = [WaypointExpert(task.arm, initial, [Waypoint(name="up", position=goal)]) for goal in alike]
    each, first = (rollout(open_backend("threads"), ur_arm, params, initial, expert, 5).states for expert in experts)
    np.testing.assert_array_equal(each[0], first[0])


def test_an_expert_needs_waypoints_and_a_body_must_exist(ur_arm):
    task = OwnTask(ur_arm)
    _, initial = worlds(ur_arm, task, "nominal", 1)
    with pytest.raises(InputError, match="one waypoint or more"):
        WaypointExpert(task.arm, initial, [])
    with pytest.raises(UnknownNameError, match="cube, target"):
        task.start(initial, "puck")


def test_a_push_expert_has_at_most_30_lines():
    source = inspect.getsource(load_class("task", PUSH, []))
    assert len([line for line in source.splitlines() if line.strip()]) <= 30


def ur_push():
    push = load_class("task", PUSH, [])
    return type("UrPush", (push,), {"behind": 0.09, "touch": 0.042, "low": 0.02, "high": 0.10, "jaws": 0.0})


def test_the_guide_shows_the_push_expert_as_it_is():
    expert = textwrap.dedent(inspect.getsource(load_class("task", PUSH, []).expert))
    assert expert in Path("docs/guides/own_tasks.md").read_text(encoding="utf-8")


def test_the_push_expert_pushes_with_both_arms(ur_arm):
    so101 = load_twin("so101_tabletop")
    for twin, task in ((so101, open_task(PUSH, so101)), (ur_arm, ur_push()(ur_arm))):
        made = run(twin, task, "nominal", 2)
        assert task.success(made.states)[:, -1].all()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least"), [("nominal", 0.95), ("default", 0.85)])
def test_the_push_expert_succeeds_in_most_worlds(ur_arm, kind, least):
    so101 = load_twin("so101_tabletop")
    for twin, task in ((so101, open_task(PUSH, so101)), (ur_arm, ur_push()(ur_arm))):
        assert task.success(run(twin, task, kind, 128, seed=7).states)[:, -1].mean() >= least


def test_rules_are_an_expert_without_memory(so101_rules):
    made = run(so101_rules.twin, so101_rules, "nominal", 4)
    assert so101_rules.success(made.states)[:, -1].all()
    assert has_labels(so101_rules)
    assert not has_labels(open_task(PUSH, so101_rules.twin))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least"), [("nominal", 0.98), ("default", 0.95)])
def test_rules_succeed_in_most_worlds(so101_rules, kind, least):
    made = run(so101_rules.twin, so101_rules, kind, 128, seed=7)
    assert so101_rules.success(made.states)[:, -1].mean() >= least


@pytest.fixture(scope="module")
def so101_rules():
    return open_task("examples/own_task/push_by_rules.py:PushByRules", load_twin("so101_tabletop"))


def test_a_grasp_from_above_serves_a_task_of_ones_own():
    class Lift(OwnTask):
        seconds = 4.0

        def success(self, states):
            return self.position(states, "cube")[..., 2] > 0.05

        def expert(self, initial):
            grasp = GraspFromAbove(
                self.arm, self.hand, self.objects["cube"], initial,
                target=self.start(initial, "target"), grasp_height=0.018, lift_height=0.08, tilt=0.2,
            )  # fmt: skip
            return WaypointExpert(self.arm, initial, grasp.pick(), frame=grasp.frame)

    twin = load_twin("so101_tabletop")
    task = Lift(twin)
    made = run(twin, task, "nominal", 4)
    assert task.success(made.states)[:, -1].all()
    assert (task.name, task.version, task.success_version) == ("lift", "lift/1", "lift.success/1")
    state = made.states[0, -1]
    tracked = dict(zip(task.environment_names, task.environment(state), strict=True))
    cube = task.objects["cube"].qpos
    qpos = state[1 : 1 + twin.model.nq]
    assert tracked["cube.z"] == qpos[cube + 2]
    w, z = qpos[cube + 3], qpos[cube + 6]
    assert tracked["cube.heading.cos"] == pytest.approx(w * w - z * z, abs=0.05)
    assert np.isnan(task.position(np.full_like(state, np.nan), "tool")).all()
    assert in_disc(task.position(state, "cube"), np.array([tracked["tool.x"], tracked["tool.y"], 0.0]), 0.02)
