"""Record attacks: every test marked ``attack`` is one row of the table in docs/trust.md.

``make attacks`` runs all of them, the slow campaigns included, prints how many succeeded in each area, and writes the
table. An attack succeeds where its test fails.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

LIST_FILE = "TWINLOOP_LIST_ATTACKS"  # write every collected attack to this file, as JSON
PAGE_FILE = "TWINLOOP_WRITE_ATTACKS"  # write the table of attacks into this page
_LONGEST = 160  # characters of an observation
_reports: dict[str, pytest.TestReport] = {}


def _attacks(items: list[pytest.Item]) -> list[tuple[pytest.Item, str, str]]:
    """Return each attack with what is tried and what is expected."""
    marked = ((item, item.get_closest_marker("attack")) for item in items)
    return [(item, mark.args[0], mark.kwargs["expected"]) for item, mark in marked if mark is not None]


@pytest.fixture
def observed(record_property: Callable[[str, object], None], tmp_path: Path) -> Callable[[object], None]:
    """Note what an attack led to: an error, a message, or a count."""

    def note(seen: object) -> None:
        text = f"{type(seen).__name__}: {seen}" if isinstance(seen, BaseException) else str(seen)
        text = " ".join(
            re.sub(r"/\S*/pytest-\S*?/[^/\s]+(?=[/\s.,:'\"]|$)", "…", text.replace(str(tmp_path), "…")).split()
        )
        record_property("observed", text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")

    return note


def pytest_collection_finish(session: pytest.Session) -> None:
    """Attach each attack's description to its report, and list all of them where that is asked for."""
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
    """Write the table of attacks where that is asked for."""
    page = os.environ.get(PAGE_FILE)
    if not page or hasattr(session.config, "workerinput"):
        return
    from twinloop.loop.marked import markdown_table, write_between

    rows = list[list[str]]()
    for name in sorted(_reports):
        report, facts = _reports[name], dict(_reports[name].user_properties)
        outcome = str(facts.get("observed", "as expected")) if report.passed else f"**{report.outcome}**"
        rows.append([str(len(rows) + 1), _area(name), str(facts["attack"]), str(facts["expected"]), _cell(outcome)])
    write_between(
        Path(page), "attacks", "\n" + markdown_table(["", "area", "attack", "expected", "observed"], rows) + "\n"
    )


def _area(nodeid: str) -> str:
    return Path(nodeid.partition("::")[0]).stem.removeprefix("test_").replace("_", " ")


def _cell(text: str) -> str:
    """Return an observation as a cell of Markdown: nothing in it is markup."""
    return text.replace("\\", "\\\\").replace("<", "&lt;").replace("`", "'").replace("*", "\\*").replace("_", "\\_")
