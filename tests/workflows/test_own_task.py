"""A user's own twin and task travel with dataset, policy and scenario, and are used from there without flags."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest

from tests.support.own_task import write_own_task
from twinloop.cli.main import main
from twinloop.core.assignment import Assignment
from twinloop.core.evaluation import Evaluation
from twinloop.core.extension import NotApprovedError, approve, split_mark
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.policies.folder import read_card
from twinloop.tasks.registry import TASKS
from twinloop.train.common_features import find_common_features

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A dataset with failures, a policy and a scenario, whose sources are gone."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWINLOOP_HOME", str(home / "settings"))
        folder = write_own_task(home / "own")
        patch.chdir(folder)
        (folder / "places.py").write_text("TARGET = (0.25, 0.015)\nRADIUS = 0.02\nSIDE = 0.02\n")  # some miss it
        for name in ("push.py", "places.py"):
            approve(folder / name)
        assert main(["generate", "generate.yaml", "--episodes", "24", "--keep", "all", "--output", "data"]) == 0
        (folder / "train.yaml").write_text("sources: [{data: data}]\npolicy: mlp\nsteps: 60\nkeep_failures: true\n")
        assert main(["train", "train.yaml", "--output", "policy"]) == 0
        for name in ("push.py", "places.py", "robot"):
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield folder


@pytest.fixture
def moved(made, tmp_path, monkeypatch):
    """A copy on a machine on which the code was not approved yet."""
    monkeypatch.setenv("TWINLOOP_HOME", str(tmp_path / "settings"))
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "moved"))
    return tmp_path / "moved"


def approve_sources(folder):
    for path in folder.rglob("*.py"):
        approve(path)


def test_a_policy_for_ones_own_task_is_evaluated_from_its_folder_alone(moved, capsys):
    assert main(["evaluate", "policy", "--episodes", "4"]) == 2
    message = capsys.readouterr().err
    assert "has not been approved on this machine" in message
    assert message.count(".py") == 3  # the task, and the command for it and for the file that it imports
    approve_sources(moved / "policy")
    assert main(["evaluate", "policy", "--episodes", "4", "--output", "tried"]) == 0
    kept = read_card("policy").assignment
    tried = Evaluation.read(moved / "tried")
    assert (tried.twin, tried.twin_hash, tried.task) == ("pusher", kept.twin_hash, kept.identity)
    assert kept.identity.startswith("push@")
    assert main(["compare", "policy", "expert", "--max-episodes", "4"]) == 0


def test_another_version_of_the_task_is_named(moved, capsys):
    approve_sources(moved)
    write_own_task(moved / "other")
    words = ["evaluate", "policy", "--task", "other/push.py:Push", "--episodes", "2", "--output", "tried"]
    assert main(words) == 0
    assert "policy was trained for another version of the task, push@" in capsys.readouterr().out
    assert Evaluation.read(moved / "tried").task != read_card("policy").assignment.identity


def test_a_failure_becomes_a_scenario_that_carries_its_task(moved, capsys):
    approve_sources(moved)
    reader = DatasetReader(moved / "data")
    twin = reader.spec.config["assignment"]["twin"]
    failed = next(i for i in range(len(reader)) if not reader.provenance(i).success)
    words = ["scenario", "from-failure", f"data:{failed}", "--name", "missed", "--scenarios", "kept", "--tries", "4"]
    assert main(words) in (0, 1)
    shutil.rmtree(moved / "data")
    capsys.readouterr()
    assert main(["scenario", "counterfactual", "missed", "--scenarios", "kept", "--change", "joint/*/damping*=0.5",
                 "--policy", "expert", "--tries", "2", "--json"]) == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["twin"] == twin
    assert main(["evaluate", "policy", "--suite", "failures", "--scenarios", "kept", "--episodes", "2"]) == 0
    assert main(["scenario", "augment", "missed", "--scenarios", "kept", "--episodes", "4", "--output", "more"]) == 0


def test_edited_datasets_keep_the_files_and_train_from_them(moved):
    approve_sources(moved)
    assert main(["edit", "select", "data", "--episodes", "0:6", "--output", "few"]) == 0
    assert main(["edit", "merge", "few", "data", "--twice", "first", "--output", "all"]) == 0
    shutil.rmtree(moved / "data")
    sources = {path.name for path in (moved / "all" / "twinloop" / "sources").rglob("*.*")}
    assert sources == {"pusher.xml", "pusher.yaml", "push.py", "places.py"}
    (moved / "train.yaml").write_text("sources: [{data: all}]\npolicy: mlp\nsteps: 5\nkeep_failures: true\n")
    assert main(["train", "train.yaml", "--output", "again"]) == 0
    assert read_card("again").assignment == read_card("policy").assignment


WORLD = """
import mujoco
from twinloop.hardware import OwnRobot

class World(OwnRobot):
    joints, unit, tracked, name = ("slide_x", "slide_y"), "m", ("puck.x", "puck.y"), "pusher"

    def __init__(self, model):
        self.model = mujoco.MjModel.from_xml_path(model)

    def reset(self, episode):
        self.data = mujoco.MjData(self.model)
        self.data.qpos[:] = [0, 0, 0.1, 0.005 * (episode % 3 - 1), 0.021, 1, 0, 0, 0]
        mujoco.mj_forward(self.model, self.data)

    def step(self, command, dt):
        self.data.ctrl[:] = command
        end = self.data.time + dt
        while self.data.time < end - 1e-9:
            mujoco.mj_step(self.model, self.data)

    def read(self):
        return self.data.qpos[:2]

    def track(self):
        return self.data.qpos[2:4]

    def success(self):
        return None if self.data.time < 1.0 else bool(self.data.qpos[2] > 0.2)
"""


def test_the_policy_runs_in_ones_own_simulator(moved, capsys):
    approve_sources(moved)
    (moved / "world.py").write_text(WORLD)
    model = next((moved / "policy" / "sources").rglob("pusher.xml"))
    address = f"world.py:World?model={model}"
    assert main(["robot", "check", address]) == 0
    words = ["run", "--robot", address, "--policy", "policy", "--episodes", "2", "--first", "4", "--seconds", "2.5"]
    assert main([*words, "--output", "driven"]) == 0
    reader = DatasetReader(moved / "driven")
    tracked = "observation.environment_state"
    starts = [reader.frames_table(i, [tracked])[tracked][0].as_py()[1] for i in range(2)]
    assert starts == pytest.approx([0.0, 0.005])  # episodes 4 and 5
    assert [reader.provenance(i).success for i in range(2)] == [True, True]
    assert "speed 200 mm/s, acceleration " in capsys.readouterr().out


def test_a_dataset_of_an_earlier_version_still_gives_the_kind_of_commands_and_the_name_of_a_task(moved):
    (moved / "other").mkdir()
    twin = write_own_task(moved / "other" / "own") / "robot" / "pusher.yaml"
    twin.write_text(twin.read_text().replace("units: [m, m],", "units: [m, m], control: velocity,"))
    file = moved / "data" / "twinloop" / "dataset.json"
    spec = json.loads(file.read_text())
    del spec["config"]["assignment"]
    spec["config"]["generate"] |= {"twin": str(twin), "task": "pick_and_place"}
    file.write_text(json.dumps(spec))
    readers = {moved / "data": DatasetReader(moved / "data")}
    source = SimpleNamespace(config=SimpleNamespace(units=None), episodes=[SimpleNamespace(folder=moved / "data")])
    found = find_common_features([source], readers, inputs=None)
    assert (found.contract.command, found.contract.task, found.assignment) == ("velocity", "pick_and_place", None)


def test_without_policy_or_workspace_twin_and_task_must_be_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "expert"]) == 2
    assert "No twin is named here" in capsys.readouterr().err
    assert main(["evaluate", "expert", "--twin", "so101_tabletop"]) == 2
    assert "No task is named here" in capsys.readouterr().err


def test_an_outcome_that_the_simulator_does_not_know_is_not_a_failure(moved, capsys):
    approve_sources(moved)
    (moved / "world.py").write_text(WORLD.replace("return None if self.data.time < 1.0 else", "return None #"))
    model = next((moved / "policy" / "sources").rglob("pusher.xml"))
    words = ["run", "--robot", f"world.py:World?model={model}", "--policy", "policy", "--episodes", "1"]
    assert main([*words, "--seconds", "0.5", "--output", "driven", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["judged"], result["successes"]) == (0, 0)
    assert DatasetReader(moved / "driven").provenance(0).success is None
    shutil.rmtree(moved / "policy")  # the recording keeps its twin and task
    assert main(["scenario", "from-failure", "driven:0", "--name", "kept", "--tries", "2", "--json"]) in (0, 1)
    names = re.findall(
        "^t(?:win|ask): sources/.*/(.*)$", (moved / "scenarios/kept/scenario.yaml").read_text(), re.MULTILINE
    )
    assert names == ["pusher.yaml", "push.py:Push"]


def test_a_kept_task_is_marked_as_foreign_wherever_its_folder_is(tmp_path):
    (tmp_path / "sources" / "1").mkdir(parents=True)
    (tmp_path / "sources" / "1" / "push.py").write_text("class Push: pass")
    kept = Assignment(twin="so101_tabletop", twin_hash="t", task="sources/1/push.py:Push", task_name="push")
    twin, task = kept.references(tmp_path)
    assert (twin, split_mark(task)[1]) == ("so101_tabletop", str(tmp_path))
    with pytest.raises(NotApprovedError, match=r"push\.py"):
        TASKS.find(task)


@pytest.mark.parametrize("key", ["twin", "task"])
def test_a_path_out_of_the_folder_is_refused(moved, key, capsys):
    approve_sources(moved)
    config = json.loads((moved / "policy" / "config.json").read_text())
    config["card"]["assignment"][key] = {"twin": "../data/meta/info.json", "task": "sources/../../x.py:Push"}[key]
    (moved / "policy" / "config.json").write_text(json.dumps(config))
    (moved / "x.py").write_text("raise SystemExit")
    assert main(["evaluate", "policy", "--episodes", "2"]) == 2
    assert "which is not in its sources" in capsys.readouterr().err


def test_a_policy_names_the_objects_that_it_sees(moved, tmp_path, capsys):
    shutil.copytree(moved / "data", tmp_path / "seen")
    info = tmp_path / "seen/meta/info.json"
    value = json.loads(info.read_text())
    value["features"]["observation.environment_state"]["names"] = ["tool.x", "puck.y"]
    info.write_text(json.dumps(value))
    episodes = [SimpleNamespace(folder=tmp_path / "seen")]
    source = SimpleNamespace(config=SimpleNamespace(units=None), episodes=episodes)
    readers = {tmp_path / "seen": DatasetReader(tmp_path / "seen")}
    seen = {
        inputs: find_common_features([source], readers, inputs=inputs).contract.environment
        for inputs in (("environment/puck",), ("environment/puck", "environment/tool"), ("environment",))
    }
    assert list(seen.values()) == [("puck.y",), ("tool.x", "puck.y"), ("tool.x", "puck.y")]
    (moved / "train.yaml").write_text(
        "sources: [{data: data}]\npolicy: mlp\nsteps: 2\nkeep_failures: true\ninputs: [state, environment/cube]\n"
    )
    assert main(["train", "train.yaml", "--output", "blind"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "Unknown object 'cube'" in message
    assert "puck" in message
