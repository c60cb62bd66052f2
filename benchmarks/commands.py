"""The commands of ``python -m benchmarks``: measurements of this machine and of the engine, one dataclass each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.studies import Studies
from twinloop.cli.commands import Command, Outcome, console
from twinloop.cli.parser import Program
from twinloop.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class BenchSpeed:
    """How fast the engine is on this machine: generation, writing, rendering, environments, catalog and more."""

    write: Path | None = None
    """A page whose table between the marks is replaced, such as docs/evidence/performance.md."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure everything; the figures are also kept in ``bench-output/result.json``."""
        from benchmarks.speed.run import run_bench_speed

        return run_bench_speed(console(json=self.json), page=self.write), 0


@dataclass(frozen=True, kw_only=True)
class BenchStudy:
    """A group of studies, each of which is a table."""

    only: tuple[str, ...] = ()
    """Areas or names of studies; default all."""
    repetitions: int | None = None
    """Repetitions behind each row, instead of the number that its table was made with."""
    seed: int = 0
    """Run seed."""
    workers: int = 0
    """Processes; 0 takes every core."""
    write: Path | None = None
    """The folder of the pages that take the tables between their marks, such as docs."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def studied(self, studies: Studies) -> Outcome:
        """Run the studies that were asked for."""
        figures = studies.run(
            console(json=self.json),
            only=self.only,
            repetitions=self.repetitions,
            seed=self.seed,
            workers=self.workers,
            docs=self.write,
        )
        return figures, 0


@dataclass(frozen=True, kw_only=True)
class BenchGpu:
    """How fast worlds run and are rendered on a GPU: the ratio to the bare mujoco_warp step loop on the same model."""

    device: str = "cuda"
    """Warp's name of the device: cuda, cuda:1, or cpu to try the same code without a GPU."""
    worlds: str = "1,4,16,64,256,1024,4096,16384"
    """Numbers of worlds, comma separated; pictures are made of up to 4096."""
    twin: str = "so101_tabletop"
    """A built-in twin with the task pick_and_place, or a twin YAML."""
    rounds: int = 3
    """Rounds of ours and the bare loop in turn; the table shows medians."""
    any_order: bool = False
    """Let the GPU add in any order, here and in the bare loop: faster, but a run does not repeat bit for bit."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from benchmarks.speed.gpu import PICTURE_WORLDS, run_bench_gpu, run_bench_pictures

        worlds = _numbers(self.worlds)
        same = {"device": self.device, "twin": self.twin, "rounds": self.rounds}
        shown = console(json=self.json)
        figures = run_bench_gpu(shown, worlds=worlds, deterministic=not self.any_order, **same)
        few = [count for count in worlds if count <= max(PICTURE_WORLDS)]
        if few:
            figures["pictures"] = run_bench_pictures(shown, worlds=few, **same)
        return figures, 0


@dataclass(frozen=True, kw_only=True)
class BenchRenderers:
    """How far the renderers that work here agree on silhouettes, depth, ids, normals and colours of built-in twins."""

    frames: int = 3
    """States of each twin."""
    write: Path | None = None
    """A page that takes the tables between its two marks, such as docs/evidence/rendering.md."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Compare."""
        from benchmarks.error_rates.renderers import run_bench_renderers

        return run_bench_renderers(console(json=self.json), frames=self.frames, page=self.write), 0


@dataclass(frozen=True, kw_only=True)
class BenchReal:
    """Fit twins to public sets of real measurements and score them on what the fits have not seen.

    Sets are looked for as always (TWINLOOP_DATA, then their public addresses) and split by a rule of their own; those
    that cannot be reached are named and left out. With --train and --test, everything in one folder is fitted and
    everything in the other is scored.
    """

    only: tuple[str, ...] = ()
    """Names of sets; default all."""
    train: Path | None = None
    """Folder that holds the sets' folders, to fit on."""
    test: Path | None = None
    """Folder of the same layout, to score on."""
    threads: int = 0
    """C threads; 0 takes every core."""
    write: Path | None = None
    """A page that takes the table between its two marks, such as docs/evidence/real_data.md."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Fit and score."""
        from benchmarks.real_data.run import run_bench_real

        figures = run_bench_real(
            console(json=self.json),
            only=self.only,
            train=self.train,
            test=self.test,
            nthread=self.threads,
            page=self.write,
        )
        return figures, 0


@dataclass(frozen=True, kw_only=True)
class BenchLogs:
    """How many planted defects the checks of logs find, in virtual robots' and real logs, and how often they err."""

    trials: int = 2
    """How often each defect is planted into each log."""
    only: tuple[str, ...] = ()
    """Names of logs, such as so101_pick_place_tape or 'virtual so101_tabletop'; default all that are at hand."""
    seed: int = 0
    """Run seed."""
    write: Path | None = None
    """A page that takes the tables between its two marks, such as docs/evidence/curation.md."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Plant and look."""
        from benchmarks.error_rates.logs.run import run_bench_logs

        out = console(json=self.json)
        return run_bench_logs(out, trials=self.trials, seed=self.seed, only=self.only, page=self.write), 0


@dataclass(frozen=True, kw_only=True)
class BenchCoverage:
    """How often intervals of identified parameters hold the planted value, over logs with correlated noise.

    A position servo and a double pendulum, with twins that are right and with twins that lack a known part of the
    truth, beside the intervals of plain least squares.
    """

    only: tuple[str, ...] = ()
    """Words of the names of cases, such as 'pendulum'; default all."""
    repetitions: int = 200
    """Logs of each case."""
    threads: int = 0
    """C threads; 0 takes every core."""
    write: Path | None = None
    """A page that takes the tables between its two marks, such as docs/evidence/identification.md."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from benchmarks.error_rates.coverage.run import run_bench_coverage

        figures = run_bench_coverage(
            console(json=self.json),
            only=self.only,
            repetitions=self.repetitions,
            nthread=self.threads,
            page=self.write,
        )
        return figures, 0


@dataclass(frozen=True, kw_only=True)
class BenchGap(BenchStudy):
    """How often the tests of the gap err, how often its intervals hold the truth, and what they can see: by simulation.

    Each table goes to its own page of the documentation.
    """

    def run(self) -> Outcome:
        """Simulate."""
        from benchmarks.error_rates.studies import GAP

        return self.studied(GAP)


@dataclass(frozen=True, kw_only=True)
class BenchGate(BenchStudy):
    """How often the gate and the canary err, and how many trials they take: simulated releases, some of equals."""

    def run(self) -> Outcome:
        """Simulate."""
        from benchmarks.error_rates.studies import GATE

        return self.studied(GATE)


@dataclass(frozen=True, kw_only=True)
class BenchQuality(BenchStudy):
    """How many planted defects the checks of episodes find, by kind and size, and what they say against good data."""

    def run(self) -> Outcome:
        """Plant and look."""
        from benchmarks.error_rates.studies import QUALITY

        return self.studied(QUALITY)


@dataclass(frozen=True, kw_only=True)
class BenchRare(BenchStudy):
    """How far to trust a search for rare failures: searches of failures whose rate is known."""

    def run(self) -> Outcome:
        """Simulate."""
        from benchmarks.error_rates.studies import RARE

        return self.studied(RARE)


@dataclass(frozen=True, kw_only=True)
class BenchMonitor:
    """What the monitor finds of faults planted into virtual robots, how late and as what; its false alarms."""

    small: bool = False
    """Few episodes of one robot, without pictures: whether it works, not how well."""
    policy: Path | None = None
    """A policy's folder, in the place of one that is trained here."""
    seed: int = 0
    """Run seed."""
    workers: int = 0
    """Processes; 0 takes every core."""
    write: Path | None = None
    """The folder of the page that takes the tables between its marks, such as docs."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Plant and watch."""
        from benchmarks.error_rates.monitor.run import run_bench_monitor

        figures = run_bench_monitor(
            console(json=self.json),
            small=self.small,
            policy=self.policy,
            seed=self.seed,
            workers=self.workers,
            docs=self.write,
        )
        return figures, 0


@dataclass(frozen=True, kw_only=True)
class BenchPolicies:
    """How well twins of a real arm predict what its controllers do: the pendubot of RealAIGym.

    The arm is identified from its public logs, its controllers are re-implemented, and each is scored in twins from the
    leaderboard's own to draws from what was identified. Needs the sets dfki_double_pendulum and
    dfki_double_pendulum_rollouts (TWINLOOP_DATA, else their public address).
    """

    worlds: int = 40
    """Simulated rollouts of each controller in each twin."""
    seed: int = 0
    """Run seed."""
    threads: int = 0
    """C threads; 0 takes every core."""
    write: Path | None = None
    """A page that takes the tables between its two marks, such as docs/evidence/real_data.md."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Identify, score, compare."""
        from benchmarks.predictivity.run import run_bench_policies

        shown = console(json=self.json)
        figures = run_bench_policies(shown, worlds=self.worlds, seed=self.seed, nthread=self.threads, page=self.write)
        return figures, 0


@dataclass(frozen=True, kw_only=True)
class BenchTransfer:
    """Success of policies on virtual robots that the nominal twin never was, by what they were trained on.

    Nominal twin, hand-written randomization, identified twin, randomization from the identified distribution, that
    and some demonstrations on the robot, those demonstrations alone. A run that was interrupted goes on.
    """

    output: Path
    """Folder for demonstrations, policies and trials, result.json and report.html."""
    robots: int = 5
    """Virtual robots."""
    seeds: int = 3
    """Training runs per condition and robot."""
    episodes: int = 30
    """Trials of each policy on each robot."""
    demos: int = 300
    """Simulated demonstrations that are attempted per source."""
    real: int = 10
    """Demonstrations on each virtual robot."""
    steps: int = 2000
    """Training steps."""
    batch: int = 256
    """Samples per training step; a picture weighs a hundred times as much as a state."""
    log: int = 6
    """Episodes of teleoperation that each robot is identified from."""
    shake: float = 0.0
    """Standard deviation of what is added to the script's commands while it shows, in rad (DART); 0 for nothing."""
    sees: Literal["scene", "tool"] = "scene"
    """What a tracker tells policies: where things lie, or the tool as well."""
    conditions: str = "1,2,3,4,5,6"
    """Which conditions, separated by commas."""
    images: bool = False
    """Policies see pictures of the front camera in place of what a tracker sees; takes hours."""
    workers: int = 0
    """Processes; 0 takes every core."""
    write: Path | None = None
    """The folder of the page that takes the tables between its marks, such as docs."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from benchmarks.transfer.run import run_bench_transfer
        from twinloop.workflows.demo.virtual_robots.settings import TransferRecipe, TransferSettings

        settings = TransferSettings(
            robots=self.robots,
            seeds=self.seeds,
            episodes=self.episodes,
            demos=self.demos,
            real=self.real,
            steps=self.steps,
            log=self.log,
            conditions=_conditions(self.conditions),
            images=self.images,
            recipe=TransferRecipe(shake=self.shake, sees=self.sees, batch=self.batch),
        )
        figures = run_bench_transfer(
            console(json=self.json), settings, self.output, workers=self.workers, docs=self.write
        )
        return figures, 0


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise InputError(f"--worlds {text}: give whole numbers separated by commas, such as 1,64,4096.") from error


def _conditions(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise InputError(f"--conditions {text}: give numbers from 1 to 6 separated by commas, such as 1,4.") from error


PROGRAM = Program(
    name="python -m benchmarks",
    description="Measurements of this machine and of the engine, one table each.",
    stages={
        "Benchmarks": (
            Command("speed", BenchSpeed),
            Command("gpu", BenchGpu),
            Command("renderers", BenchRenderers),
            Command("real", BenchReal),
            Command("coverage", BenchCoverage),
            Command("policies", BenchPolicies),
            Command("logs", BenchLogs),
            Command("gap", BenchGap),
            Command("gate", BenchGate),
            Command("monitor", BenchMonitor),
            Command("rare", BenchRare),
            Command("quality", BenchQuality),
            Command("transfer", BenchTransfer),
        )
    },
)
