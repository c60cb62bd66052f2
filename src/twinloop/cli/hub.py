"""The commands between a dataset folder and a store or the Hugging Face Hub."""

from __future__ import annotations

from twinloop.cli.commands import Command
from twinloop.workflows.data.requests import FetchRequest, PullRequest, PushRequest

FETCH = Command("fetch", FetchRequest, "twinloop.workflows.data.transfer:run_fetch", "makes")
PUSH = Command("push", PushRequest, "twinloop.workflows.data.transfer:run_push")
PULL = Command("pull", PullRequest, "twinloop.workflows.data.transfer:run_pull", "makes")
