"""Define ``twinloop edit``, which selects, splits, merges and converts the episodes of datasets into a new folder."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.data import edit_requests

EDIT = Group(
    name="edit",
    description="Edit datasets into a new folder with their provenance and exact statistics (docs/guides/datasets.md).",
    commands=(
        Command(
            "select",
            edit_requests.EditSelectRequest,
            "twinloop.workflows.data.edits:run_select",
            "makes",
            example="twinloop edit select data/batch --episodes 0:100 --output data/first",
        ),
        Command(
            "delete",
            edit_requests.EditDeleteRequest,
            "twinloop.workflows.data.edits:run_delete",
            "makes",
            example="twinloop edit delete data/batch --episodes 3,7 --output data/kept",
        ),
        Command(
            "split",
            edit_requests.EditSplitRequest,
            "twinloop.workflows.data.edits:run_split",
            "makes",
            example="twinloop edit split data/batch --parts train=0.8 test=0.2 --output data/parts",
        ),
        Command(
            "merge",
            edit_requests.EditMergeRequest,
            "twinloop.workflows.data.edits:run_merge",
            "makes",
            example="twinloop edit merge data/real data/batch --output data/all",
        ),
        Command(
            "retask",
            edit_requests.EditRetaskRequest,
            "twinloop.workflows.data.edits:run_retask",
            "makes",
            example='twinloop edit retask data/batch --task "Put the cube on the target." --output data/retasked',
        ),
        Command(
            "reencode",
            edit_requests.EditReencodeRequest,
            "twinloop.workflows.data.edits:run_reencode",
            "makes",
            example="twinloop edit reencode data/batch --codec h264 --output data/h264",
        ),
        Command(
            "rebalance",
            edit_requests.EditRebalanceRequest,
            "twinloop.workflows.data.edits:run_rebalance",
            "makes",
            example="twinloop edit rebalance data/batch --by task --output data/balanced",
        ),
    ),
)
