"""Define ``twinloop import``, which converts logs of a real robot to a dataset."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.data.requests import ImportRequest

IMPORT = Command(
    "import",
    ImportRequest,
    "twinloop.workflows.data.logs:run_import",
    "makes",
    example="twinloop import log.mcap --output data/real",
)
