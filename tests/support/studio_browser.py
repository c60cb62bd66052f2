"""Look at the studio's pages in a real browser."""

from __future__ import annotations

import contextlib
import re
import time


@contextlib.contextmanager
def opened_page(browser, server, expect=".episode"):
    """A page of an admitted browser; errors of its scripts, dialogs and failed requests fail the test."""
    opened = browser.new_page(viewport={"width": 1280, "height": 800})
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text) if is_problem(message) else None)
    opened.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
    opened.goto(server.address)
    server.address = server._next_address()
    opened.wait_for_selector(expect)
    yield opened
    opened.close()
    assert problems == []


def is_problem(message) -> bool:
    """Return whether a script printed an error; answers that refuse a question are shown in the page."""
    return message.type == "error" and "/api/episodes" not in message.location["url"]


def wait_until(page, condition: str) -> None:
    """Wait until a condition of the page holds (the page's policy forbids Playwright's own way)."""
    end = time.monotonic() + 30
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        time.sleep(0.02)


def visit(page, path: str) -> None:
    page.goto(re.match(r"http://[^/]+", page.url)[0] + path)  # type: ignore[index]
