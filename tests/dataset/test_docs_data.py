"""What the page on data and the README ask a workspace in SQL is understood by one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from twinloop.catalog import Workspace
from twinloop.cli.main import main

ROOT = Path(__file__).parents[2]
LOG = "time_s,action/hip,state/hip\n" + "".join(f"{i / 10},{i % 7},{i % 5}\n" for i in range(20))
STATEMENTS = sorted(
    {
        statement
        for page in ("docs/tutorials/data_curation.md", "README.md")
        for statement in re.findall(
            r'twinloop (?:query|datasets freeze good --sql)\s+"(SELECT.*?)"', (ROOT / page).read_text(), re.DOTALL
        )
    }
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "log.csv").write_text(LOG)
    with Workspace.create(folder / "cell") as made:
        output = str(folder / "cell" / "data" / "teleop")
        assert main(["import", str(folder / "log.csv"), "--units", "deg", "--output", output]) == 0
        yield made


def test_the_pages_have_statements():
    assert len(STATEMENTS) >= 6


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_of_the_page_is_understood(workspace, statement):
    assert workspace.query(statement).num_columns
