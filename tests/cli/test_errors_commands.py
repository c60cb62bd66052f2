"""Invalid command-line words are refused before any file is opened, in a sentence with the next step."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.commands import BenchGate
from support.releases import policy_folder
from twinloop.catalog import Workspace
from twinloop.cli.arguments import check_numbers
from twinloop.cli.commands import Command
from twinloop.cli.main import TWINLOOP, main
from twinloop.core.errors import InputError
from twinloop.release import PolicyRegistry, promote
from twinloop.release.running_robot import ControlStep, EpisodeRun
from twinloop.train.config import CHECKPOINT
from twinloop.workflows.deploy.requests import RunRequest
from twinloop.workflows.deploy.run_text import episode_line
from twinloop.workflows.evaluate.requests import CompareRequest, EvaluateRequest
from twinloop.workflows.scenario.requests import AugmentRequest, RetrainRequest
from twinloop.workflows.train.requests import TrainRequest

HERE = Path("here")


def said(capsys, *words: str) -> tuple[int, str]:
    """The exit code and the message of a command."""
    code = main([*words, "--json"])
    return code, str(json.loads(capsys.readouterr().out.splitlines()[-1]).get("message", ""))


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (TrainRequest(output=HERE, seed=-1), "--seed -1 is not a seed. Give a whole number from 0 to 2^63 − 1."),
        (TrainRequest(output=HERE, threads=-1), "--threads -1: give a number of threads, or leave it out."),
        (EvaluateRequest(seed=-1), "--seed -1 is not a seed."),
        (EvaluateRequest(level=95.0), "--level 95.0 is not a confidence level between 0 and 1. Write 95 % as 0.95."),
        (CompareRequest(a="a", b="b", seed=2**63), "--seed 9223372036854775808 is not a seed."),
        (RunRequest(robot="r", policy="p", output=HERE, run_seed=-2), "--run-seed -2 is not a seed."),
        (AugmentRequest(name="n", output=HERE, seed=-1), "--seed -1 is not a seed."),
        (RetrainRequest(name="n", policy="p", output=HERE, workers=-1), "--workers -1: give a number of"),
        (BenchGate(seed=-1), "--seed -1 is not a seed."),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_every_command(command, text):
    with pytest.raises(InputError) as told:
        check_numbers(command)
    assert str(told.value).startswith(text)


def test_the_numbers_that_commands_begin_with_are_fine():
    check_numbers(EvaluateRequest())
    check_numbers(TrainRequest(output=HERE, seed=0))
    check_numbers(BenchGate())


@pytest.mark.parametrize("words", [["bench"], ["bench", "gate", "--seed", "0"]])
def test_the_former_command_of_benchmarks_says_what_to_run_instead(capsys, words):
    code, text = said(capsys, *words)
    assert code == 2
    assert text == "`twinloop bench` has moved: run `python -m benchmarks NAME` in a checkout of the repository."
    assert main(words) == 2
    assert capsys.readouterr().err.split() == f"twinloop: {text}".split()


def test_a_negative_seed_comes_to_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, text = said(capsys, "evaluate", "--seed", "-1", "--output", "runs/a")
    assert (code, text) == (2, "--seed -1 is not a seed. Give a whole number from 0 to 2^63 − 1.")
    assert not (tmp_path / "runs").exists()


def test_a_flag_that_takes_several_values_may_be_given_again(monkeypatch):
    seen = list[Any]()
    monkeypatch.setattr(Command, "run", lambda self, request, out: (seen.append(request), ({}, 0))[1])
    assert main(["train", "--data", "a", "b", "--output", "x", "--data=c", "--seed", "1", "--seed", "2"]) == 0
    assert main(["evaluate", "p", "--fail_under", "nominal=0.9", "--level", "0.9", "--fail-under", "worst=0.3"]) == 0
    trained, evaluated = seen
    assert (trained.data, trained.seed, str(trained.output)) == (("a", "b", "c"), 2, "x")
    assert (evaluated.fail_under, evaluated.level) == (("nominal=0.9", "worst=0.3"), 0.9)
    words = ["scenario", "counterfactual", "n", "--change", "a", "--change", "b"]
    assert TWINLOOP.join_repeated_flags(words) == words  # these are given one by one, and the parser keeps them
    assert TWINLOOP.join_repeated_flags(["scenario", "loop", "n", "--data", "a", "--data", "b"])[3:] == [
        "--data",
        "a",
        "b",
    ]
    unknown = ["nothing", "--data", "a", "--data", "b"]
    assert TWINLOOP.join_repeated_flags(unknown) == unknown


def test_what_the_parser_says_comes_without_its_frame(capsys):
    with pytest.raises(SystemExit) as end:
        main(["rollback", "--json"])
    message = json.loads(capsys.readouterr().out.splitlines()[-1])["message"]
    assert end.value.code == 2
    assert message.startswith(
        "Required options Missing from twinloop rollback: --reason STR Reason for the promotion log."
    )
    assert "---" not in message


def test_training_says_what_else_to_give(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    words = ("train", "--output", "new", "--data", "nothere")
    code, text = said(capsys, *words)
    assert code == 2
    assert text.startswith("'nothere' is not a folder here, and a dataset version needs a workspace, but")
    assert text.endswith("Give the folder of a dataset, or create a workspace: `twinloop init FOLDER`.")
    code, text = said(capsys, *words, "--method", "low_rank")
    assert code == 2
    assert text.startswith(
        "The command line has fine-tuning settings (method), but names no policy to start from. Give --adapt"
    )
    assert main(["init", "."]) == 0
    capsys.readouterr()
    code, text = said(capsys, *words)
    assert code == 2
    assert text.startswith("'nothere' is neither a folder nor a dataset version. Unknown dataset version 'nothere'")
    (tmp_path / "new").mkdir()
    for name in ("result.json", "report.html"):  # without its report, a run was ended before it had finished
        (tmp_path / "new" / name).write_text("{}")
    code, text = said(capsys, *words, "--resume")
    assert code == 2
    assert text.startswith("new holds a finished run, which cannot be resumed. `--adapt new` with another --output")


def test_an_alias_that_nothing_stands_for_says_what_makes_one(tmp_path, capsys):
    at = ("policies", "show", "champion", "--workspace", str(tmp_path / "cell"))
    with Workspace.create(tmp_path / "cell") as ws:
        code, text = said(capsys, *at)
        assert (code, "deployment main, in which no policy has been promoted yet (`twinloop promote`)." in text) == (
            2,
            True,
        ), text
        registry = PolicyRegistry(ws)
        registry.add(policy_folder(tmp_path / "pick", 1), policy="1")
        promote(registry, "pick@1", to="champion", force=True, reason="the first one")
        code, text = said(capsys, *at, "--deployment", "left")
    assert (code, "in the deployment left, which has no aliases; aliases exist in main." in text) == (2, True), text


def test_what_is_not_there_yet_says_what_makes_it(tmp_path, capsys):
    code, text = said(capsys, "scenario", "show", "slips", "--scenarios", str(tmp_path))
    assert (code, "`twinloop scenario from-failure EPISODE` makes them. None exist here." in text) == (2, True), text
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_text("{}")
    code, text = said(capsys, "run", "--robot", "virtual:none", "--policy", "p", "--output", str(tmp_path))
    assert (code, text) == (2, f"{tmp_path} holds a dataset. Choose another --output, or move that one away.")


def test_promote_without_a_candidate_says_how_to_come_by_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with Workspace.create(tmp_path / "cell") as ws:
        at = ("--workspace", str(tmp_path / "cell"))
        code, text = said(capsys, "promote", *at)
        assert (code, "Add one with `twinloop policies add DIR`" in text) == (2, True), text
        PolicyRegistry(ws).add(policy_folder(tmp_path / "pick", 1), policy="1")
        code, text = said(capsys, "promote", *at)
    assert code == 2
    assert text.startswith("main has no candidate; it has no champion. A yes of `twinloop gate candidate.yaml` ")
    assert "`twinloop promote pick@1 --force --reason WHY`" in text


def test_who_stops_training_is_told_to_resume_only_what_can_be(tmp_path, monkeypatch, capsys):
    def stopped(self, request, out):
        raise KeyboardInterrupt

    monkeypatch.setattr(Command, "run", stopped)
    words = ["train", "--data", "d", "--output", str(tmp_path / "pick")]
    assert main(words) == 130
    assert "stopped. There is no checkpoint yet: the same command starts from the beginning." in capsys.readouterr().err
    (tmp_path / "pick").mkdir()
    (tmp_path / "pick" / CHECKPOINT).write_bytes(b"")
    assert main(words) == 130
    assert "the same command with --resume continues from there" in capsys.readouterr().err


def test_a_command_that_was_cut_broke_no_limit_and_the_line_says_which_is_which():
    def ran(*kinds: str, cuts: tuple[str, ...] = ()) -> EpisodeRun:
        made = [SimpleNamespace(**dict(zip(("joint", "rule"), cut.split("/"), strict=True))) for cut in cuts]
        changes = {"limited": made}
        decisions = [SimpleNamespace(kind=kind, changes=changes.get(kind, [])) for kind in kinds]
        steps = [SimpleNamespace(decision=one, sent=True) for one in decisions]
        return EpisodeRun(episode=3, policy="p", steps=cast("list[ControlStep]", steps))

    cut, held = ran("passed", "limited", "limited"), ran("passed", "held", "limited", "stopped")
    assert (cut.violations, held.violations) == (0, 2)
    assert episode_line(cut, None) == "episode 3: outcome unknown, 3 frames, envelope: 2 clipped to the limits"
    assert episode_line(held, False) == (
        "episode 3: failure, 4 frames, envelope: 1 clipped to the limits, 1 held, 1 stopped"
    )
    four = tuple(f"{joint}/acceleration" for joint in "abcd")
    assert episode_line(ran("passed", "limited", "limited", "held", cuts=four), True).endswith(
        "envelope: 2 clipped to the limits (acceleration in 50% of commands: a, b, c, …), 1 held"
    )
    assert "speed in 100% of commands: b" in episode_line(ran("limited", cuts=("b/speed", *four)), True)
    assert episode_line(ran("passed"), True) == "episode 3: success, 1 frames, all passed by the envelope"
