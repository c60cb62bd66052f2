"""The commands between a dataset folder and the Hugging Face Hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from twinloop.cli.commands import Outcome, console, print_left_out


@dataclass(frozen=True, kw_only=True)
class Push:
    """Upload a dataset folder to the Hugging Face Hub as one commit, tagged so that LeRobot finds it."""

    dataset: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DATASET")]]
    """Folder of the dataset."""
    repo_id: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="REPO_ID")]]
    """USER/NAME; made if it does not exist."""
    private: bool = False
    """Make a new repository private."""
    branch: str | None = None
    """Push to this branch and leave the tag where it is."""
    allow: tuple[str, ...] = ()
    """Upload only paths that fit one of these patterns."""
    ignore: tuple[str, ...] = ()
    """Leave out paths that fit one of these patterns, such as 'twinloop/*'."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Push."""
        from twinloop.dataset.storage.hub import push_dataset

        done = push_dataset(
            self.dataset,
            self.repo_id,
            private=self.private,
            branch=self.branch,
            allow=self.allow,
            ignore=self.ignore,
        )
        tag = f", tag {done.tag}" if done.tag else ""
        console(json=self.json).print(
            f"{done.files} files, {done.bytes / 1e6:.1f} MB pushed to {done.repo_id} ({done.branch}{tag}): {done.url}"
        )
        return _figures("push", vars(done)), 0


@dataclass(frozen=True, kw_only=True)
class Pull:
    """Download a dataset from the Hugging Face Hub into a new folder, every file verified by its hash."""

    repo_id: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="REPO_ID")]]
    """USER/NAME."""
    output: Path
    """Folder for it, absent or empty."""
    revision: str | None = None
    """Branch, tag or commit; by default the main branch."""
    allow: tuple[str, ...] = ()
    """Download only paths that fit one of these patterns."""
    ignore: tuple[str, ...] = ()
    """Leave out paths that fit one of these patterns, such as 'videos/*'."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Pull."""
        from twinloop.dataset.storage.hub import pull_dataset

        done = pull_dataset(self.repo_id, self.output, revision=self.revision, allow=self.allow, ignore=self.ignore)
        console(json=self.json).print(
            f"{done.files} files, {done.bytes / 1e6:.1f} MB of {done.repo_id} at {done.commit[:12]}, verified: "
            f"{done.output}"
        )
        if done.left_out:
            print_left_out(console(json=self.json), done.left_out)
        return _figures("pull", vars(done)), 0


def _figures(verb: str, values: dict[str, Any]) -> dict[str, Any]:
    return {"schema": 1, "verb": verb, **values}
