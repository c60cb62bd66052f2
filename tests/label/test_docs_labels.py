"""Check the page on labels: it lists every rule and kind, and its YAML can be read unchanged."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from twinloop.catalog.label_checks import FILE, KINDS, Vocabulary
from twinloop.cli.main import TWINLOOP
from twinloop.label.exchange import read_labels
from twinloop.label.rules import RULES, SqlRule

PAGE = (Path(__file__).parents[2] / "docs/guides/labels.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_names_every_rule_and_kind():
    rows = re.findall(r"^\| `([a-z_/A-Z]+)` \|", PAGE, re.MULTILINE)
    assert set(RULES) <= set(rows)
    assert set(KINDS) <= set(rows)


def test_yaml_and_json_of_the_page_are_read(tmp_path):
    words, rule = blocks("yaml")
    (tmp_path / FILE).write_text(words)
    assert set(yaml.safe_load(words)["failures"]) <= set(Vocabulary.of(tmp_path).failures)
    (tmp_path / "rule.yaml").write_text(rule)
    assert SqlRule.read(tmp_path / "rule.yaml").kind == "tag"
    (line,) = blocks("json")
    (tmp_path / "lines.jsonl").write_text(line)
    assert [one.value for one in read_labels(tmp_path / "lines.jsonl")] == [json.loads(line)["value"]]


@pytest.mark.parametrize("line", [line for line in blocks("")[0].splitlines() if line.startswith("twinloop")])
def test_commands_of_the_page_are_understood(line):
    words = shlex.split(line.partition("#")[0])[1:]
    assert words[0] in ("label", "datasets")
    TWINLOOP.parse(words)
