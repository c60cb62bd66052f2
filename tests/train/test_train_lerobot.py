"""LeRobot's policies: the folder with the mixture, the command line, and the record of a run.

A small program replaces LeRobot's interpreter; `test_lerobot_policy.py` trains and runs with LeRobot itself.
"""

from __future__ import annotations

import io
import json
import shlex
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from support.training import config, dataset
from twinloop.catalog import Workspace
from twinloop.cli.main import main
from twinloop.core.errors import CheckFailedError, InputError, MissingDependencyError, UnknownNameError
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.policies import open_policy, read_card
from twinloop.release.serve_wire import Message, decode, encode
from twinloop.train import lerobot_side
from twinloop.train.lerobot import lerobot_run_folder, parse_loss, train_lerobot, training_arguments
from twinloop.train.lerobot_mixture import choose_copies, materialize
from twinloop.train.lerobot_policy import DEVICE, VARIABLE, LeRobotEndedError, open_lerobot, require_lerobot
from twinloop.train.sources import open_sources

PROGRAM = """#!{python} -S
import pathlib, sys
if "metadata" in sys.argv[-1]:
    print("0.4.4")
    sys.exit()
assert sys.argv[1] == "-P" and sys.argv[2].endswith("lerobot_side.py") and sys.argv[3] == "train"
words = dict(word[2:].split("=", 1) for word in sys.argv[4:])
pathlib.Path({log!r}).write_text("\\n".join(sys.argv[4:]))
if words.get("seed") == "13":
    print("ValueError: no such thing")
    sys.exit(1)
if words.get("seed") == "14":
    sys.exit()
for step in (100, 200):
    print(f"INFO 2026 ot_train.py:1 step:{{step}} smpl:2K ep:4 epch:0.1 loss:{{1 / step:.3f}} grdn:1.0 lr:1e-5")
out = words.get("output_dir") or str(pathlib.Path(words["config_path"]).parents[3])
made = pathlib.Path(out) / "checkpoints" / "000200" / "pretrained_model"
made.mkdir(parents=True, exist_ok=True)
head = b'{{"network.bias": {{"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}}}}'
(made / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(24))
(made / "config.json").write_text('{{"type": "act", "n_obs_steps": 1, "chunk_size": 100, "n_action_steps": 50}}')
(made / "train_config.json").write_text('{{"log_freq": 2}}')
(made.parent / "training_state").mkdir(exist_ok=True)
(made.parent / "training_state" / "training_step.json").write_text('{{"step": 120}}')
last = made.parents[1] / "last"
last.is_symlink() or last.symlink_to("000200")
"""

SERVER = """#!{python}
import importlib.util, sys
if "metadata" in sys.argv[-1]:
    print("0.4.4")
    sys.exit()
spec = importlib.util.spec_from_file_location("side", sys.argv[2])
side = importlib.util.module_from_spec(spec)
spec.loader.exec_module(side)
class ServedCheckpoint:
    def __init__(self, folder, device):
        if device == "cuda":
            raise ValueError("no such device")
    def predict_chunks(self, arrays, task):
        state = arrays["observation.state"][:, -1].astype(float)
        if (state > 1e3).any():
            raise RuntimeError("too far")
        if (state < -1e3).any():
            sys.exit("out of memory")
        count = len(state)
        return state[:, None].repeat(100, axis=1) + count, state[:, :1]
side.ServedCheckpoint = ServedCheckpoint
side.serve(sys.argv[4], sys.argv[5], sys.stdin.buffer, sys.stdout.buffer)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("lerobot")
    return dataset(path / "sim", range(6), length=6), dataset(path / "real", range(40, 42), real=True, length=6)


@pytest.fixture
def program(tmp_path):
    """A replacement for LeRobot's interpreter; it writes its command line to a file."""
    path = tmp_path / "python"
    path.write_text(PROGRAM.format(python=sys.executable, log=str(tmp_path / "words")))
    path.chmod(0o755)
    return path


def test_shares_of_frames_become_repeated_episodes(folders, tmp_path):
    opened = open_sources(config(*folders).sources)
    made = materialize(opened, tmp_path / "mixed", sim_fraction=0.5)
    reader = DatasetReader(tmp_path / "mixed")
    rows = {row["name"]: row for row in made.rows}
    assert sum(row["frames"] for row in made.rows) == int(reader.lengths.sum())
    assert sum(row["written"] for row in made.rows) == len(reader) == sum(made.episodes.values())
    # Six simulated episodes have 42 frames, two real ones 15: with both there three times, 45 are nearer than 37 or 38.
    assert (rows["sim"]["frames"], rows["sim"]["written"]) == (42, 6)
    assert (rows["real"]["frames"], rows["real"]["written"]) == (45, 6)
    assert rows["real"]["share_realized"] == pytest.approx(45 / 87)
    assert (rows["real"]["share"], rows["real"]["share_episodes"]) == (0.5, 0.5)
    stored = Path(tmp_path / "mixed" / "meta" / "info.json")
    assert json.loads(stored.read_text())["codebase_version"] == "v3.0"


@pytest.mark.parametrize(("wanted", "seed"), [(0, 0), (7, 0), (29, 1), (60, 2), (75, 3)])
def test_repeats_come_as_near_as_an_episode_allows(wanted, seed):
    lengths = np.array([5, 7, 8, 10])
    times = choose_copies(lengths, wanted, np.random.default_rng(seed))
    assert abs(times @ lengths - wanted) <= lengths.max() / 2
    assert times.max() - times.min() <= 1


def test_the_command_line_is_that_of_lerobot_train(folders, tmp_path):
    said = {"steps": 200, "batch": 8, "seed": 3, "settings": {"chunk_size": 20, "pretrained_backbone_weights": None}}
    words = training_arguments(config(*folders, policy="lerobot:act", **said), "act", tmp_path / "run")
    assert words == [
        "--dataset.repo_id=local/run",
        f"--dataset.root={tmp_path / 'run.lerobot' / 'dataset'}",
        "--policy.type=act",
        "--policy.device=cpu",
        "--policy.push_to_hub=false",
        "--policy.chunk_size=20",
        "--policy.pretrained_backbone_weights=null",
        f"--output_dir={tmp_path / 'run.lerobot' / 'run'}",
        "--job_name=run",
        "--steps=200",
        "--batch_size=8",
        "--seed=3",
        "--save_freq=40",
        "--log_freq=2",
        "--wandb.enable=false",
    ]
    pretrained = config(*folders, policy="lerobot:smolvla", settings={"path": "lerobot/smolvla_base"}, steps=10)
    words = training_arguments(pretrained, "smolvla", tmp_path / "run")
    assert "--policy.path=lerobot/smolvla_base" in words
    assert not any(word.startswith("--policy.type") for word in words)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("INFO ot_train.py:1 step:200 smpl:2K ep:4 epch:0.12 loss:6.201 grdn:15 lr:1e-05", 6.201),
        ("step:15K smpl:1M ep:40 epch:1.2 loss:1.5e-03 grdn:1", 0.0015),
        ("step:1 smpl:8 loss:nan grdn:1", pytest.approx(float("nan"), nan_ok=True)),
        ("Checkpoint policy after step 200", None),
    ],
)
def test_progress_is_read_from_what_it_logs(line, found):
    assert parse_loss(line) == found


def test_in_a_workspace_the_checkpoint_becomes_a_policy_that_is_recorded(program, tmp_path, capsys):
    Workspace.create(tmp_path / "cell").close()
    real = dataset(tmp_path / "cell" / "data" / "real", range(3), real=True)
    output = tmp_path / "cell" / "policies" / "act"
    words = ["train", "--policy", "lerobot:act", "--data", str(real), "--steps", "200", "--output", str(output)]
    assert main([*words, "--lerobot-python", str(program), "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert metrics["checkpoint"] == "act.lerobot/run/checkpoints/000200/pretrained_model"
    assert metrics["losses"] == [[2, 0.01], [4, 0.005]]
    assert metrics["versions"]["lerobot"] == "0.4.4"
    kept = json.loads((output / "config.json").read_text())
    assert (kept["kind"], kept["hash"], kept["parameters"]) == ("lerobot", metrics["hash"], 6)
    assert kept["settings"]["type"] == "act"
    assert (kept["settings"]["chunk_size"], kept["settings"]["n_action_steps"]) == (100, 50)
    assert kept["contract"]["cameras"] == {}
    assert "A policy of kind lerobot, act. 6 parameters" in (output / "README.md").read_text()
    assert read_card(output).name == "act"
    assert shlex.split(metrics["command"])[1:] == (tmp_path / "words").read_text().splitlines()
    with Workspace.open(tmp_path / "cell") as held:
        rows = held.query("SELECT policy, name FROM policies").to_pylist()
        assert len(held.find_dataset_version(metrics["dataset"])) == 3
    assert rows == [{"policy": metrics["hash"], "name": "act"}]

    (output / "result.json").unlink()
    again = config(real, policy="lerobot:act", settings={}, steps=200, lr=0.0, batch=0)
    resumed = train_lerobot(again, output, python=program, resume=True)
    assert resumed.metrics["losses"] == [(122, 0.01), (124, 0.005)]
    assert resumed.metrics["sources"] == metrics["sources"]
    last = lerobot_run_folder(output) / "run" / "checkpoints" / "last" / "pretrained_model" / "train_config.json"
    assert (tmp_path / "words").read_text().splitlines() == [
        f"--config_path={last.resolve()}", "--resume=true", "--steps=200"
    ]  # fmt: skip


def test_what_goes_wrong_is_said(folders, program, tmp_path):
    plain = {"policy": "lerobot:act", "settings": {}, "lr": 0.0, "steps": 200}
    with pytest.raises(CheckFailedError, match=r"ended with code 1. Its last lines:\nValueError: no such thing"):
        train_lerobot(config(folders[1], **plain, seed=13), tmp_path / "a", python=program)
    with pytest.raises(CheckFailedError, match="ended without a checkpoint in"):
        train_lerobot(config(folders[1], **plain, seed=14), tmp_path / "b", python=program)
    with pytest.raises(InputError, match="no run to resume: mixture.json is missing"):
        train_lerobot(config(*folders, **plain), tmp_path / "c", python=program, resume=True)
    for said, text in (
        ({"align": {}}, "lerobot-train does not support align. Leave it out, or train mlp, act or flow"),
        ({"lr": 1e-4}, "does not support lr.*Set the rate with --set optimizer_lr="),
        ({"policy": "lerobot:"}, "write lerobot:TYPE"),
    ):
        with pytest.raises(InputError, match=text):
            train_lerobot(config(*folders, **{**plain, **said}), tmp_path / "d", python=program)
    assert not (tmp_path / "d").exists()


def test_what_is_not_observed_is_not_written(folders, tmp_path):
    materialize(open_sources(config(*folders).sources), tmp_path / "mixed", observed=())
    assert [key for key in DatasetReader(tmp_path / "mixed").info["features"] if key.startswith("observation")] == []


def test_a_run_that_fails_before_its_first_checkpoint_may_be_repeated(folders, program, tmp_path):
    plain = {"policy": "lerobot:act", "settings": {}, "lr": 0.0, "steps": 200}
    with pytest.raises(CheckFailedError):
        train_lerobot(config(folders[1], **plain, seed=13), tmp_path / "a", python=program)
    assert not lerobot_run_folder(tmp_path / "a").exists()
    train_lerobot(config(folders[1], **plain), tmp_path / "a", python=program)


def test_both_sides_speak_the_policy_servers_format():
    arrays = {"observation.state": np.arange(6, dtype=np.float32).reshape(1, 6), "sent": np.ones(2)}
    stream = io.BytesIO()
    lerobot_side.send(stream, "act", arrays)
    assert stream.getvalue() == encode(Message(kind="act", arrays=arrays))
    assert decode(stream.getvalue()).kind == "act"
    stream.seek(0)
    kind, read, _ = lerobot_side.receive(stream)
    assert kind == "act"
    for name, values in arrays.items():
        np.testing.assert_array_equal(read[name], values)
    with pytest.raises(EOFError, match="the other process closed the stream"):
        lerobot_side.receive(io.BytesIO(stream.getvalue()[:-3]))


def test_the_kind_is_an_entry_point_that_leads_to_its_opener():
    said = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
    place = said["project"]["entry-points"]["twinloop.policies"]["lerobot"]
    assert EntryPoint(name="lerobot", value=place, group="twinloop.policies").load() is open_lerobot


def test_an_opened_policy_asks_the_other_interpreter(folders, program, tmp_path, monkeypatch):
    """A small program replaces LeRobot: a command is the reading and the number of rows in the request."""
    server = tmp_path / "server"
    server.write_text(SERVER.format(python=sys.executable))
    server.chmod(0o755)
    plain = {"policy": "lerobot:act", "settings": {}, "lr": 0.0, "steps": 200}
    made = train_lerobot(config(folders[1], **plain), tmp_path / "a", python=program)
    monkeypatch.setenv(VARIABLE, str(server))
    policy = open_lerobot(made.folder)
    state = np.arange(40.0).reshape(20, 1, 2)
    chunk, features = policy.predict_with_features({"observation.state": state})
    np.testing.assert_array_equal(chunk, np.repeat(state + 16, 100, axis=1))  # always in portions of 16
    np.testing.assert_array_equal(features, state[:, 0, :1])
    with pytest.raises(LeRobotEndedError, match=r"LeRobot cannot run .*pretrained_model: RuntimeError: too far"):
        policy.predict({"observation.state": state + 1e4})
    assert policy.predict({"observation.state": state[:1]}).shape == (1, 100, 2)
    with pytest.raises(LeRobotEndedError, match=r"ended \(code 1\)\. Its last lines:\nout of memory"):
        policy.predict({"observation.state": state - 1e4})
    monkeypatch.setenv(DEVICE, "cuda")
    with pytest.raises(LeRobotEndedError, match="ValueError: no such device"):
        open_lerobot(made.folder)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(MissingDependencyError, match="nowhere does not start"):
        open_lerobot(made.folder)


def test_a_kind_that_nobody_knows_is_named(folders, program, tmp_path, monkeypatch):
    plain = {"policy": "lerobot:act", "settings": {}, "lr": 0.0, "steps": 200}
    made = train_lerobot(config(folders[1], **plain), tmp_path / "a", python=program)
    path = made.folder / "config.json"
    path.write_text(path.read_text().replace('"kind": "lerobot"', '"kind": "lerobat"', 1))
    with pytest.raises(UnknownNameError, match="Unknown policy kind 'lerobat'"):
        open_policy(made.folder)


def test_without_lerobot_both_ways_to_get_it_are_said(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "elsewhere"))
    with pytest.raises(MissingDependencyError, match=r"elsewhere does not start .*export TWINLOOP_LEROBOT_PYTHON=DIR"):
        require_lerobot()
    nowhere = tmp_path / "nowhere"
    with pytest.raises(MissingDependencyError, match=r"nowhere does not start .*pip install lerobot, or sh scripts"):
        require_lerobot(nowhere)
    nowhere.write_text("#!/bin/sh\nexit 1\n")
    nowhere.chmod(0o755)
    with pytest.raises(MissingDependencyError, match=r"has no LeRobot.*export TWINLOOP_LEROBOT_PYTHON=DIR/bin/python"):
        require_lerobot(nowhere)
