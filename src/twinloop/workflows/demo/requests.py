"""Request of ``twinloop demo``."""

from __future__ import annotations

from pathlib import Path

from twinloop.workflows.run.request import Request, SeedOption, WorkersOption, request


@request
class DemoRequest(SeedOption, WorkersOption, Request):
    """Run the loop once in a few minutes: real log, calibrated twin, randomized and verified dataset, report."""

    output: Path = Path("demo-output")
    """Folder for everything the demo makes."""
