"""The page on adaptation: its sections and command lines parse unchanged."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from support.docs_sections import section
from twinloop.cli.main import TWINLOOP
from twinloop.train.config import TrainConfig

PAGE = section("guides/training.md", "Adapt a policy")
LINES = [line for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def test_the_sections_of_the_page_are_read():
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = TrainConfig.of({**yaml.safe_load(text), "sources": [{"data": "data/real"}]})
    assert config.adapt is not None
    assert (config.adapt.base, config.adapt.rank, config.adapt.l2_start) == ("policies/bc", 8, 0.01)


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("twinloop train")])
def test_commands_of_the_page_are_understood(line):
    TWINLOOP.parse(shlex.split(line.partition("#")[0])[1:])
