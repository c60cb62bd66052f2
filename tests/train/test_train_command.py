"""`twinloop train`: from flags or a file to a policy, and its record in the workspace."""

from __future__ import annotations

import json

import pytest

from support.training import dataset
from twinloop.catalog import Workspace
from twinloop.cli.main import main

pytest.importorskip("torch")
SMALL = ["--steps", "6", "--batch", "8", "--set", "width=8", "depth=1", "chunk_size=4", "n_action_steps=2"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return str(dataset(tmp_path_factory.mktemp("data") / "sim", range(3)))


def said(capsys) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_in_a_workspace_the_episodes_are_frozen_and_the_policy_is_recorded(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Workspace.create(tmp_path / "cell").close()
    sim = dataset(tmp_path / "cell" / "data" / "sim", range(12), failed=(3,))
    output = tmp_path / "cell" / "policies" / "bc"
    assert main(["train", "--data", str(sim), "--output", str(output), *SMALL, "--json"]) == 0
    metrics = said(capsys)
    assert (output / "result.json").is_file()
    assert (output / "report.html").read_text().count("<h2>") == 3
    with Workspace.open(tmp_path / "cell") as held:
        frozen = held.find_dataset_version(metrics["dataset"])
        assert len(frozen) == 9  # of 12, one failed and two are held out
        rows = held.query("SELECT policy, name, run_id FROM policies").to_pylist()
        assert [(row["policy"], row["name"]) for row in rows] == [(metrics["hash"], "bc")]
        seen = held.query("SELECT episode_id FROM policy_episodes WHERE policy = ?", [metrics["hash"]])
        assert set(seen["episode_id"].to_pylist()) == set(frozen.episode_ids)
        run = held.query("SELECT verb, run_id FROM runs").to_pylist()
        assert run == [{"verb": "train", "run_id": rows[0]["run_id"]}]

    # The same episodes by their frozen list, and by a query, give the same weights.
    monkeypatch.chdir(tmp_path / "cell")
    sql = "SELECT episode_id FROM dataset_episodes WHERE name = 'train-bc'"
    hashes = []
    for name, data in (("again", metrics["dataset"]), ("third", sql)):
        words = ["train", "--data", data, "--output", f"policies/{name}", "--holdout", "0", *SMALL, "--json"]
        assert main(words) == 0
        hashes.append(said(capsys)["hash"])
    assert hashes[0] == hashes[1] != metrics["hash"]


def test_a_file_says_what_flags_do_not(tmp_path, capsys):
    dataset(tmp_path / "sim", range(6))
    (tmp_path / "train.yaml").write_text(
        "policy: mlp\nsteps: 500\nbatch: 8\nsources: [{data: sim}]\n"
        "settings: {width: 8, depth: 1, chunk_size: 4, n_action_steps: 2}\n"
    )
    words = ["train", str(tmp_path / "train.yaml"), "--output", str(tmp_path / "bc"), "--steps", "2", "--json"]
    assert main(words) == 0
    assert said(capsys)["steps"] == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--data", "nowhere/at/all"], "no such folder"),
        ([], "names no training data. Give --data FOLDER"),
        (["--data", "SIM", "--policy", "mpl"], "Unknown policy kind 'mpl'. Nearest existing: mlp"),
        (["--data", "SIM", "--set", "widht=3"], "Nearest existing: width"),
        (["--data", "SIM", "--set", "width"], "write NAME=VALUE"),
        (
            ["--data", "SIM", "--sim-fraction", "0.9"],
            "sim_fraction 0.9 assigns 10% to real sources, but there",
        ),
        (["--data", "SIM", "--device", "tpu"], "--device tpu: give cpu, cuda, or cuda:NUMBER"),
        (["--data", "SIM", "--steps", "-1"], "steps: Input should be greater than or equal to 0"),
        (["--data", "SIM", "--inputs", "front"], "Unknown input 'front'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(words, text, small, tmp_path, capsys):
    given = [small if word == "SIM" else word for word in words]
    assert main(["train", *given, "--output", str(tmp_path / "bc"), "--json"]) in (2, 3)
    assert text in said(capsys)["message"]
    assert not (tmp_path / "bc" / "result.json").exists()


def test_tensorboard_gets_the_losses_of_a_training(small, tmp_path, capsys):
    """The final weights are those of a training that nobody watches."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from tensorboard.util.tensor_util import make_ndarray

    hashes = []
    for name, words in (("plain", []), ("watched", ["--track", "tensorboard"])):
        assert (
            main(
                [
                    "train",
                    "--data",
                    small,
                    "--output",
                    str(tmp_path / name),
                    *SMALL,
                    "--holdout",
                    "0.4",
                    *words,
                    "--json",
                ]
            )
            == 0
        )
        hashes.append(said(capsys)["hash"])
    assert hashes[0] == hashes[1]
    read = events.EventAccumulator(str(tmp_path / "watched" / "tensorboard"))
    read.Reload()
    losses = [(event.step, float(make_ndarray(event.tensor_proto))) for event in read.Tensors("loss")]
    assert [step for step, _ in losses] == [1, 2, 3, 4, 5, 6]
    assert all(loss > 0 for _, loss in losses)
    assert len(read.Tensors("held-out error")) >= 1
    assert not (tmp_path / "plain" / "tensorboard").exists()
