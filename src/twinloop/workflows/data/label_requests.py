"""Define the flags of the ``twinloop label`` commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import RepeatedFlag, Request, WorkspaceRequest, request


@request
class LabelAddRequest(WorkspaceRequest):
    """Label episodes. Earlier labels of the same author stay in the history."""

    episodes: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="EPISODE")]] = ()
    """Episodes to label, each as the beginning of its id or as BATCH:INDEX."""
    where: str | None = None
    """Also label the episodes that meet a SQL condition on the view episodes, or that a complete SELECT returns."""
    success: Literal["yes", "no", "unknown"] | None = None
    """Whether the task was done. unknown means that you looked and cannot decide."""
    failure: str | None = None
    """Failure class, such as grasp_missed; labels.yaml in the workspace can add classes."""
    language: str | None = None
    """Text that describes the motion or the task."""
    subtask: RepeatedFlag = ()
    """A subtask as WORD:FIRST-LAST, both frames included, such as reach:0-45. Repeat the flag for each subtask.
    Together they replace your earlier subtasks.
    """
    tag: RepeatedFlag = ()
    """A tag: any word, unless labels.yaml lists the allowed ones. Repeat the flag for each tag."""
    number: RepeatedFlag = ()
    """A number as NAME=VALUE, such as quality=4."""
    reason: str | None = None
    """Reason for the labels, in one sentence."""
    confidence: float | None = None
    """Your confidence in the labels, from 0 to 1."""
    retract: RepeatedFlag = ()
    """Retract your labels of these kinds: success, failure, subtask, language, tag=WORD or number/NAME."""
    add: bool = False
    """Keep your earlier subtasks and texts of these episodes in addition to the new ones."""
    file: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Write the labels in a .csv or .jsonl file, all or none; docs/guides/labels.md describes the columns."""
    rule: str | None = None
    """Apply a rule: a name from `twinloop label rules`, FILE.py:Class or FILE.yaml; by default to all episodes."""
    author: str | None = None
    """Author of the labels; by default your user name. A line of a file must not name another author."""
    source: Literal["hand", "model"] | None = None
    """Whether a person (hand, the default) or a model gives the labels. A line of a file must not name another source.
    """
    author_hash: str | None = None
    """Hash of the model that gives the labels."""


@request
class LabelShowRequest(WorkspaceRequest):
    """Show all labels of an episode with their authors, and the history."""

    episode: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="EPISODE")]]
    """The episode: the beginning of its id, or BATCH:INDEX."""


@request
class LabelListRequest(WorkspaceRequest):
    """Count the labels per kind, author and value."""


@request
class LabelExportRequest(WorkspaceRequest):
    """Write the current labels to a file that `twinloop label --from` can read."""

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """A .csv or .jsonl file."""
    where: str | None = None
    """Write only labels of the episodes that meet a SQL condition on the view episodes; by default all."""


@request
class LabelAgreementRequest(WorkspaceRequest):
    """Measure how well people, rules and models agree in their labels, and list the episodes to review again.

    Prints Cohen's kappa and Krippendorff's alpha, or for subtasks the agreement of their boundaries.
    """

    kind: str = "success"
    """Kind of label: success, failure, subtask or number/NAME."""
    where: str | None = None
    """Use only the episodes that meet a SQL condition on the view episodes; by default all."""
    tolerance: float = 0.2
    """Largest time difference of two subtask starts that count as the same, in seconds."""


@request
class LabelRulesRequest(Request):
    """List the labelling rules, the failure classes and the subtasks."""

    workspace: Path | None = None
    """Workspace whose labels.yaml is used; by default the nearest one upwards from here, if there is one."""
