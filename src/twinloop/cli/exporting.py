"""The command that takes a dataset out into another format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class Export:
    """Export a LeRobot folder (v3.0 or v2.1, anybody's) to another format; docs/exchange.md says what survives.

    Formats are looked up in `dataset/export/formats.py`, one line each: lerobot (v3.0), lerobot-v2 (v2.1), groot, …
    """

    format: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FORMAT")]]
    """lerobot, lerobot-v2, groot, robomimic, mcap, rerun, or card for the dataset card alone."""
    dataset: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DATASET")]]
    """Folder of the dataset."""
    output: Path | None = None
    """Folder (or file, where the format is one) to write; a card goes to README.md of the dataset by default."""
    episodes: str | None = None
    """Which episodes, as in 0,2-5,9; by default all."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """What the format lets one set, such as spans=each (groot) or repo_id=USER/NAME (card)."""
    verify: bool = False
    """Compare ten frames at random with the source: exit with 1 unless numbers and pictures are the same."""
    workspace: Path | None = None
    """For the card: the workspace whose labels and scores it counts; by default the nearest one above the dataset."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Export."""
        from twinloop.core.errors import InputError
        from twinloop.workflows.data.export import run_export

        if self.format == "card":
            return self._card()
        if self.output is None:
            raise InputError(f"Nothing to do: give --output, where the {self.format} export is written.")
        figures = run_export(
            self.format,
            self.dataset,
            self.output,
            episodes=self.episodes,
            settings=self.set,
            verify=self.verify,
        )
        out = console(json=self.json)
        out.print(
            f"{figures['episodes']} episodes, {figures['frames']} frames, {figures['bytes'] / 1e6:.1f} MB in "
            f"{figures['files']} files: {self.output}"
        )
        for note in figures["notes"]:
            out.print(f"  {note}", style="dim")
        verification = figures.get("verification")
        if verification:
            out.print(verification["text"])
        return figures, 0 if verification is None or verification["accepted"] else 1

    def _card(self) -> Outcome:
        from twinloop.core.errors import InputError
        from twinloop.workflows.data.export import parsed_settings, run_card

        if self.episodes is not None or self.verify:
            raise InputError("A card is of the whole dataset and nothing is compared: leave --episodes and --verify.")
        figures = run_card(self.dataset, self.output, parsed_settings(self.set), workspace=self.workspace)
        console(json=self.json).print(f"{figures['output']}: {', '.join(figures['sections'])}")
        return figures, 0
