"""The page about scenarios shows the terms as they are declared, and only commands and options that exist."""

from __future__ import annotations

import re
from pathlib import Path

from twinloop.cli.main import TWINLOOP
from twinloop.scenario.ablate import terms_table

PAGE = (Path(__file__).parents[2] / "docs/guides/scenarios.md").read_text()


def test_the_table_of_terms_is_the_declared_one():
    shown = re.search(r"<!-- terms -->\n(.*?)\n<!-- /terms -->", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1].strip() == terms_table()


def test_every_command_line_of_the_page_is_understood():
    lines = re.findall(r"^twinloop scenario ([^\n#;]+)", PAGE, re.MULTILINE)
    assert len(lines) >= 7
    for line in lines:
        words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line)]
        TWINLOOP.parse(["scenario", *words])
