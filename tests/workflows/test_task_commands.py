"""``twinloop tasks`` writes a task that runs, and refuses a task that breaks a rule of the protocol."""

import json

import numpy as np
import pytest

from tests.support.ur_arm import MODEL
from twinloop.checks.task import check_task
from twinloop.cli.main import main
from twinloop.core.errors import CheckFailedError
from twinloop.rollout.episodes import run_batch
from twinloop.tasks import JointExpert, OwnTask
from twinloop.twin import load_twin


@pytest.mark.parametrize(
    ("twin", "seen"), [("so101_tabletop", "cube.x"), ("ur_arm.xml", "target.x"), ("simple_pendulum", "no object")]
)
def test_a_new_task_runs_for_any_robot(twin, seen, tmp_path, monkeypatch, capsys):
    """An arm with a tool and an object, a bare model without a tool, and a robot that takes torques."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ur_arm.xml").write_text(MODEL)
    monkeypatch.setattr("twinloop.workflows.task.tasks._NEW_EPISODES", 2)
    assert main(["tasks", "new", "my_task.py", "--twin", twin, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["task"] == "my_task.py:MyTask"
    assert found["expert"]["nominal"]["successes"] == 2
    assert seen in (found["environment"] or ["no object"])
    assert main(["tasks", "new", "my_task.py", "--twin", twin]) == 2
    assert "my_task.py exists" in capsys.readouterr().err
    assert main(["tasks", "check", "my_task.py:MyTask", "--twin", twin, "--episodes", "0"]) == 2


def test_a_robot_without_joints_gets_no_task(tmp_path, capsys):
    assert main(["tasks", "new", str(tmp_path / "fly.py"), "--twin", "crazyflie"]) == 2
    assert "has no robot" in capsys.readouterr().err
    assert not (tmp_path / "fly.py").exists()


class Rest(OwnTask):
    """Bring the joints to rest at home, in a tenth of a second."""

    seconds, joint_noise = 0.1, 0.1

    def success(self, states):
        return np.abs(self.joints(states)).max(axis=-1) < 0.5

    def expert(self, initial):
        return JointExpert(self.twin, initial, np.zeros(1), seconds=0.05)


@pytest.fixture(scope="module")
def pendulum():
    return load_twin("simple_pendulum")


def test_a_sound_task_passes_and_its_failures_are_counted(pendulum):
    assert [row.successes for row in check_task(Rest(pendulum), pendulum, episodes=3)] == [3, 3, 3, 2]
    never = type("Never", (Rest,), {"success": lambda self, states: Rest.success(self, states) & False})
    assert [row.successes for row in check_task(never(pendulum), pendulum, episodes=3)] == [0, 0, 0, 0]
    assert (never.name, never.version, type("PushCube", (OwnTask,), {}).name) == ("never", "never/1", "push_cube")


def mixed_reset(self, params, **draws):
    initial = Rest.reset(self, params, **draws)
    return initial if params.nworld == 1 else initial.take(np.roll(np.arange(params.nworld), 1))


@pytest.mark.parametrize(
    ("member", "broken", "message"),
    [
        ("reset", mixed_reset, "alone than with other worlds"),
        ("success", lambda self, states: Rest.success(self, states)[:, -1], "not a mask"),
        ("success", lambda self, states: Rest.success(self, states) & (len(states) > 1), "depends on the other worlds"),
        ("environment_names", ("tip.x",), "environment"),
        ("progress", lambda self, states: 2.0 * Rest.success(self, states), "progress"),
    ],
)
def test_a_broken_rule_is_named(pendulum, member, broken, message):
    with pytest.raises(CheckFailedError, match=message):
        list(check_task(type("Broken", (Rest,), {member: broken})(pendulum), pendulum, episodes=2))


def test_trials_are_given_as_soon_as_they_have_ended(pendulum):
    class Interrupted(Rest):
        def expert(self, initial):
            if self.tried:
                raise KeyboardInterrupt
            self.tried = True
            return super().expert(initial)

    task = Interrupted(pendulum)
    task.tried = False
    trials = check_task(task, pendulum, episodes=3)
    assert next(trials).kind == "nominal"
    with pytest.raises(KeyboardInterrupt):
        next(trials)


@pytest.mark.parametrize("name", ["double_pendulum", "simple_pendulum"])
def test_torques_move_joints_to_a_pose_against_gravity(name):
    twin = load_twin(name)
    task = type("Lift", (Rest,), {"seconds": 2.5, "expert": lambda self, initial: JointExpert(twin, initial, goal)})(
        twin
    )
    goal = np.full(len(twin.robot.joints), 0.3)
    made = run_batch(twin, task, twin.table(1), run_seed=0, episodes=[0])
    assert np.abs(task.joints(made.trajectories.states)[0, -1] - goal).max() < 0.1
