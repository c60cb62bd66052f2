"""Request of ``twinloop demo``."""

from __future__ import annotations

from pathlib import Path

from twinloop.workflows.run.request import Request, SeedOption, WorkersOption, request


@request
class DemoRequest(SeedOption, WorkersOption, Request):
    """The loop once, in a few minutes: a real log, a calibrated twin, a randomized and verified dataset, a report."""

    output: Path = Path("demo-output")
    """Folder for everything the demo makes."""
