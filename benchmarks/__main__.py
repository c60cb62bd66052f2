"""Run one benchmark: ``python -m benchmarks NAME``; exit codes and ``--json`` as in the ``twinloop`` program."""

from __future__ import annotations

from benchmarks.commands import PROGRAM
from twinloop.cli.main import run

if __name__ == "__main__":
    run(PROGRAM)
