"""The library's hand with a cube: its model is that of the package, and it holds its home pose and the cube."""

from __future__ import annotations

from importlib.util import find_spec

import mujoco
import numpy as np
import pytest

from twinloop.checks import run_checks
from twinloop.checks.task import StillActor, draw_worlds
from twinloop.rollout.episodes import run_batch
from twinloop.tasks import open_task
from twinloop.twin import load_twin

PACKAGE = "package:gymnasium_robotics/envs/assets/hand/manipulate_block.xml"
pytestmark = pytest.mark.skipif(find_spec("gymnasium_robotics") is None, reason="the package is not installed")


@pytest.fixture(scope="module")
def twin():
    return load_twin("shadow_cube")


def test_the_hand_is_the_packages_hand(twin):
    model, theirs = twin.model, load_twin(PACKAGE).model
    joints = [theirs.joint(i).name for i in range(theirs.njnt) if theirs.joint(i).name.startswith("robot0:")]
    assert len(joints) == 24
    for part, names in (("joint", joints), ("actuator", twin.robot.actuators)):
        fields = (
            ("range", "damping", "armature") if part == "joint" else ("gainprm", "biasprm", "forcerange", "ctrlrange")
        )
        for name in names:
            for field in fields:
                ours, their = (getattr(getattr(one, part)(name), field) for one in (model, theirs))
                np.testing.assert_array_equal(ours, their, err_msg=f"{name}: {field}")
    cube, block = (one.body(name) for one, name in ((model, "cube"), (theirs, "object")))
    assert cube.mass[0] == pytest.approx(block.mass[0], rel=1e-3)
    assert "object" not in {model.body(i).name for i in range(model.nbody)}


def test_the_hand_holds_its_home_pose_and_couples_the_last_joints(twin):
    model, data = twin.model, mujoco.MjData(twin.model)
    data.qpos[:], data.ctrl[:] = twin.home()
    mujoco.mj_step(model, data, nstep=round(2.0 / twin.dt))
    hand = slice(7, None)
    assert np.abs(data.qpos - twin.home()[0])[hand].max() < 0.06  # the weight of the cube bends the fingers
    for finger in ("FF", "MF", "RF", "LF"):
        tendon = model.tendon(f"robot0:T_{finger}J1c")
        assert abs(data.ten_length[tendon.id]) < 1.1e-3  # m; the tendon allows 1 mm


def test_the_cube_stays_in_a_hand_that_does_nothing(twin):
    task, numbers = open_task("turn_cube", twin), range(16)
    made = run_batch(
        twin, task, draw_worlds(twin, "default", numbers, 5), run_seed=5, episodes=numbers, actor=StillActor()
    )
    assert not task.dropped(made.trajectories.states).any()


def test_every_parameter_has_a_source(twin):
    assert all(param.source for param in twin.params.values())
    for name in ("object/cube/size", "joint/robot0:FFJ0/damping", "actuator/robot0:A_THJ0/kp", "link/robot0:palm/mass"):
        assert twin.params[name].default_range is not None


@pytest.mark.slow
def test_the_checks_of_the_twin_pass(twin):
    report = run_checks(twin)
    assert report.passed, [check for check in report.checks if check.status == "fail"]
