"""The command ``twinloop label``."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.data import label_requests

LABEL = Group(
    name="label",
    description="Say what happens in episodes: success, failure class, subtasks, language, tags; "
    "by hand, by rule, by a model.",
    default="say",
    any_word=True,
    commands=(
        Command("say", label_requests.LabelSayRequest, "twinloop.workflows.data.labels:run_say"),
        Command("show", label_requests.LabelShowRequest, "twinloop.workflows.data.labels:show"),
        Command("list", label_requests.LabelListRequest, "twinloop.workflows.data.labels:overview"),
        Command("export", label_requests.LabelExportRequest, "twinloop.workflows.data.labels:export"),
        Command("agreement", label_requests.LabelAgreementRequest, "twinloop.workflows.data.labels:run_agreement"),
        Command("rules", label_requests.LabelRulesRequest, "twinloop.workflows.data.labels:list_words"),
    ),
)
