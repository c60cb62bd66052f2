"""Define the flags of the ``twinloop edit`` commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.workflows.run.request import Request, SeedOption, request

_One = tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DATASET")]]
_Several = tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="DATASET")]]
_Named = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")]


@request
class EditOutput(Request):
    """Options for the new folder that an edit writes."""

    output: Path
    """The new folder. The source datasets are not changed."""
    leave_out: tuple[str, ...] = ()
    """Side tables to leave out, such as annotations/frames; by default none."""
    copy: bool = False
    """Copy whole video files instead of sharing them with the source by hard links."""


@request
class EditSelectRequest(EditOutput):
    """Write some episodes of a dataset, in the given order."""

    dataset: _One
    """Folder of a LeRobot v3.0 dataset, from twinloop or any other program."""
    episodes: str
    """Episodes to write: numbers (3,5,8), ranges (0:30, 40:) or episode ids, separated by commas."""


@request
class EditDeleteRequest(EditOutput):
    """Write all episodes of a dataset except the given ones to a new dataset."""

    dataset: _One
    """Folder of a LeRobot v3.0 dataset, from twinloop or any other program."""
    episodes: str
    """Episodes to leave out: numbers (3,5,8), ranges (0:30, 40:) or episode ids, separated by commas."""


@request
class EditSplitRequest(SeedOption, EditOutput):
    """Split a dataset into several folders below OUTPUT."""

    dataset: _One
    """Folder of a LeRobot v3.0 dataset, from twinloop or any other program."""
    parts: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=SIZE")]
    """Each part and its size: a share (train=0.8), a number of episodes (train=40), or a list (train=0:40)."""
    by: str | None = None
    """Give all parts the same proportions of this column: task, success, or any column of the episode table."""


@request
class EditMergeRequest(EditOutput):
    """Write all episodes of several datasets into one new dataset."""

    datasets: _Several
    """Folders of datasets with the same features, from twinloop or other programs."""
    codec: str | None = None
    """Codec of the videos: h264, av1 or hevc. Required only if the datasets use different codecs; videos in another
    codec are encoded again.
    """
    same_units: bool = False
    """Assume that the joint columns of all datasets have the same units, even if the datasets state other units."""
    common: bool = False
    """Keep only the features that all datasets have. The names of all other features are printed."""
    twice: Literal["refuse", "first"] = "refuse"
    """What to do if an episode is in two datasets: refuse the merge, or keep the first."""


@request
class EditRetaskRequest(EditOutput):
    """Write all episodes of a dataset with new task texts: one text for chosen episodes, or replacements of texts."""

    dataset: _One
    """Folder of a LeRobot v3.0 dataset, from twinloop or any other program."""
    task: str | None = None
    """The new task text of the episodes in --episodes."""
    episodes: str | None = None
    """Episodes whose task text may change: numbers (3,5,8), ranges (0:30, 40:) or episode ids, separated by commas; by
    default all.
    """
    rename: Annotated[tuple[str, ...], tyro.conf.arg(metavar="OLD=NEW")] = ()
    """Instead of --task: replace old task texts by new ones."""


@request
class EditReencodeRequest(EditOutput):
    """Write all episodes of a dataset with their videos encoded again."""

    dataset: _One
    """Folder of a LeRobot v3.0 dataset with videos, from twinloop or any other program."""
    codec: str = "h264"
    """Codec of the videos: h264, av1 or hevc."""
    gop: int = 2
    """Number of frames from one key frame to the next. 2 gives fast random access for training; larger values make
    smaller files.
    """
    crf: int | None = None
    """Constant rate factor: lower is better quality. By default 23 (h264), 30 (av1), 28 (hevc)."""
    size: str | None = None
    """Image size as HEIGHTxWIDTH in pixels; by default unchanged."""


@request
class EditRebalanceRequest(SeedOption, EditOutput):
    """Write episodes so that groups of episodes, such as tasks or outcomes, have equal or given shares.

    Surplus episodes are left out, or with --repeat, episodes of the smaller groups are repeated.
    """

    datasets: _Several
    """Folders of datasets with the same features, from twinloop or other programs."""
    by: str
    """Column that defines the groups: task, success, source, or any column of the episode table."""
    shares: _Named = ()
    """Share of each group in the result, such as true=0.7 false=0.3; by default equal shares."""
    repeat: bool = False
    """Keep all episodes of the largest group, and repeat episodes of the smaller groups. A repeated episode gets a new
    id, and its original is recorded as its parent.
    """
    same_units: bool = False
    """Assume that the joint columns of all datasets have the same units, even if the datasets state other units."""
