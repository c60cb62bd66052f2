"""The commands, one dataclass each. `run` prints for people and returns the figures and the exit code."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import tyro
from rich.console import Console

from twinloop.core.console import SafeConsole

Figures = Mapping[str, Any]
Outcome = tuple[Figures, int]

_NAMED = 20  # files that were left out; --json names all
_PIPED = 120  # columns where nobody says how many there are: tables of parameters do not fit in 80


class Command(Protocol):
    """What every command offers."""

    @property
    def json(self) -> bool:
        """Whether to end with one line of JSON."""
        ...

    def run(self) -> Outcome:
        """Do it."""
        ...


def console(*, json: bool) -> Console:
    """Where figures for people go: standard output, or standard error where that is kept for JSON."""
    made = SafeConsole(stderr=json, highlight=False, markup=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _PIPED
    return made


def print_left_out(out: Console, names: Sequence[str]) -> None:
    """Name the files that belong to no dataset and were not taken."""
    shown = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    out.print(f"Left out {len(names)} files that belong to no dataset: {shown}")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a log does not say of itself."""

    units: str | None = None
    """Unit of the joint columns where the log does not say: deg, rad, range_m100_100, range_0_100; or one per joint."""
    joints: str | None = None
    """Joint names, comma separated, where the log has none."""
    calibration: Path | None = None
    """LeRobot's calibration.json, which gives ±100 its radians."""
    topics: str | None = None
    """Roles of a ROS recording's topics: state=/joint_states,command=/arm/commands,imu:SITE=/imu; none for no topic."""
    describe: Path | None = None
    """A YAML file that says what the columns of a CSV file are; by default the one beside it."""
    layout: str | None = None
    """LOG is a folder laid out like this public set."""


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The loop once, in a few minutes: a real log, a calibrated twin, a randomized and verified dataset, a report."""

    output: Path = Path("demo-output")
    """Folder for everything the demo makes."""
    seed: int = 0
    """Run seed."""
    workers: int = 0
    """Processes; 0 takes every core."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Run the demo."""
        from twinloop.workflows.demo.demo import run_demo

        return run_demo(self.output, seed=self.seed, workers=self.workers, console=console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Generate a randomized dataset of an expert's successful episodes from a YAML file."""

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """What to generate: scene, randomization, rollout, and optionally render."""
    output: str
    """Folder of the dataset, or an address such as s3://bucket/prefix; pixels, if asked for, go to OUTPUT-images."""
    episodes: int | None = None
    """Attempts, instead of parallel_envs × episodes_per_env; the successes among them are kept."""
    seed: int | None = None
    """Run seed, instead of the file's."""
    workers: int = 0
    """Processes; 0 takes every core, of this machine or the cluster. The bytes written do not depend on it."""
    randomize_from: Path | None = None
    """Folder of an identify run: draw from what it found, instead of the file's randomization; see docs/ranges.md."""
    resume: bool = False
    """Go on from a run that was stopped."""
    keep: Literal["success", "all"] = "success"
    """Keep successful episodes only, or all of them, marked."""
    engine: str = "local"
    """Where worlds run: local, ray (this machine, or the cluster of RAY_ADDRESS) or ray:HOST:PORT."""
    backend: str | None = None
    """How the worlds run, instead of the file's rollout.backend."""
    profile: bool = False
    """Show where the time goes, step by step."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Generate."""
        from twinloop.workflows.generate.generate import run_generate

        figures = run_generate(
            self.file,
            self.output,
            episodes=self.episodes,
            seed=self.seed,
            workers=self.workers,
            resume=self.resume,
            keep=self.keep,
            backend=self.backend,
            engine=self.engine,
            profile=self.profile,
            randomize_from=self.randomize_from,
            console=console(json=self.json),
        )
        return figures, 0


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Bring a dataset from a store into a local folder, byte for byte; again to bring the folder up to date."""

    address: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ADDRESS")]]
    """Where it was generated to, such as s3://bucket/prefix."""
    output: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]]
    """Folder for it."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Fetch."""
        from twinloop.dataset.storage.targets import fetch_dataset

        figures = fetch_dataset(self.address, self.output)
        console(json=self.json).print(
            f"{figures['episodes']} episodes, {figures['frames']} frames; {figures['downloaded']} of "
            f"{figures['files']} files downloaded: {self.output}"
        )
        if figures["left_out"]:
            print_left_out(console(json=self.json), figures["left_out"])
        return figures, 0


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Simulate a stored episode again from its provenance and recorded commands, and compare the states."""

    dataset: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]]
    """Folder of a generated dataset."""
    episode: tyro.conf.Positional[Annotated[int, tyro.conf.arg(metavar="EPISODE")]]
    """Its episode_index."""
    aside: bool = False
    """EPISODE is the number of an attempt whose world was lost and set aside."""
    verify: bool = False
    """Exit with 1 unless the states are equal bit for bit."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Replay."""
        from twinloop.generate import replay_aside, replay_episode

        result = (replay_aside if self.aside else replay_episode)(self.dataset, self.episode)
        console(json=self.json).print(result.line())
        return result.to_json(), 1 if self.verify and not result.equal else 0


@dataclass(frozen=True, kw_only=True)
class TwinCheck:
    """Does the twin hold up: penetration, grasp, delay, stability, energy, convergence."""

    twin: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TWIN")]]
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Check."""
        from twinloop.checks import run_checks

        out = console(json=self.json)
        report = run_checks(self.twin, progress=lambda check: out.print(check.line()))
        return report.to_json(), 0 if report.passed else 1


@dataclass(frozen=True, kw_only=True)
class TwinShow:
    """Every parameter of a twin: unit, nominal value, bounds, default range and its source."""

    twin: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TWIN")]]
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Show."""
        from twinloop.workflows.twin.parameters import show_twin

        return show_twin(self.twin, console(json=self.json)), 0


@dataclass(frozen=True, kw_only=True)
class Twin:
    """Look at a twin."""

    action: (
        Annotated[TwinCheck, tyro.conf.subcommand("check", prefix_name=False)]
        | Annotated[TwinShow, tyro.conf.subcommand("show", prefix_name=False)]
    )

    @property
    def json(self) -> bool:
        """See the action."""
        return self.action.json

    def run(self) -> Outcome:
        """Run the action."""
        return self.action.run()


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """What this machine can do: renderers, validators, cores, data, and the command that adds what is missing."""

    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Examine."""
        from twinloop.workflows.doctor import run_doctor

        return run_doctor(console(json=self.json)), 0
