"""A command names its request and its workflow, and the workflow takes that request."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import shlex
import subprocess
import sys
import typing

import pytest

from twinloop.cli.commands import Group
from twinloop.cli.main import TWINLOOP, main

EVERY = [part for one in TWINLOOP.commands for part in (one.commands if isinstance(one, Group) else (one,))]


@pytest.mark.parametrize("command", [pytest.param(one, id=one.request.__name__) for one in EVERY])
def test_the_workflow_of_a_command_takes_its_request(command):
    module, _, name = command.workflow.partition(":")
    function = inspect.unwrap(getattr(importlib.import_module(module), name))
    first = next(iter(inspect.signature(function).parameters))
    assert typing.get_type_hints(function)[first] is command.request


def test_a_request_belongs_to_one_command():
    assert len({one.request for one in EVERY}) == len(EVERY)


@pytest.mark.parametrize("command", [pytest.param(one, id=one.request.__name__) for one in EVERY])
def test_the_example_of_a_command_is_a_command_line(command):
    program, *words = shlex.split(command.example)
    assert program == TWINLOOP.name
    assert TWINLOOP.parse(words)[0] is command


@pytest.mark.parametrize("command", [pytest.param(one, id=one.request.__name__) for one in EVERY if one.former])
def test_former_names_stand_for_present_ones(command):
    present = {command.name, *(f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(command.request))}
    assert set(command.former.values()) <= present
    assert not set(command.former) & present


@pytest.mark.parametrize(
    ("former", "present", "note"),
    [
        ("replay data 7 --aside", "replay data 7 --invalid", "--aside is now --invalid"),
        ("gap power --p 0.5 0.9 --most=9", "gap power --p 0.5 0.9 --max-pairs=9", "--most is now --max-pairs"),
        ("gap history runs --figures a b", "gap history runs --metrics a b", "--figures is now --metrics"),
        ("label say first:0 --success yes", "label first:0 --success yes", "say is now add"),
    ],
)
def test_a_former_name_is_read_and_reported(capsys, former, present, note):
    parsed = TWINLOOP.parse(former.split())
    assert capsys.readouterr().err == f"twinloop: {note}; the former name is not read after this version.\n"
    assert parsed == TWINLOOP.parse(present.split())
    assert capsys.readouterr().err == ""


def test_a_value_that_looks_like_a_former_name_is_kept():
    assert TWINLOOP.parse(["label", "add", "say", "--success", "yes"])[1].episodes == ("say",)


def test_help_lists_every_command_by_stage_and_the_general_options(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    for stage, commands in TWINLOOP.stages.items():
        at = lines.index(stage)
        assert [line.split()[0] for line in lines[at + 1 : at + 1 + len(commands)]] == [one.name for one in commands]
    assert "--version" in text
    assert "--tyro-print-completion" in text
    assert main([]) == 2
    assert capsys.readouterr().out == text


def test_help_shows_no_type_of_none_and_no_empty_default(capsys):
    for command in ("evaluate", "identify", "generate", "train"):
        with pytest.raises(SystemExit) as end:
            TWINLOOP.parse([command, "--help"])
        text = " ".join(capsys.readouterr().out.split())
        assert end.value.code == 0
        assert "{None}" not in text
        assert "(default: None)" not in text
        assert "(default: False)" not in text
        assert "(default: )" not in text
        assert "Example: twinloop" in text
    assert TWINLOOP.parse(["evaluate", "--twin", "None"])[1].twin is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["generate", "g.yaml", "--output", "o", "--episodes", "ten"], "--episodes: 'ten' is not a whole number."),
        (["generate", "g.yaml", "--output", "o", "--episodes", "1.5"], "--episodes: '1.5' is not a whole number."),
        (["evaluate", "expert", "--level", "high"], "--level: 'high' is not a number."),
    ],
)
def test_a_word_that_is_no_number_is_named(words, text, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert text in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "nearest"),
    [(["trian"], "train"), (["scenario", "ablat"], "ablate"), (["edit", "spilt", "data"], "split")],
)
def test_a_mistyped_command_gets_the_nearest_ones(words, nearest, capsys):
    with pytest.raises(SystemExit) as end:
        main([*words, "--json"])
    out, message = capsys.readouterr()
    assert end.value.code == 2
    assert json.loads(out)["error"] == "UsageError"
    assert repr(words[-2 if len(words) > 2 else -1]) in message
    assert nearest in message


def test_a_word_behind_a_group_with_a_default_is_no_mistyped_command():
    assert TWINLOOP.parse(["label", "EPISODE", "--success", "yes"])[1].episodes == ("EPISODE",)
    TWINLOOP.check_names(["label", "EPISODE"])


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_scripts_are_printed(shell):
    words = [sys.executable, "-m", "twinloop", "--tyro-print-completion", shell]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "evaluate" in printed
