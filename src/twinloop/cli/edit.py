"""The command ``twinloop edit``."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.data import edit_requests

EDIT = Group(
    name="edit",
    description="Edit datasets: always into a new folder, with provenance kept and statistics exact; see "
    "docs/edits.md.",
    commands=(
        Command("select", edit_requests.EditSelectRequest, "twinloop.workflows.data.edits:run_select", "makes"),
        Command("delete", edit_requests.EditDeleteRequest, "twinloop.workflows.data.edits:run_delete", "makes"),
        Command("split", edit_requests.EditSplitRequest, "twinloop.workflows.data.edits:run_split", "makes"),
        Command("merge", edit_requests.EditMergeRequest, "twinloop.workflows.data.edits:run_merge", "makes"),
        Command("retask", edit_requests.EditRetaskRequest, "twinloop.workflows.data.edits:run_retask", "makes"),
        Command("reencode", edit_requests.EditReencodeRequest, "twinloop.workflows.data.edits:run_reencode", "makes"),
        Command(
            "rebalance", edit_requests.EditRebalanceRequest, "twinloop.workflows.data.edits:run_rebalance", "makes"
        ),
    ),
)
