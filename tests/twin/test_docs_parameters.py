"""Check the page of parameters against the code."""

from __future__ import annotations

from pathlib import Path

from twinloop.twin import load_twin
from twinloop.twin.quantities import QUANTITIES
from twinloop.workflows.twin.parameters import COMMAND, parameters_page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "parameters.md"


def test_the_page_is_what_the_code_writes():
    assert PAGE.read_text() == parameters_page(), f"docs/reference/parameters.md is out of date. Run: {COMMAND}"


def test_the_page_lists_every_quantity_and_every_range_with_its_source():
    page = PAGE.read_text()
    assert [kind.path() for kind in QUANTITIES if f"| `{kind.path()}` |" not in page] == []
    for param in load_twin("so101_tabletop").params.values():
        assert param.source.replace("|", "\\|") in page, param.name
