"""Words that no command can do anything with: refused before anything is opened, in a sentence that says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twinloop.cli.bench import Bench
from twinloop.cli.bench_gate import BenchGate
from twinloop.cli.compare import Compare
from twinloop.cli.evaluate import Evaluate
from twinloop.cli.main import main
from twinloop.cli.numbers import check_numbers
from twinloop.cli.run import Run
from twinloop.cli.scenario import Augment, Loop, Scenario
from twinloop.cli.train import Train
from twinloop.core.errors import InputError

HERE = Path("here")


def said(capsys, *words: str) -> tuple[int, str]:
    """The exit code and the message of a command."""
    code = main([*words, "--json"])
    return code, str(json.loads(capsys.readouterr().out.splitlines()[-1]).get("message", ""))


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (Train(output=HERE, seed=-1), "--seed -1 is no seed. Give a whole number from 0 to 2^63 − 1."),
        (Train(output=HERE, threads=-1), "--threads -1: give a number of threads, or leave it out."),
        (Evaluate(seed=-1), "--seed -1 is no seed."),
        (Evaluate(level=95.0), "--level 95.0 is no confidence level between 0 and 1. Write 95 % as 0.95."),
        (Compare(a="a", b="b", seed=2**63), "--seed 9223372036854775808 is no seed."),
        (Run(robot="r", policy="p", output=HERE, run_seed=-2), "--run-seed -2 is no seed."),
        (Scenario(action=Augment(name="n", output=HERE, seed=-1)), "--seed -1 is no seed."),
        (Scenario(action=Loop(name="n", policy="p", output=HERE, workers=-1)), "--workers -1: give a number of"),
        (Bench(action=BenchGate(seed=-1)), "--seed -1 is no seed."),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_every_command(command, text):
    with pytest.raises(InputError) as told:
        check_numbers(command)
    assert str(told.value).startswith(text)


def test_the_numbers_that_commands_begin_with_are_fine():
    check_numbers(Evaluate())
    check_numbers(Train(output=HERE, seed=0))
    check_numbers(Bench(action=BenchGate()))


def test_a_negative_seed_comes_to_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, text = said(capsys, "evaluate", "--seed", "-1", "--output", "runs/a")
    assert (code, text) == (2, "--seed -1 is no seed. Give a whole number from 0 to 2^63 − 1.")
    assert not (tmp_path / "runs").exists()
