"""``python -m benchmarks NAME``: run one measurement, with the exit codes and the JSON of the ``twinloop`` program."""

from __future__ import annotations

from benchmarks.commands import PROGRAM
from twinloop.cli.main import run

if __name__ == "__main__":
    run(PROGRAM)
