"""The command ``twinloop edit``: from datasets to a new one, one edit each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from twinloop.cli.commands import Outcome, console
from twinloop.core.errors import InputError

if TYPE_CHECKING:
    from twinloop.dataset.edit.writing import Settings

_One = tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DATASET")]]
_Several = tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="DATASET")]]
_Named = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")]


@dataclass(frozen=True, kw_only=True)
class Writing:
    """How an edit writes its new folder."""

    output: Path
    """The new folder; the datasets that it is made of stay as they are."""
    leave_out: tuple[str, ...] = ()
    """Side tables that are not carried over, such as annotations/frames."""
    copy: bool = False
    """Copy whole video files instead of sharing them with the source by hard links."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def settings(self, **more: Any) -> Settings:
        """As the rooms below take it."""
        from twinloop.dataset.edit.videos import Pixels
        from twinloop.dataset.edit.writing import Settings

        encoding = more.pop("encoding", None)
        return Settings(pixels=Pixels(encoding=encoding, link=not self.copy), leave_out=self.leave_out, **more)

    def said(self, verb: str, work: Callable[[], Any]) -> Outcome:
        """Do it, and say what was written."""
        from twinloop.workflows.data.datasets import run_edit

        return run_edit(verb, work, console=console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class EditSelect(Writing):
    """Write some episodes, in the order given."""

    dataset: _One
    """Folder of a LeRobot v3.0 dataset, of twinloop or any other program."""
    episodes: str
    """Numbers (3,5,8), ranges (0:30, 40:) or episode ids, commas between them."""

    def run(self) -> Outcome:
        """Select."""
        from twinloop.dataset.edit.operations import select

        return self.said("select", lambda: select(self.dataset, self.output, self.episodes, settings=self.settings()))


@dataclass(frozen=True, kw_only=True)
class EditDelete(Writing):
    """Write all episodes but some."""

    dataset: _One
    """Folder of a LeRobot v3.0 dataset, of twinloop or any other program."""
    episodes: str
    """The ones to leave out: numbers (3,5,8), ranges (0:30, 40:) or episode ids, commas between them."""

    def run(self) -> Outcome:
        """Delete."""
        from twinloop.dataset.edit.operations import delete

        return self.said("delete", lambda: delete(self.dataset, self.output, self.episodes, settings=self.settings()))


@dataclass(frozen=True, kw_only=True)
class EditSplit(Writing):
    """Write the parts of a dataset as folders below OUTPUT."""

    dataset: _One
    """Folder of a LeRobot v3.0 dataset, of twinloop or any other program."""
    parts: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=SIZE")]
    """Each part and its size: a share (train=0.8), a number of episodes (train=40), or a list (train=0:40)."""
    by: str | None = None
    """What shall be alike in all parts: task, success, or any column of the episode table."""
    seed: int = 0
    """Which episodes go where follows from it."""

    def run(self) -> Outcome:
        """Split."""
        from twinloop.dataset.edit.operations import split

        sizes = _sizes(named("--parts", self.parts))
        return self.said(
            "split",
            lambda: split(self.dataset, self.output, **sizes, by=self.by, seed=self.seed, settings=self.settings()),
        )


@dataclass(frozen=True, kw_only=True)
class EditMerge(Writing):
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

    def run(self) -> Outcome:
        """Merge."""
        from twinloop.dataset.edit.operations import merge
        from twinloop.dataset.media.video_copy import Encoding

        encoding = None if self.codec is None else Encoding(codec=self.codec)
        settings = self.settings(encoding=encoding, same_units=self.same_units, common=self.common, twice=self.twice)
        return self.said("merge", lambda: merge(self.datasets, self.output, settings=settings))


@dataclass(frozen=True, kw_only=True)
class EditRetask(Writing):
    """Write all episodes, some of them with another task text."""

    dataset: _One
    """Folder of a LeRobot v3.0 dataset, of twinloop or any other program."""
    task: str | None = None
    """The new text of the chosen episodes."""
    episodes: str | None = None
    """Numbers, ranges or ids of those that change; by default all."""
    rename: Annotated[tuple[str, ...], tyro.conf.arg(metavar="OLD=NEW")] = ()
    """Instead of --task, new texts by old ones."""

    def run(self) -> Outcome:
        """Retask."""
        from twinloop.dataset.edit.operations import retask

        rename = named("--rename", self.rename) if self.rename else None
        return self.said(
            "retask",
            lambda: retask(
                self.dataset,
                self.output,
                task=self.task,
                episodes=self.episodes,
                rename=rename,
                settings=self.settings(),
            ),
        )


@dataclass(frozen=True, kw_only=True)
class EditReencode(Writing):
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

    def run(self) -> Outcome:
        """Encode."""
        from twinloop.dataset.edit.operations import reencode
        from twinloop.dataset.media.video_copy import Encoding

        height, width = _size(self.size) if self.size is not None else (None, None)
        encoding = Encoding(codec=self.codec, gop=self.gop, crf=self.crf, height=height, width=width)
        return self.said("reencode", lambda: reencode(self.dataset, self.output, encoding, settings=self.settings()))


@dataclass(frozen=True, kw_only=True)
class EditRebalance(Writing):
    """Write episodes so that groups have equal or given shares, by leaving some out."""

    datasets: _Several
    """Folders with the same features, ours and others'."""
    by: str
    """What groups are: task, success, source, or any column of the episode table."""
    shares: _Named = ()
    """Share of each group in the result, such as true=0.7 false=0.3; by default equal ones."""
    seed: int = 0
    """Which episodes are left out follows from it."""
    repeat: bool = False
    """Leave none out of the fullest group and repeat episodes of the others, as children of themselves."""
    same_units: bool = False
    """The joint columns mean the same in all datasets, whatever these say of their units."""

    def run(self) -> Outcome:
        """Rebalance."""
        from twinloop.dataset.edit.operations import rebalance

        shares = {k: _number(v, f"--shares {k}={v}") for k, v in named("--shares", self.shares).items()} or None
        settings = self.settings(same_units=self.same_units)
        return self.said(
            "rebalance",
            lambda: rebalance(
                self.datasets,
                self.output,
                self.by,
                shares=shares,
                seed=self.seed,
                repeat=self.repeat,
                settings=settings,
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Edit:
    """Edit datasets: always into a new folder, with provenance kept and statistics exact; see docs/edits.md."""

    action: (
        Annotated[EditSelect, tyro.conf.subcommand("select", prefix_name=False)]
        | Annotated[EditDelete, tyro.conf.subcommand("delete", prefix_name=False)]
        | Annotated[EditSplit, tyro.conf.subcommand("split", prefix_name=False)]
        | Annotated[EditMerge, tyro.conf.subcommand("merge", prefix_name=False)]
        | Annotated[EditRetask, tyro.conf.subcommand("retask", prefix_name=False)]
        | Annotated[EditReencode, tyro.conf.subcommand("reencode", prefix_name=False)]
        | Annotated[EditRebalance, tyro.conf.subcommand("rebalance", prefix_name=False)]
    )

    @property
    def json(self) -> bool:
        """See the action."""
        return self.action.json

    def run(self) -> Outcome:
        """Run the action."""
        return self.action.run()


def named(option: str, words: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` words by name.

    Raises:
        InputError: one is not written so, or a name is there twice.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or name in found:
            raise InputError(f"{option} {word}: give each name once, as NAME=VALUE.")
        found[name] = value
    return found


def _sizes(parts: Mapping[str, str]) -> dict[str, Any]:
    """Which way to split the sizes of parts mean: whole numbers, shares with a point, or lists.

    One whole number in a list of one episode is a count; write 7:8 to mean episode 7.
    """
    if not parts:
        raise InputError("Name the parts, as in --parts train=0.8 val=0.2.")
    if all(text.isdigit() for text in parts.values()):
        return {"counts": {name: int(text) for name, text in parts.items()}}
    if all("." in text for text in parts.values()):
        return {"shares": {name: _number(text, f"--parts {name}={text}") for name, text in parts.items()}}
    return {"lists": dict(parts)}


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"{where}: {text!r} is no number.") from error


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    if not (height.isdigit() and width.isdigit()):
        raise InputError(f"--size {text}: give HEIGHTxWIDTH in pixels, such as 240x320.")
    return int(height), int(width)
