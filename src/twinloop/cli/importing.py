"""The command that turns a robot's log into a dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome, Reading, console


@dataclass(frozen=True, kw_only=True)
class Import:
    """Turn a robot's log into a LeRobot v3.0 dataset; a log that does not say its units is asked for them."""

    log: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="LOG")]]
    """A LeRobot v2.1 or v3.0 folder, an Arrow or CSV file, or the name of a public set."""
    output: Path
    """Folder of the dataset."""
    reading: Reading = field(default_factory=Reading)
    task: str = ""
    """What the robot was doing, where the log does not say: a sentence for language-conditioned policies."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Import."""
        from twinloop.loop.logs import import_log

        figures = import_log(self.log, self.output, **vars(self.reading), task=self.task)
        console(json=self.json).print(
            f"{figures['episodes']} episodes, {figures['frames']} frames at {figures['fps']} Hz "
            f"in {figures['units']}: {self.output}"
        )
        return figures, 0
