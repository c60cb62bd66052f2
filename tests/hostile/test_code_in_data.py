"""Code that data name does not run: no verb imports a file that came with a dataset, a scenario or a YAML file."""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from _sent import GENERATE, make_workspace, send_dataset, send_scenario, write_code

from twinloop.cli.main import TWINLOOP, main
from twinloop.core import extension as approval
from twinloop.core.errors import TwinloopError
from twinloop.core.extension import (
    NotApprovedError,
    approve,
    is_in_data_folder,
    load_class,
    mark_references,
    read_approvals,
    revoke,
    split_mark,
)
from twinloop.core.files import sha256_file
from twinloop.studio.data import open_folder
from twinloop.studio.episode import describe_episode, read_signals
from twinloop.studio.scene import describe_scene, read_poses
from twinloop.studio.twin_replay import replay_in_twin

NOT_RUN = "the file does not run"
VERBS = {command.name for command in TWINLOOP.commands}


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    """Isolate the approvals of each test, and clear the command line of the previous test."""
    monkeypatch.setenv(approval.HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.setattr(approval, "_command_line", ())
    return tmp_path / "home"


@pytest.fixture(scope="module", name="template")
def workspace_template(tmp_path_factory):
    return make_workspace(tmp_path_factory.mktemp("template") / "cell").parent


@pytest.fixture(name="cell")
def workspace(template, tmp_path, monkeypatch):
    root = shutil.copytree(template, tmp_path / "place") / "cell"
    approve(root)  # as `twinloop init` does for a workspace that it makes
    monkeypatch.chdir(root)
    return root


@pytest.fixture(name="sentinel")
def sentinel_file(tmp_path):
    return tmp_path / "ran"


def run(capsys, *words: object) -> tuple[int, str]:
    """Run a command; its exit code and everything that it printed."""
    try:
        code = main([str(word) for word in words])
    except SystemExit as end:
        code = int(end.code or 0)
    out = capsys.readouterr()
    assert "Traceback" not in out.err + out.out
    return code, out.out + out.err


def commands(dataset: Path, output: Path) -> dict[str, list[list[object]]]:
    """Return, for every verb, command lines that give it a dataset, or the reason why it takes none."""
    data, honest, other = [dataset], dataset.parents[2] / "honest", dataset.parents[2] / "other"
    return {
        "add": [["add", *data]],
        "render": [["render", *data, "--output", output / "render"]],
        "replay": [["replay", *data, "0"]],
        "fsck": [["fsck", "--deep"]],
        "query": [["query", "SELECT count(*) FROM episodes"], ["query", "SELECT count(*) FROM frames"]],
        "coverage": [["coverage", *data], ["coverage", "--real", other, "--sim", *data]],
        "plan": [["plan", "--real", other, "--sim", *data, "--output", output / "plan.yaml"]],
        "curate": [["curate", "--output", output / "curate"], ["curate", *data]],
        "import": [["import", *data, "--output", output / "import"]],
        "edit": [
            ["edit", "select", *data, "--episodes", "0", "--output", output / "select"],
            ["edit", "merge", *data, honest, "--twice", "first", "--output", output / "merge"],
        ],
        "export": [
            ["export", "lerobot-v2", *data, "--output", output / "v2"],
            ["export", "robomimic", *data, "--output", output / "robomimic"],
        ],
        "push": [["push", *data, "not a name"]],
        "datasets": [["datasets", "freeze", "all", "--sql", "SELECT episode_id FROM episodes"]],
        "label": [
            ["label", "--rule", "failure/pick_and_place"],
            ["label", "--rule", "subtask/states"],
            ["label", "--rule", "success/predicate"],
        ],
        "identify": [["identify", "--twin", "so101_tabletop", "--data", *data, "--output", output / "fit"]],
        "monitor": [["monitor", "calibrate", "--data", *data, "--output", output / "monitor"]],
        "gap": [
            ["gap", "--twin", "so101_tabletop", "--data", *data],
            ["gap", "data", "--real", honest, "--sim", *data],
            ["gap", "vision", "--real", honest, "--sim", *data],
        ],
        "train": [["train", "--data", *data, "--steps", "1", "--keep-failures", "--output", output / "policy"]],
        "scenario": [
            ["scenario", "from-failure", f"{dataset}:0", "--name", "again", "--force", "--tries", "1"],
            ["scenario", "from-failure", f"{dataset}:0", "--policy", "expert", "--tries", "1"],
        ],
        "generate": [["generate", "generate.yaml", "--output", *data, "--resume"]],
        "fetch": [["fetch", *data, output / "fetched"]],
        "evaluate": [["evaluate", *data, "--episodes", "1"]],
        "policies": [
            ["policies", "add", *data],
            ["policies", "export", *data, "--output", output / "policy.onnx"],
        ],
        "twin": [["twin", "show", *data]],
        "pull": [["pull", *data, "--output", output / "pulled"]],
        "doctor": [["doctor"]],
        "approve": [["approve"]],
    }


# Verbs without a dataset: their inputs are attacked in other files of this folder.
NO_DATASET = {"demo", "init", "record", "run", "serve", "compare", "gate", "promote", "rollback", "sensors",
              "robot", "tasks", "evidence", "distill", "reinforce", "localize", "studio"}  # fmt: skip


def test_every_verb_is_in_the_campaign(tmp_path):
    assert set(commands(tmp_path, tmp_path)) | NO_DATASET == VERBS


QUICK = ("label", "scenario", "replay", "add")


@pytest.mark.parametrize(
    "verb",
    [
        pytest.param(
            verb,
            marks=[
                pytest.mark.attack(
                    f"A dataset names a Python file as its task, and `{verb}` reads it", expected=NOT_RUN
                ),
                *([] if verb in QUICK else [pytest.mark.slow]),
            ],
        )
        for verb in sorted(VERBS - NO_DATASET)
    ],
)
def test_a_dataset_that_names_code(verb, cell, sentinel, tmp_path, capsys, observed):
    dataset = send_dataset(cell, sentinel)
    assert main(["add", str(dataset)]) == 0
    capsys.readouterr()
    codes = []
    for words in commands(dataset, tmp_path / "out")[verb]:
        code, printed = run(capsys, *words)
        codes.append(code)
        assert "For full helptext" not in printed, printed
        assert not sentinel.exists(), (words, printed)
    observed(f"not run; exit codes {', '.join(map(str, codes))}")


@pytest.mark.attack(
    "A dataset comes with a Python file and names it as its task; a rule labels all episodes", expected=NOT_RUN
)
def test_a_dataset_that_brings_code(cell, sentinel, capsys, observed):
    assert main(["add", str(send_dataset(cell, sentinel, inside=True))]) == 0
    code, printed = run(capsys, "label", "--rule", "failure/pick_and_place")
    assert (code, sentinel.exists()) == (0, False)
    assert "has not been approved" in " ".join(printed.split())
    observed("not run; the labels say that the task cannot be opened")


@pytest.mark.attack("The studio shows an episode of a dataset that names a Python file as its task", expected=NOT_RUN)
def test_the_studio_runs_no_code_of_a_dataset(cell, sentinel, observed):
    assert main(["add", str(send_dataset(cell, sentinel))]) == 0
    data, answers = open_folder(None, "tester"), []
    for row in data.rows("SELECT episode_id FROM episodes ORDER BY batch, episode_index"):
        for show in (describe_episode, read_signals, describe_scene, read_poses, replay_in_twin):
            try:
                show(data, row["episode_id"])
                answers.append("shown")
            except TwinloopError as error:
                answers.append(f"refused ({type(error).__name__})")
            assert not sentinel.exists(), show
    data.workspace.close()
    observed(f"not run; {', '.join(sorted(set(answers)))}")


SCENARIO_VERBS = {
    "list": ["list"],
    "show": ["show", "sent"],
    "counterfactual": [
        "counterfactual",
        "sent",
        "--change",
        "object/cube/mass*=2",
        "--policy",
        "expert",
        "--tries",
        "5",
    ],
    "ablate": ["ablate", "sent", "--policy", "expert", "--tries", "5"],
    "regress": ["regress", "sent", "--policy", "expert"],
    "regress on another twin": ["regress", "sent", "--policy", "expert", "--twin", "other.yaml"],
    "augment": ["augment", "sent", "--output", "round", "--episodes", "2"],
}


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            words,
            id=name,
            marks=pytest.mark.attack(
                f"A scenario with a valid hash names a Python file as its task: `scenario {name}`",
                expected=NOT_RUN,
            ),
        )
        for name, words in SCENARIO_VERBS.items()
    ],
)
def test_a_scenario_that_names_code(words, cell, sentinel, capsys, observed):
    send_scenario(cell, sentinel)
    (cell / "other.yaml").write_text("base: so101_tabletop\ncontrol_hz: 25\nsubsteps: 20\n")
    code, printed = run(capsys, "scenario", *words)
    assert not sentinel.exists()
    if words[0] in ("list", "show"):
        assert code == 0
    else:
        assert code in (1, 2)
        assert "has not been approved" in " ".join(printed.split())
    observed(f"not run; exit code {code}")


@pytest.mark.attack("A suite of scenarios contains one that names a Python file: `evaluate --suite`", expected=NOT_RUN)
def test_a_suite_with_such_a_scenario(cell, sentinel, capsys, observed):
    folder = send_scenario(cell, sentinel)
    (cell / "suite.yaml").write_text(yaml.safe_dump({"slices": [{"name": "a", "scenario": str(folder)}]}))
    code, printed = run(capsys, "evaluate", "expert", "--suite", "suite.yaml", "--episodes", "1")
    assert (code, sentinel.exists()) == (2, False)
    assert "has not been approved" in " ".join(printed.split())
    observed("not run; exit code 2")


def sent_generate_file(place: Path, sentinel: Path, **more) -> Path:
    write_code(place / "helper.py", sentinel)
    value = {**GENERATE, "scene": {"robot": "so101", "task": "helper.py:Task"}, **more}
    file = place / "sent.yaml"
    file.write_text(yaml.safe_dump(value))
    return file


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(
            place,
            marks=pytest.mark.attack(f"A generate file in {where} names a Python file beside it", expected=NOT_RUN),
        )
        for place, where in (
            ("../download", "a folder outside of any workspace"),
            ("../their_workspace", "a workspace that was sent as a whole"),
            ("data/sent", "a workspace's folder of data"),
            ("scenarios/sent", "a workspace's folder of scenarios"),
            ("runs/generate/sent", "a workspace's folder of runs"),
        )
    ],
)
def test_a_generate_file_that_was_sent(place, cell, sentinel, capsys, observed, monkeypatch):
    file = sent_generate_file((cell / place).resolve(), sentinel)
    if place == "../their_workspace":
        (file.parent / "twinloop.yaml").write_text("schema: 1\nname: theirs\ntwin: so101_tabletop\n")
        monkeypatch.chdir(file.parent)
    for verb in (("generate", file, "--output", "data/x"), ("scenario", "search", file, "--worlds", "16")):
        code, printed = run(capsys, *verb)
        assert (code, sentinel.exists()) == (2, False), printed
        assert "twinloop approve" in printed
    observed("not run; exit code 2")


def test_a_workspace_is_the_users_own_where_it_was_made_here_or_approved(tmp_path, sentinel, capsys, monkeypatch):
    from twinloop.generate.config import read_config

    monkeypatch.chdir(tmp_path)
    assert run(capsys, "init", "made", "--robot", "so101")[0] == 0
    file = sent_generate_file(tmp_path / "made", sentinel)
    assert read_config(file).task.endswith("helper.py:Task")
    moved = shutil.copytree(tmp_path / "made", tmp_path / "moved")
    with pytest.raises(NotApprovedError):
        read_config(moved / "sent.yaml")
    assert run(capsys, "approve", "moved")[0] == 0
    assert read_config(moved / "sent.yaml").task.endswith("helper.py:Task")
    assert run(capsys, "approve", "--revoke", "moved")[0] == 0
    with pytest.raises(NotApprovedError):
        read_config(moved / "sent.yaml")


@pytest.mark.attack("A generate file outside of any workspace names a Python file as its renderer", expected=NOT_RUN)
def test_a_renderer_that_was_sent(tmp_path, sentinel, capsys, observed, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_code(tmp_path / "helper.py", sentinel)
    render = {"cameras": ["front"], "renderer": "helper.py:Renderer"}
    (tmp_path / "sent.yaml").write_text(yaml.safe_dump({**GENERATE, "render": render}))
    code, printed = run(capsys, "generate", "sent.yaml", "--output", "x")
    assert (code, sentinel.exists()) == (2, False)
    assert "has not been approved" in printed
    observed("not run; exit code 2")


@pytest.mark.attack("A gate file outside of any workspace names a Python file as its task", expected=NOT_RUN)
def test_a_gate_file_that_was_sent(tmp_path, sentinel):
    from twinloop.release.gate_config import read_gate
    from twinloop.release.rules_conditions import ContextRule

    code = write_code(tmp_path / "helper.py", sentinel)
    waived = {"waived": "not asked here"}
    names = ("success", "floor", "invariants", "regressions", "latency")
    value = {"candidate": "a", "champion": "b", **dict.fromkeys(names, waived),
             "context": {"twin": "so101_tabletop", "task": f"{code}:Task"}}  # fmt: skip
    (tmp_path / "gate.yaml").write_text(yaml.safe_dump(value))
    config = read_gate(tmp_path / "gate.yaml")
    assert isinstance(config.context, ContextRule)
    with pytest.raises(NotApprovedError):
        load_class("task", config.context.task, [])
    assert not sentinel.exists()


@pytest.mark.attack("A training file outside of any workspace names a Python file as its alignment", expected=NOT_RUN)
def test_a_training_file_that_was_sent(tmp_path, sentinel, capsys, observed):
    code = write_code(tmp_path / "helper.py", sentinel)
    value = {"sources": [{"data": str(tmp_path)}], "align": {"method": f"{code}:Align"}}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(value))
    exit_code, printed = run(capsys, "train", tmp_path / "train.yaml", "--output", tmp_path / "policy")
    assert (exit_code, sentinel.exists()) == (2, False)
    assert "has not been approved" in printed
    observed("not run; exit code 2")


@pytest.mark.attack(
    "A dataset names a Python file that the user approved; the sender changes the file afterwards", expected=NOT_RUN
)
def test_approval_is_of_the_content(cell, sentinel, capsys, observed):
    dataset = send_dataset(cell, sentinel)
    main(["add", str(dataset)])
    helper = cell.parent / "elsewhere" / "helper.py"
    assert run(capsys, "label", "--rule", "failure/pick_and_place")[0] == 0
    assert not sentinel.exists()
    assert run(capsys, "approve", helper)[0] == 0
    assert run(capsys, "label", "--rule", "failure/pick_and_place")[0] == 0
    assert sentinel.exists()  # approved: it runs
    sentinel.unlink()
    helper.write_text(helper.read_text() + "\n# changed\n")
    from twinloop.workflows.data import labels as worlds

    worlds._open_task.cache_clear()
    assert run(capsys, "label", "--rule", "failure/pick_and_place")[0] == 0
    assert not sentinel.exists()
    observed("the approved content runs, the changed one does not")


@pytest.mark.attack(
    "A Python file comes with a compiled module whose time and size fit it, and which does something else",
    expected="the approved source runs, not the compiled module",
)
def test_a_compiled_module_beside_an_approved_file(tmp_path, sentinel):
    helper = tmp_path / "helper.py"
    evil = write_code(tmp_path / "evil.py", sentinel)
    honest = "class Task:\n    pass\n"
    helper.write_text(honest + "#" * (evil.stat().st_size - len(honest)))
    os.utime(helper, (evil.stat().st_atime, evil.stat().st_mtime))
    py_compile.compile(str(evil), cfile=importlib.util.cache_from_source(str(helper)))
    approve(helper)
    assert load_class("task", mark_references(f"{helper}:Task", "a test"), []).__name__ == "Task"
    assert not sentinel.exists()


@pytest.mark.parametrize(
    "reference",
    [
        pytest.param(reference, marks=pytest.mark.attack(f"Data name code as {how}", expected=NOT_RUN), id=how)
        for reference, how in (
            ("helper.py:Task", "a file in the working folder"),
            ("./data/../helper.py:Task", "a path with two dots"),
            ("{folder}/helper.py:Task?port=3", "a robot with options"),
            ("pictures:helper.py:Encoder", "an encoder of images within an encoder of clips"),
            ("helper.py:Task (named by the user)", "a reference that claims to be marked already"),
            ("helper.so:Task", "a compiled library"),
            ("helper.pyc:Task", "a compiled module"),
            ("link.py:Task", "a link to a file elsewhere"),
        )
    ],
)
def test_ways_to_name_a_file(reference, tmp_path, sentinel, monkeypatch, observed):
    from twinloop.encoders.clips import open_clip_encoder
    from twinloop.hardware import open_robot
    from twinloop.tasks import open_task
    from twinloop.twin import load_twin

    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    code = write_code(tmp_path / "helper.py", sentinel)
    shutil.copy(code, tmp_path / "helper.so")
    py_compile.compile(str(code), cfile=str(tmp_path / "helper.pyc"))
    (tmp_path / "link.py").symlink_to(write_code(tmp_path / "elsewhere" / "real.py", sentinel))
    named = mark_references({"a": [{"b": reference.format(folder=tmp_path)}]}, "data/sent/twinloop/dataset.json")["a"][
        0
    ]["b"]
    for opened in (lambda: open_task(named, load_twin("so101_tabletop")), lambda: open_robot(named),
                   lambda: open_clip_encoder(named)):  # fmt: skip
        with pytest.raises(approval.InputError) as error:
            opened()
        observed(error.value)
    assert not sentinel.exists()


@pytest.mark.attack(
    "A user's own function names a file in a folder of data by mistake, without a mark", expected=NOT_RUN
)
@pytest.mark.parametrize("place", ["meta/info.json", "scenario.yaml", "model.safetensors"])
def test_files_among_data_are_refused_even_where_nothing_is_marked(place, tmp_path, sentinel):
    (tmp_path / "sent" / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "sent" / place).write_text("{}")
    code = write_code(tmp_path / "sent" / "deep" / "helper.py", sentinel)
    assert is_in_data_folder(code)
    with pytest.raises(NotApprovedError, match="in a folder of data"):
        load_class("task", f"{code}:Task", [])
    link = tmp_path / "link.py"
    link.symlink_to(code)
    with pytest.raises(NotApprovedError):
        load_class("task", f"{link}:Task", [])
    assert not sentinel.exists()


def test_a_file_that_the_user_names_on_the_command_line_runs(cell, sentinel, capsys):
    """What the user types, and what a file of the workspace names, runs as it always did."""
    code = write_code(cell / "data" / "sent" / "helper.py", sentinel)
    run(capsys, "evaluate", "expert", "--task", f"{code}:Task", "--episodes", "1", "--suite", "nominal")
    assert sentinel.exists()
    sentinel.unlink()
    _, row = read_approvals()
    assert (row.how, row.sha256) == ("use", sha256_file(code))
    own = write_code(cell / "own.py", cell / "other")
    (cell / "own.yaml").write_text(yaml.safe_dump({**GENERATE, "scene": {"robot": "so101", "task": "own.py:Task"}}))
    from twinloop.generate.config import read_config
    from twinloop.tasks import open_task
    from twinloop.twin import load_twin

    assert open_task(read_config(cell / "own.yaml").task, load_twin("so101_tabletop")).nstep
    assert (cell / "other").exists()
    assert {row.path for row in read_approvals()} == {str(cell), str(code), str(own)}


@pytest.mark.attack(
    "A TorchScript module is among data, and a command opens it without the user naming it", expected=NOT_RUN
)
def test_torchscript_among_data(tmp_path, observed):
    from twinloop.encoders.torchscript import open_torch

    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_text("{}")
    (tmp_path / "encoder.pt").write_bytes(b"PK")
    with pytest.raises(NotApprovedError) as error:
        open_torch(tmp_path / "encoder.pt")
    observed(error.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param(
            "policy_preprocessor.json",
            {"name": "x", "steps": [{"class": "subprocess.Popen", "config": {"args": ["touch", "ran"]}}]},
            marks=pytest.mark.attack(
                "A LeRobot checkpoint names a program as a step of its processor", expected="the checkpoint is refused"
            ),
        ),
        pytest.param(
            "policy_postprocessor.json",
            {"steps": [{"registry_name": "a"}, {"config": {"inner": [{"class": "os.system", "config": {}}]}}]},
            marks=pytest.mark.attack(
                "A LeRobot checkpoint names a function in a nested step", expected="the checkpoint is refused"
            ),
        ),
        pytest.param(
            "pytorch_model.bin",
            {},
            marks=pytest.mark.attack("A LeRobot checkpoint comes with a pickle", expected="the checkpoint is refused"),
        ),
    ],
)
def test_lerobot_checkpoints(name, content, tmp_path, observed):
    from twinloop.train.lerobot_policy import require_registered_steps

    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(approval.InputError, match="not opened|run code") as error:
        require_registered_steps(tmp_path)
    observed(error.value)


def test_registered_steps_pass(tmp_path):
    from twinloop.train.lerobot_policy import require_registered_steps

    steps = [{"registry_name": "normalizer_processor", "config": {}, "state_file": "x.safetensors"}]
    (tmp_path / "policy_preprocessor.json").write_text(json.dumps({"name": "x", "steps": steps}))
    require_registered_steps(tmp_path)


@pytest.mark.attack(
    "A dataset folder has a mujoco.py and a numpy.py, and the user runs commands from within it", expected=NOT_RUN
)
def test_modules_in_the_working_folder(tmp_path, sentinel, observed):
    for name in ("mujoco", "numpy", "selectors", "multiprocessing", "tempfile"):
        write_code(tmp_path / f"{name}.py", sentinel)
    program = Path(sys.executable).with_name("twinloop")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [program, "tasks", "list", "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    script = tmp_path / "elsewhere" / "script.py"
    script.parent.mkdir()
    script.write_text(
        "if __name__ == '__main__':\n"
        "    from twinloop.cli.main import main\n"
        "    main(['approve'])\n"
        "    from twinloop.core.pool import LocalProcesses\n"
        "    with LocalProcesses(2) as pool: print(list(pool.map(abs, [-1, -2])))\n"
    )
    started = [sys.executable, str(script)]
    done = subprocess.run(started, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "[(-1, 1), (-2, 2)]" in done.stdout, done.stderr
    assert not sentinel.exists()
    observed("a command and a pool of two processes end well; no module of the folder runs")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(
            text,
            id=name,
            marks=pytest.mark.attack(f"The file of approvals {name}", expected="nothing more is approved"),
        )
        for text, name in (
            ("not json\n", "has a damaged line"),
            ('{"sha256": 3}\n[]\nnull\n"x"\n', "has lines of other types"),
            ("[" * 10**5 + "\n", "has a deeply nested line"),
            ("\udcff", "is not text"),
        )
    ],
)
def test_a_damaged_file_of_approvals(damage, own_home, tmp_path, sentinel, observed):
    good = write_code(tmp_path / "good.py", sentinel)
    approve(good)
    file = own_home / "approved.jsonl"
    file.write_bytes(file.read_bytes() + damage.encode(errors="surrogateescape"))
    assert [row.path for row in read_approvals()] in ([str(good)], [])
    other = tmp_path / "other.py"
    other.write_text("class Task: pass\n")
    with pytest.raises(NotApprovedError):
        load_class("task", mark_references(f"{other}:Task", "x"), [])
    observed(f"{len(read_approvals())} of 1 approvals left")


def test_approvals_are_listed_and_withdrawn(own_home, tmp_path, sentinel, capsys):
    code = write_code(tmp_path / "own.py", sentinel)
    assert run(capsys, "approve", code)[0] == 0
    assert own_home.stat().st_mode & 0o77 == 0
    assert str(code) in run(capsys, "approve")[1]
    assert str(code) in "".join(run(capsys, "doctor", "--json")[1].split())
    assert run(capsys, "approve", "--revoke", code)[0] == 0
    assert read_approvals() == []
    assert "is not approved" in run(capsys, "approve", "--revoke", code)[1]
    assert run(capsys, "approve", tmp_path / "none.py")[0] == 2
    assert run(capsys, "approve", "--revoke")[0] == 2
    approve(code)
    code.write_text("class Task: pass\n")
    assert len(revoke(code)) == 1  # by its path: its earlier content


def test_a_mark_changes_references_only():
    value = {
        "twin": "a.yaml",
        "steps": [1, None, True],
        "text": "see x.py: Task",
        "task": "x.py:Task",
        "more": ("torch:e.pt",),
    }
    marked = mark_references(value, Path("a:b/c.json"))
    assert marked["task"] == "x.py:Task (named by a%3Ab/c.json)"
    assert marked["more"] == ["torch:e.pt (named by a%3Ab/c.json)"]
    assert {k: marked[k] for k in ("twin", "steps", "text")} == {k: value[k] for k in ("twin", "steps", "text")}
    assert value["task"] == "x.py:Task"
    assert split_mark(marked["task"]) == ("x.py:Task", "a:b/c.json")
    assert mark_references("x.py:Arm?port=3", "d?(e)") == "x.py:Arm (named by d%3F%28e%29)?port=3"
    assert split_mark("x.py:Task") == ("x.py:Task", "")
