"""A benchmark that is one table: printed, and put into its page where ``--write`` names the folder of docs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.studies import write_between


def main(doc: str | None, page: str, mark: str, made: Callable[[], str]) -> None:
    """Run as a program.

    Args:
        doc: what the benchmark says of itself.
        page: name of the page in the folder of docs.
        mark: what stands in the page's two marks.
        made: measures, and gives the table as Markdown.
    """
    arguments = argparse.ArgumentParser(description=doc)
    arguments.add_argument("--write", type=Path, help="the folder of docs whose table is replaced")
    docs = arguments.parse_args().write
    text = made()
    print(text)
    if docs is not None:
        write_between(docs / page, mark, text)
