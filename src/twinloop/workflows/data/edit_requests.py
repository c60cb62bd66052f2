"""Requests of ``twinloop edit``."""

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
    """How an edit writes its new folder."""

    output: Path
    """The new folder; the datasets that it is made of stay as they are."""
    leave_out: tuple[str, ...] = ()
    """Side tables that are not carried over, such as annotations/frames."""
    copy: bool = False
    """Copy whole video files instead of sharing them with the source by hard links."""


@request
class EditSelectRequest(EditOutput):
    """Write some episodes, in the order given."""

    dataset: _One
    """Folder of a LeRobot v3.0 dataset, of twinloop or any other program."""
    episodes: str
    """Numbers (3,5,8), ranges (0:30, 40:) or episode ids, commas between them."""


@request
class EditDeleteRequest(EditOutput):
    """Write all episodes but some."""

    dataset: _One
    """Folder of a LeRobot v3.0 dataset, of twinloop or any other program."""
    episodes: str
    """The ones to leave out: numbers (3,5,8), ranges (0:30, 40:) or episode ids, commas between them."""


@request
class EditSplitRequest(SeedOption, EditOutput):
    """Write the parts of a dataset as folders below OUTPUT."""

    dataset: _One
    """Folder of a LeRobot v3.0 dataset, of twinloop or any other program."""
    parts: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=SIZE")]
    """Each part and its size: a share (train=0.8), a number of episodes (train=40), or a list (train=0:40)."""
    by: str | None = None
    """What shall be alike in all parts: task, success, or any column of the episode table."""


@request
class EditMergeRequest(EditOutput):
    """Write all episodes of several datasets into one."""

    datasets: _Several
    """Folders with the same features, ours and others'."""
    codec: str | None = None
    """h264, av1 or hevc, where the datasets differ: videos in another codec are encoded anew."""
    same_units: bool = False
    """The joint columns mean the same in all datasets, whatever these say of their units."""
    common: bool = False
    """Carry only the features that all datasets have; those left out are named."""
    twice: Literal["refuse", "first"] = "refuse"
    """What to do with an episode that is in two datasets: refuse it, or keep the first."""


@request
class EditRetaskRequest(EditOutput):
    """Write all episodes, some of them with another task text."""

    dataset: _One
    """Folder of a LeRobot v3.0 dataset, of twinloop or any other program."""
    task: str | None = None
    """The new text of the chosen episodes."""
    episodes: str | None = None
    """Numbers, ranges or ids of those that change; by default all."""
    rename: Annotated[tuple[str, ...], tyro.conf.arg(metavar="OLD=NEW")] = ()
    """Instead of --task, new texts by old ones."""


@request
class EditReencodeRequest(EditOutput):
    """Write all episodes with their videos encoded anew."""

    dataset: _One
    """Folder of a LeRobot v3.0 dataset with videos, of twinloop or any other program."""
    codec: str = "h264"
    """h264, av1 or hevc."""
    gop: int = 2
    """A key frame at least every so many frames: 2 is best for training, more makes files smaller."""
    crf: int | None = None
    """Constant quality, lower is better; by default 23 (h264), 30 (av1), 28 (hevc)."""
    size: str | None = None
    """HEIGHTxWIDTH in pixels; by default as they are."""


@request
class EditRebalanceRequest(SeedOption, EditOutput):
    """Write episodes so that groups have equal or given shares, by leaving some out."""

    datasets: _Several
    """Folders with the same features, ours and others'."""
    by: str
    """What groups are: task, success, source, or any column of the episode table."""
    shares: _Named = ()
    """Share of each group in the result, such as true=0.7 false=0.3; by default equal ones."""
    repeat: bool = False
    """Leave none out of the fullest group and repeat episodes of the others, as children of themselves."""
    same_units: bool = False
    """The joint columns mean the same in all datasets, whatever these say of their units."""
