"""Define ``twinloop label``, which labels episodes by hand, rule or model, and measures the agreement of labels."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.data import label_requests

LABEL = Group(
    name="label",
    description="Label episodes: success, failure class, subtasks, language, tags; by hand, by rule, by a model.",
    default="add",
    any_word=True,
    commands=(
        Command(
            "add",
            label_requests.LabelAddRequest,
            "twinloop.workflows.data.labels:run_add",
            example="twinloop label EPISODE --success yes",
            former={"say": "add"},
        ),
        Command(
            "show",
            label_requests.LabelShowRequest,
            "twinloop.workflows.data.labels:show",
            example="twinloop label show EPISODE",
        ),
        Command(
            "list",
            label_requests.LabelListRequest,
            "twinloop.workflows.data.labels:overview",
            example="twinloop label list",
        ),
        Command(
            "export",
            label_requests.LabelExportRequest,
            "twinloop.workflows.data.labels:export",
            example="twinloop label export labels.csv",
        ),
        Command(
            "agreement",
            label_requests.LabelAgreementRequest,
            "twinloop.workflows.data.labels:run_agreement",
            example="twinloop label agreement --kind success",
        ),
        Command(
            "rules",
            label_requests.LabelRulesRequest,
            "twinloop.workflows.data.labels:list_rules",
            example="twinloop label rules",
        ),
    ),
)
