"""Record attacks: every test marked ``attack`` is one row of the table in docs/evidence/attacks.md.

``make attacks`` runs all of them, the slow campaigns included, prints how many succeeded in each area, and writes the
table. An attack succeeds where its test fails.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from _attack_table import anonymous, cell_of, cells_of

LIST_FILE = "TWINLOOP_LIST_ATTACKS"  # write every collected attack to this file, as JSON
PAGE_FILE = "TWINLOOP_WRITE_ATTACKS"  # write the table of attacks into this page
_LONGEST = 160  # characters of an observation
_TABLE = "attacks"  # the name of the table's place in the page
_HEAD = ["area", "attack", "expected", "observed", "tests"]
_reports: dict[str, pytest.TestReport] = {}


def _attacks(items: list[pytest.Item]) -> list[tuple[pytest.Item, str, str]]:
    """Return each attack with its action and its expected result."""
    marked = ((item, item.get_closest_marker("attack")) for item in items)
    return [(item, mark.args[0], mark.kwargs["expected"]) for item, mark in marked if mark is not None]


@pytest.fixture
def observed(record_property: Callable[[str, object], None], tmp_path: Path) -> Callable[[object], None]:
    """Note what an attack led to: an error, a message, or a count."""

    def note(seen: object) -> None:
        text = f"{type(seen).__name__}: {seen}" if isinstance(seen, BaseException) else str(seen)
        text = anonymous(text.replace(str(tmp_path), "…"))
        record_property("observed", text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")

    return note


def pytest_collection_finish(session: pytest.Session) -> None:
    """Attach each attack's description to its report; list all of them on request."""
    found = _attacks(session.items)
    for item, tried, expected in found:
        item.user_properties += [("attack", tried), ("expected", expected)]
    target = os.environ.get(LIST_FILE)
    if target and not hasattr(session.config, "workerinput"):
        rows = [{"test": item.nodeid, "attack": tried, "expected": expected} for item, tried, expected in found]
        Path(target).write_text(json.dumps(rows))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the report that decides: the test's own call, or a set-up that failed or was skipped."""
    if "attack" in dict(report.user_properties) and (report.when == "call" or not report.passed):
        _reports[report.nodeid] = report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many attacks there were, and how many succeeded, by area."""
    if not _reports:
        return
    terminalreporter.section("attacks")
    tried, succeeded, skipped = Counter[str](), Counter[str](), Counter[str]()
    for name, report in _reports.items():
        tried[_area(name)] += 1
        succeeded[_area(name)] += report.failed
        skipped[_area(name)] += report.skipped
    for area in sorted(tried):
        terminalreporter.write_line(
            f"{area:<24}{tried[area]:4d} tried  {succeeded[area]} succeeded  {skipped[area]} skipped"
        )
    terminalreporter.write_line(
        f"{'all':<24}{tried.total():4d} tried  {succeeded.total()} succeeded  {skipped.total()} skipped"
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the table of attacks on request; rows of attacks that did not run stay unchanged."""
    page = os.environ.get(PAGE_FILE)
    if not page or hasattr(session.config, "workerinput"):
        return
    from benchmarks.studies import around, markdown_table, write_between

    before, after = around(Path(page), _TABLE)
    old = Path(page).read_text()[len(before) : -len(after)].splitlines()
    rows = {tuple(cells[:3]): cells for line in old if len(cells := cells_of(line)) == len(_HEAD)}
    rows = {key: cells for key, cells in rows.items() if key[0] not in ("area", "---")}
    rows |= _rows()
    table = markdown_table(_HEAD, [rows[key] for key in sorted(rows)])
    write_between(Path(page), _TABLE, f"\n{table}\n")


def _rows() -> dict[tuple[str, ...], list[str]]:
    """Return the rows of this run; attacks with one description, in one area, share a row."""
    found: dict[tuple[str, ...], list[pytest.TestReport]] = {}
    for name, report in _reports.items():
        facts = dict(report.user_properties)
        key = (_area(name), cell_of(str(facts["attack"])), cell_of(str(facts["expected"])))
        found.setdefault(key, []).append(report)
    return {key: [*key, *_outcome(reports)] for key, reports in found.items()}


def _outcome(reports: list[pytest.TestReport]) -> tuple[str, str]:
    """Return the observed result of a row as text, and its number of tests."""
    for word in ("failed", "skipped"):
        if any(getattr(report, word) for report in reports):
            return f"**{word}**", str(len(reports))
    seen = str(dict(reports[0].user_properties).get("observed", "as expected"))
    return cell_of(seen), str(len(reports))


def _area(nodeid: str) -> str:
    return Path(nodeid.partition("::")[0]).stem.removeprefix("test_").replace("_", " ")
