"""Define ``twinloop record``, which moves a robot along a motion for identification and records it as a dataset."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.data.requests import RecordRequest

RECORD = Command(
    "record",
    RecordRequest,
    "twinloop.workflows.data.record:run_record",
    "makes",
    example='twinloop record --robot "virtual:my_twin.yaml" --excitation plan.yaml --output data/excited',
    former={"--following": "--max-lag", "--anyway": "--force"},
)
