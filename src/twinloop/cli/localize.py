"""Define ``twinloop localize``, which trains networks that see what a tracker would measure."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.localize import requests


def _has_checkpoint(request: requests.LocalizeTrainRequest) -> bool:
    from twinloop.workflows.localize.localize import has_checkpoint

    return has_checkpoint(request)


LOCALIZE = Group(
    name="localize",
    description="Train networks that see what a tracker would measure, test them on real photos, give them a policy.",
    commands=(
        Command(
            "train",
            requests.LocalizeTrainRequest,
            "twinloop.workflows.localize.localize:run_localize_train",
            "measures",
            resumable=_has_checkpoint,
            example="twinloop localize train generate.yaml --output policies/eyes",
        ),
        Command(
            "score",
            requests.LocalizeScoreRequest,
            "twinloop.workflows.localize.localize:run_localize_score",
            example="twinloop localize score policies/eyes policies/other --photos my_photos",
        ),
        Command(
            "adapt",
            requests.LocalizeAdaptRequest,
            "twinloop.workflows.localize.localize:run_localize_adapt",
            example="twinloop localize adapt policies/eyes --photos my_photos --output policies/mine",
        ),
        Command(
            "attach",
            requests.LocalizeAttachRequest,
            "twinloop.workflows.localize.localize:run_localize_attach",
            example="twinloop localize attach policies/eyes --control policies/taught --output policies/seeing",
        ),
    ),
)
