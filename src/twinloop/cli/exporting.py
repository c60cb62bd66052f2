"""Define ``twinloop export``, which converts a dataset to another format."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.data.requests import ExportRequest

EXPORT = Command(
    "export",
    ExportRequest,
    "twinloop.workflows.data.export:run_export",
    example="twinloop export lerobot-v2 data/batch --output data/v21",
)
