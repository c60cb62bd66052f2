"""The command that checks a robot's log, mends it on request and turns it into a dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from twinloop.cli.commands import Outcome, Reading, console
from twinloop.core.errors import InputError

if TYPE_CHECKING:
    from twinloop.dataset.logs.checks.mending import Mending


@dataclass(frozen=True, kw_only=True)
class Mend:
    """What is changed on the way in, on request only; `--check` says what needs it."""

    drop_duplicates: bool = False
    """Leave out frames at the time of the frame before, and frames that repeat it while the robot moves."""
    drop_missing: bool = False
    """Leave out frames in which something is no number."""
    flip: tuple[str, ...] = ()
    """Turn the sign of a joint's measurement (JOINT), its command (action/JOINT), a signal or one of its columns."""
    shift: tuple[str, ...] = ()
    """Move measurements later by SECONDS, of one joint or signal by NAME=SECONDS."""
    clock_rate: float = 1.0
    """Stretch the commands' clock by this factor."""
    time_scale: float = 1.0
    """Seconds per unit of the log's times: 0.001 for milliseconds."""
    scale: tuple[str, ...] = ()
    """Multiply a signal, as NAME=FACTOR; of a pose its position."""
    quaternions: Annotated[str, tyro.conf.arg(metavar="{wxyz,xyzw}")] = "wxyz"
    """The order in which the log has its quaternions."""
    unwrap: tuple[str, ...] = ()
    """Join the turns of these joints."""
    resample: float | None = None
    """Bring the log onto a uniform grid of so many frames per second; gaps split episodes."""

    def mending(self) -> Mending:
        """As the rooms below take it."""
        from twinloop.dataset.logs.checks.mending import Mending

        if self.quaternions not in ("wxyz", "xyzw"):
            raise InputError(f"--quaternions {self.quaternions}: give wxyz or xyzw.")
        return Mending(
            time_scale=self.time_scale,
            scale=_named("--scale", self.scale),
            quaternions_xyzw=self.quaternions == "xyzw",
            flip=self.flip,
            shift=_named("--shift", self.shift, alone=True),
            clock_rate=self.clock_rate,
            unwrap=self.unwrap,
            drop_missing=self.drop_missing,
            drop_duplicates=self.drop_duplicates,
            resample_hz=self.resample,
        )


@dataclass(frozen=True, kw_only=True)
class Import:
    """Turn a robot's log into a LeRobot v3.0 dataset; a log that does not say its units is asked for them."""

    log: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="LOG")]]
    """A LeRobot v2.1 or v3.0 folder, an Arrow, CSV, HDF5 or ROS recording, a Crazyflie's log, or a public set."""
    output: Path | None = None
    """Folder of the dataset; --check alone needs none."""
    check: bool = False
    """Look for defects first: exit with 1 and import nothing where there are errors."""
    twin: str | None = None
    """The twin that the log is meant for, whose joints, ranges and inverse dynamics --check goes by."""
    reading: Reading = field(default_factory=Reading)
    mend: Mend = field(default_factory=Mend)
    task: str = ""
    """What the robot was doing, where the log does not say: a sentence for language-conditioned policies."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Check, import or both."""
        from twinloop.workflows.data.logs import import_log, run_import_check

        out, said = console(json=self.json), {**vars(self.reading), "task": self.task}
        if self.check:
            figures = run_import_check(
                self.log, twin=self.twin, output=self.output, mending=self.mend.mending(), console=out, **said
            )
            code = 0 if figures["check"]["passed"] else 1
        elif self.output is None:
            raise InputError(
                "Nothing to do: give --output DIR to import the log, --check to look for defects, or both."
            )
        else:
            figures, code = import_log(self.log, self.output, **said, mending=self.mend.mending()), 0
        if "output" in figures:
            out.print(
                f"{figures['episodes']} episodes, {figures['frames']} frames at {figures['fps']} Hz "
                f"in {figures['units']}: {self.output}"
            )
            for note in figures["notes"]:
                out.print(f"  {note}", style="dim")
        return figures, code


def _named(flag: str, words: tuple[str, ...], *, alone: bool = False) -> dict[str, float]:
    """Numbers by name from words ``NAME=NUMBER``, or by "" from a number alone."""
    found: dict[str, float] = {}
    for word in words:
        name, _, number = word.rpartition("=")
        try:
            found[name] = float(number)
        except ValueError:
            raise InputError(
                f"{flag} {word}: give NAME=NUMBER{', or a number for all joints' if alone else ''}."
            ) from None
        if not name and not alone:
            raise InputError(f"{flag} {word}: name what the number is for, as NAME={word}.")
    return found
