"""Define ``twinloop datasets``, which creates, lists, compares and copies named dataset versions."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.data import requests

DATASETS = Group(
    name="datasets",
    description="Dataset versions: named selections of episodes that never change, and the policies they trained.",
    commands=(
        Command(
            "freeze",
            requests.DatasetsFreezeRequest,
            "twinloop.workflows.data.datasets:freeze",
            example="twinloop datasets freeze train --sql \"SELECT episode_id FROM episodes WHERE source = 'sim'\"",
        ),
        Command(
            "list",
            requests.DatasetsListRequest,
            "twinloop.workflows.data.datasets:overview",
            example="twinloop datasets list",
        ),
        Command(
            "show",
            requests.DatasetsShowRequest,
            "twinloop.workflows.data.datasets:show",
            example="twinloop datasets show train@1",
        ),
        Command(
            "diff",
            requests.DatasetsDiffRequest,
            "twinloop.workflows.data.datasets:compare",
            example="twinloop datasets diff train@1 train@2",
        ),
        Command(
            "lineage",
            requests.DatasetsLineageRequest,
            "twinloop.workflows.data.datasets:trace",
            example="twinloop datasets lineage policies/bc",
        ),
        Command(
            "materialize",
            requests.DatasetsMaterializeRequest,
            "twinloop.workflows.data.datasets:materialize",
            example="twinloop datasets materialize train@1 --output data/train",
        ),
    ),
)
