"""The studies of the gap: every one has its place in a page, and tables do not depend on who makes them."""

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.error_rates.studies import GAP
from benchmarks.studies import marks, share
from twinloop.core.errors import InputError, UnknownNameError

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def console():
    return Console(width=140, record=True)


def test_every_study_has_a_name_of_its_own_and_a_table_in_its_page():
    names = [study.name for study in GAP.chosen()]
    assert len(names) == len(set(names))
    for study in GAP.chosen():
        begin, end = marks(f"{GAP.place} {study.name}")
        inside = (DOCS / study.page).read_text().partition(begin)[2].partition(end)[0]
        assert inside.count("\n|") >= 3, f"{study.page} has no table of {study.name}"


@pytest.mark.slow
def test_tables_are_the_same_in_processes_and_land_in_their_pages(tmp_path, console):
    begin, end = marks(f"{GAP.place} sobol")
    page = tmp_path / "evidence" / "gap.md"
    page.parent.mkdir()
    page.write_text(f"before\n{begin}\n{end}\nafter\n")
    alone = GAP.run(console, only=["sobol"], repetitions=2, docs=tmp_path)
    both = GAP.run(console, only=["sobol", "comparison-scores"], repetitions=2, workers=2)
    rows = [found["studies"]["sobol"]["rows"] for found in (alone, both)]
    assert rows[0] == rows[1]
    assert list(both["studies"]) == ["comparison-scores", "sobol"]
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert rows[0][0][0] in text


def test_what_there_is_not_is_refused_before_anything_runs(tmp_path, console):
    with pytest.raises(UnknownNameError, match="Unknown study 'sensor'.*sensors"):
        GAP.run(console, only=["sensor"])
    with pytest.raises(InputError, match="--repetitions 0: give at least 1"):
        GAP.run(console, repetitions=0)
    with pytest.raises(InputError, match="has no place for the tables"):
        GAP.run(console, only=["sobol"], docs=tmp_path)


def test_a_share_carries_its_spread():
    assert share(5, 100) == "5.0 ± 2.2 %"
    assert [share(k, 10) for k in (0, 10)] == ["0.0 ± 0.0 %", "100.0 ± 0.0 %"]
