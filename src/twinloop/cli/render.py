"""Define ``twinloop render``, which renders stored episodes again, and ``replay``, which simulates them again."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.generate.requests import RenderRequest, ReplayRequest

RENDER = Command(
    "render",
    RenderRequest,
    "twinloop.workflows.generate.render:run_render",
    "makes",
    resumable=lambda _: True,
    example="twinloop render data/batch --renderer mitsuba --camera front --size 640x480",
)
REPLAY = Command(
    "replay",
    ReplayRequest,
    "twinloop.workflows.generate.generate:run_replay",
    example="twinloop replay data/batch 7 --verify",
    former={"--aside": "--invalid"},
)
