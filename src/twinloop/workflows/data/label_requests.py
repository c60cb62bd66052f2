"""Requests of ``twinloop label``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import Request, Texts, WorkspaceRequest, request


@request
class LabelSayRequest(WorkspaceRequest):
    """Say something of episodes. What the same author said before stays in the history."""

    episodes: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="EPISODE")]] = ()
    """Beginnings of their ids, or BATCH:INDEX."""
    where: str | None = None
    """Also those that a condition on the view episodes holds for, or that a whole SELECT gives."""
    success: Literal["yes", "no", "unknown"] | None = None
    """Whether the task was done; unknown: you looked and cannot tell."""
    failure: str | None = None
    """Why not: a failure class, such as grasp_missed; labels.yaml in the workspace adds some."""
    language: str | None = None
    """What is done, in words."""
    subtask: Texts = ()
    """WORD:FIRST-LAST, frames included, such as reach:0-45; again for each one. Together they replace your earlier."""
    tag: Texts = ()
    """A word of your own; again for each one."""
    number: Texts = ()
    """NAME=VALUE, such as quality=4."""
    reason: str | None = None
    """Why, in one sentence."""
    confidence: float | None = None
    """How sure, 0 to 1."""
    retract: Texts = ()
    """Take back what you said: success, failure, subtask, language, tag=WORD or number/NAME."""
    add: bool = False
    """Keep your earlier subtasks and texts of these episodes beside the new ones."""
    file: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Say what a .csv or .jsonl file says, all of it or nothing; see docs/guides/labels.md for its columns."""
    rule: str | None = None
    """Say what a rule says: a name (`twinloop label rules`), FILE.py:Class or FILE.yaml. By default of all episodes."""
    author: str | None = None
    """Who says so; by default your user name. A line of a file must not say another."""
    source: Literal["hand", "model"] | None = None
    """Whether a person says so, which is the default, or a model. A line of a file must not say otherwise."""
    author_hash: str | None = None
    """Hash of the model."""


@request
class LabelShowRequest(WorkspaceRequest):
    """Everything that is said of an episode, by whom, and what was said before."""

    episode: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="EPISODE")]]
    """The beginning of its id, or BATCH:INDEX."""


@request
class LabelListRequest(WorkspaceRequest):
    """How often each author says what."""


@request
class LabelExportRequest(WorkspaceRequest):
    """Write the labels that hold to a file, which `twinloop label --from` reads again."""

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """A .csv or .jsonl file."""
    where: str | None = None
    """Only of episodes that a condition holds for."""


@request
class LabelAgreementRequest(WorkspaceRequest):
    """How far people, rules and models agree: kappa, alpha, boundaries, and the episodes to look at again."""

    kind: str = "success"
    """success, failure, subtask or number/NAME."""
    where: str | None = None
    """Only of episodes that a condition holds for."""
    tolerance: float = 0.2
    """How far two beginnings of a subtask may lie apart to be the same, in s."""


@request
class LabelRulesRequest(Request):
    """The rules that exist, and the words of failure classes."""

    workspace: Path | None = None
    """Folder of the workspace whose words count; by default the nearest one upwards, if there is one."""
