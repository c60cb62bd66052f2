"""Run a benchmark that makes one table: print it, and write it into its page if ``--write`` gives the docs folder."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.studies import write_between


def main(doc: str | None, page: str, mark: str, made: Callable[[], str]) -> None:
    """Run the benchmark from the command line.

    Args:
        doc: Description for ``--help``.
        page: Path of the page, relative to the docs folder.
        mark: Name in the page's two marker comments.
        made: Function that measures and returns the table as Markdown.
    """
    arguments = argparse.ArgumentParser(description=doc)
    arguments.add_argument("--write", type=Path, help="documentation folder, e.g. docs; its table is replaced")
    docs = arguments.parse_args().write
    text = made()
    print(text)
    if docs is not None:
        write_between(docs / page, mark, text)
