"""Define the options of ``twinloop demo``."""

from __future__ import annotations

from pathlib import Path

from twinloop.workflows.run.request import Request, SeedOption, WorkersOption, request


@request
class DemoRequest(SeedOption, WorkersOption, Request):
    """Run every step once in a few minutes: real log, identified twin, randomized dataset, policy, report."""

    output: Path = Path("demo-output")
    """Folder for all files of the demo. Files of an earlier demo in it are replaced."""
