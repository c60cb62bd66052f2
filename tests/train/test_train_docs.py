"""The page on training: its files and command lines parse unchanged."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from support.docs_sections import section
from twinloop.cli.main import TWINLOOP
from twinloop.generate.config import GenerateFile
from twinloop.train.config import TrainConfig
from twinloop.train.preparation import resolve_config

PAGE = section("guides/training.md", "Train a policy")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_files_of_the_page_are_read():
    generate, train = (yaml.safe_load(text) for text in blocks("yaml"))
    assert GenerateFile.model_validate(generate).rollout.environment_state
    config = TrainConfig.of(train)
    assert len(config.sources) == 4
    assert resolve_config(config).settings["width"] == 512


@pytest.mark.parametrize("line", [line for line in blocks("")[0].splitlines() if line.startswith("twinloop")])
def test_commands_of_the_page_are_understood(line):
    words = shlex.split(line.partition("#")[0])[1:]
    assert words[0] in ("train", "generate")
    TWINLOOP.parse(words)
