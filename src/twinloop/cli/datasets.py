"""The command ``twinloop datasets``."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.data import requests

DATASETS = Group(
    name="datasets",
    description="Frozen datasets: named selections of episodes that never change, and the policies they trained.",
    commands=(
        Command("freeze", requests.DatasetsFreezeRequest, "twinloop.workflows.data.datasets:freeze"),
        Command("list", requests.DatasetsListRequest, "twinloop.workflows.data.datasets:overview"),
        Command("show", requests.DatasetsShowRequest, "twinloop.workflows.data.datasets:show"),
        Command("diff", requests.DatasetsDiffRequest, "twinloop.workflows.data.datasets:compare"),
        Command("lineage", requests.DatasetsLineageRequest, "twinloop.workflows.data.datasets:trace"),
        Command("materialize", requests.DatasetsMaterializeRequest, "twinloop.workflows.data.datasets:materialize"),
    ),
)
