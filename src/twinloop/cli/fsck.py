"""The command ``twinloop fsck``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class Fsck:
    """Check a workspace: every part against its hash, the index against the parts, datasets against what they were."""

    deep: bool = False
    """Read every file of every dataset whole, name episodes without provenance anew, and decode videos at both ends."""
    repair: bool = False
    """Put right what can be without losing anything: make the index again, read batches again, find moved folders,
    move leftovers of ended writers aside."""
    accept: tuple[Path, ...] = ()
    """Files and folders of recorded runs that were changed on purpose: they are known as they are now."""
    compact: bool = False
    """Afterwards, join small parts into large ones."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Check."""
        from twinloop.workflows.data.workspace import run_fsck

        return run_fsck(
            self.workspace,
            deep=self.deep,
            mend=self.repair,
            join=self.compact,
            console=console(json=self.json),
            meant=self.accept,
        )
