"""Define the commands of ``python -m benchmarks``, one dataclass per command; its fields are the command's options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import tyro

from benchmarks.studies import Studies
from benchmarks.transfer.pixel_settings import PixelSettings, PolicyKind
from benchmarks.transfer.settings import FIRST_MEMORY, MEMORY, NUMBERS, TRANSFER, Family, TransferSettings
from twinloop.cli.commands import Command, Outcome, make_console
from twinloop.cli.parser import Program
from twinloop.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class BenchSpeed:
    """Measure the speed of twinloop on this machine: generation, writing, rendering, environments, catalog and more."""

    write: Path | None = None
    """Markdown page in which the table between the two marker comments is replaced, e.g. docs/evidence/performance.md.
    """
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure everything, and also write the metrics to ``bench-output/result.json``."""
        from benchmarks.speed.run import run_bench_speed

        return run_bench_speed(make_console(json=self.json), page=self.write), 0


@dataclass(frozen=True, kw_only=True)
class BenchStudy:
    """Options of a command that runs a group of studies. Each study makes one table."""

    only: tuple[str, ...] = ()
    """Areas or names of the studies to run. Default: all."""
    repetitions: int | None = None
    """Number of repetitions per table row. Default: the number of the published table."""
    seed: int = 0
    """Run seed."""
    workers: int = 0
    """Number of processes; 0 uses every core."""
    write: Path | None = None
    """Documentation folder, e.g. docs. The tables in its pages are replaced."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run_studies(self, studies: Studies) -> Outcome:
        """Run the studies that ``only`` selects."""
        metrics = studies.run(
            make_console(json=self.json),
            only=self.only,
            repetitions=self.repetitions,
            seed=self.seed,
            workers=self.workers,
            docs=self.write,
        )
        return metrics, 0


@dataclass(frozen=True, kw_only=True)
class BenchGpu:
    """Measure simulation and rendering speed on a GPU, as a ratio to the bare mujoco_warp step loop."""

    device: str = "cuda"
    """Name of the Warp device: cuda, cuda:1, or cpu to try the same code without a GPU."""
    worlds: str = "1,4,16,64,256,1024,4096,16384"
    """Numbers of worlds, separated by commas. Images are rendered for at most 4096 worlds."""
    twin: str = "so101_tabletop"
    """A built-in twin with the task pick_and_place, or the path of a twin YAML."""
    rounds: int = 3
    """Number of rounds, each with one run of twinloop and one of the bare loop. The table has medians over rounds."""
    any_order: bool = False
    """Allow non-deterministic summation order on the GPU, here and in the bare loop. Faster, but runs differ in the
    last bits.
    """
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure simulation steps and, for the numbers of worlds that are not too large, images."""
        from benchmarks.speed.gpu import IMAGE_WORLDS, run_bench_gpu, run_bench_images

        worlds = _numbers(self.worlds)
        same = {"device": self.device, "twin": self.twin, "rounds": self.rounds}
        out = make_console(json=self.json)
        metrics = run_bench_gpu(out, worlds=worlds, deterministic=not self.any_order, **same)
        image_worlds = [count for count in worlds if count <= max(IMAGE_WORLDS)]
        if image_worlds:
            metrics["images"] = run_bench_images(out, worlds=image_worlds, **same)
        return metrics, 0


@dataclass(frozen=True, kw_only=True)
class BenchRenderers:
    """Measure how well the available renderers agree on silhouettes, depth, ids, normals and colours."""

    frames: int = 3
    """Number of states of each twin that are rendered."""
    write: Path | None = None
    """Markdown page in which the tables between the two marker comments are replaced, e.g. docs/evidence/rendering.md.
    """
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Render the twins with every available renderer and compare the images."""
        from benchmarks.error_rates.renderers import run_bench_renderers

        return run_bench_renderers(make_console(json=self.json), frames=self.frames, page=self.write), 0


@dataclass(frozen=True, kw_only=True)
class BenchReal:
    """Fit twins to public data sets of real measurements and score them on held-out episodes.

    Each data set is searched in TWINLOOP_DATA, then at its public address, and is split by its own rule. Data sets that
    cannot be reached are listed and skipped. If --train and --test are given, the fit uses all data in the first folder
    and the score all data in the second.
    """

    only: tuple[str, ...] = ()
    """Names of the data sets. Default: all."""
    train: Path | None = None
    """Folder with one subfolder per data set, to fit on."""
    test: Path | None = None
    """Folder of the same layout, to score on."""
    threads: int = 0
    """Number of C threads; 0 uses every core."""
    write: Path | None = None
    """Markdown page in which the table between the two marker comments is replaced, e.g. docs/evidence/real_data.md."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Fit the twins and score them."""
        from benchmarks.real_data.run import run_bench_real

        metrics = run_bench_real(
            make_console(json=self.json),
            only=self.only,
            train=self.train,
            test=self.test,
            nthread=self.threads,
            page=self.write,
        )
        return metrics, 0


@dataclass(frozen=True, kw_only=True)
class BenchLogs:
    """Measure how many planted defects the log checks detect, and their false alarms, in simulated and real logs."""

    trials: int = 2
    """Number of times that each defect is planted into each log."""
    only: tuple[str, ...] = ()
    """Names of logs, e.g. so101_pick_place_tape or 'virtual so101_tabletop'. Default: all that can be loaded."""
    seed: int = 0
    """Run seed."""
    write: Path | None = None
    """Markdown page in which the tables between the two marker comments are replaced, e.g. docs/evidence/curation.md.
    """
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Plant the defects and check the logs."""
        from benchmarks.error_rates.logs.run import run_bench_logs

        out = make_console(json=self.json)
        return run_bench_logs(out, trials=self.trials, seed=self.seed, only=self.only, page=self.write), 0


@dataclass(frozen=True, kw_only=True)
class BenchCoverage:
    """Measure how often confidence intervals of identified parameters cover the true value, under correlated noise.

    The robots are a position servo and a double pendulum. Each is fitted with a correct twin and with a twin that lacks
    a known physical effect. The intervals of plain least squares are shown for comparison.
    """

    only: tuple[str, ...] = ()
    """Words that the names of the cases contain, e.g. 'pendulum'. Default: all cases."""
    repetitions: int = 200
    """Number of simulated logs per case."""
    threads: int = 0
    """Number of C threads; 0 uses every core."""
    write: Path | None = None
    """Markdown page in which the tables between the two marker comments are replaced, e.g.
    docs/evidence/identification.md.
    """
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Simulate the logs, fit them, and count the intervals that cover the true value."""
        from benchmarks.error_rates.coverage.run import run_bench_coverage

        metrics = run_bench_coverage(
            make_console(json=self.json),
            only=self.only,
            repetitions=self.repetitions,
            nthread=self.threads,
            page=self.write,
        )
        return metrics, 0


@dataclass(frozen=True, kw_only=True)
class BenchPlanted:
    """Measure how often intervals of identified parameters hold the planted values of foreign robots.

    The robots (SO-101, UR5e, Panda, a leg, a quadrotor) are simulated by other code than the twin, with three kinds of
    motion, and in some fits with an effect that the twin lacks. The study can be resumed: fits that are in the results
    file are not repeated.
    """

    results: Path = Path("bench-output/planted.jsonl")
    """File with one line per fit."""
    correct: int = 300
    """Number of fits of a twin with the right physics."""
    missing: int = 100
    """Number of fits with an effect that the twin lacks."""
    seed: int = 6000
    """First seed. Seeds from 1000 to 5014 were used while the method was written."""
    workers: int = 0
    """Number of processes; 0 uses every core."""
    write: Path | None = None
    """Markdown page in which the tables between the two marker comments are replaced, e.g.
    docs/evidence/identification.md.
    """
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Simulate the logs, fit them, and count the intervals that hold the planted value."""
        from benchmarks.planted.run import run_bench_planted

        metrics = run_bench_planted(
            make_console(json=self.json),
            results=self.results,
            correct=self.correct,
            missing=self.missing,
            seed=self.seed,
            workers=self.workers,
            page=self.write,
        )
        return metrics, 0


@dataclass(frozen=True, kw_only=True)
class BenchGap(BenchStudy):
    """Measure false-positive rate, power and interval coverage of the sim-to-real gap's statistics, by simulation.

    Each table goes to its own page of the documentation.
    """

    def run(self) -> Outcome:
        """Run the simulations."""
        from benchmarks.error_rates.studies import GAP

        return self.run_studies(GAP)


@dataclass(frozen=True, kw_only=True)
class BenchGate(BenchStudy):
    """Measure error rates of the release gate and the canary stage, and the trials they need, on simulated releases."""

    def run(self) -> Outcome:
        """Run the simulations."""
        from benchmarks.error_rates.studies import GATE

        return self.run_studies(GATE)


@dataclass(frozen=True, kw_only=True)
class BenchQuality(BenchStudy):
    """Measure how many planted defects the episode checks detect, and their false alarms on good data."""

    def run(self) -> Outcome:
        """Plant the defects and check the episodes."""
        from benchmarks.error_rates.studies import QUALITY

        return self.run_studies(QUALITY)


@dataclass(frozen=True, kw_only=True)
class BenchRare(BenchStudy):
    """Measure the accuracy of the search for rare failures, on problems whose failure rate is known."""

    def run(self) -> Outcome:
        """Run the searches."""
        from benchmarks.error_rates.studies import RARE

        return self.run_studies(RARE)


@dataclass(frozen=True, kw_only=True)
class BenchMonitor:
    """Measure power, delay, named cause and false alarms of the monitor for faults planted into virtual robots."""

    small: bool = False
    """Run few episodes of one robot, without images. This tests that the study runs; it does not measure the monitor.
    """
    policy: Path | None = None
    """Folder of a policy to use instead of training one."""
    seed: int = 0
    """Run seed."""
    workers: int = 0
    """Number of processes; 0 uses every core."""
    write: Path | None = None
    """Documentation folder, e.g. docs. The tables in its page evidence/release.md are replaced."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Plant the faults and run the monitors."""
        from benchmarks.error_rates.monitor.run import run_bench_monitor

        metrics = run_bench_monitor(
            make_console(json=self.json),
            small=self.small,
            policy=self.policy,
            seed=self.seed,
            workers=self.workers,
            docs=self.write,
        )
        return metrics, 0


@dataclass(frozen=True, kw_only=True)
class BenchPolicies:
    """Measure how well twins of a real arm predict the success of its controllers, on RealAIGym's pendubot.

    The arm is identified from its public logs and its controllers are re-implemented. Each controller is scored in
    several twins: the leaderboard's own, the identified one, and worlds drawn from the identified distribution. Needs
    the data sets dfki_double_pendulum and dfki_double_pendulum_rollouts (TWINLOOP_DATA, else their public address).
    """

    worlds: int = 40
    """Number of simulated rollouts per controller and twin."""
    seed: int = 0
    """Run seed."""
    threads: int = 0
    """Number of C threads; 0 uses every core."""
    write: Path | None = None
    """Markdown page in which the tables between the two marker comments are replaced, e.g. docs/evidence/real_data.md.
    """
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Identify the arm, score the controllers, and compare with the real rollouts."""
        from benchmarks.predictivity.run import run_bench_policies

        out = make_console(json=self.json)
        metrics = run_bench_policies(out, worlds=self.worlds, seed=self.seed, nthread=self.threads, page=self.write)
        return metrics, 0


@dataclass(frozen=True, kw_only=True)
class BenchTransfer:
    """Measure the success of policies on robots with hidden parameters, by the worlds in which they were taught.

    The worlds are: 1 nominal twin, 2 hand-written ranges, 3 identified values, 4 identified distribution, 5 half of 2
    and half of 4. An interrupted run resumes if it is started again.
    """

    output: Path
    """Folder for logs, policies, trials, result.json and report.html."""
    family: Family = "hidden"
    """Kind of robots: hidden (virtual SO-101s with effects that the twin lacks), drake (SO-101s in another physics
    engine), or ur5e (virtual UR5es that push)."""
    robots: int = TransferSettings.robots
    """Number of robots."""
    first: int = TransferSettings.first
    """Seed of the first robot. Lower seeds than the default were used to choose the recipe."""
    seeds: int = TransferSettings.seeds
    """Number of training runs per condition."""
    episodes: int = TransferSettings.episodes
    """Number of trials of each policy on each robot."""
    log: int = TransferSettings.log
    """Number of teleoperated episodes from which each robot is identified."""
    conditions: str = ",".join(map(str, TRANSFER))
    """Numbers of the conditions to run, separated by commas."""
    retraining: bool = False
    """Instead retrain a policy of the hand-written ranges from one failure on each robot."""
    pixels: bool = False
    """Instead compare policies from images; robots, trials and training runs as above."""
    look: str = PixelSettings.look
    """With --pixels: how robots and surroundings look in trials: training, filament or traced."""
    policies: str = ",".join(PixelSettings.policies)
    """With --pixels: kinds of policies, separated by commas: split, adapted, end, nominal."""
    workers: int = 0
    """Number of processes; 0 uses every core."""
    write: Path | None = None
    """Documentation folder, e.g. docs. The tables in its pages evidence/transfer.md or evidence/pixels.md are replaced.
    """
    json: bool = False
    """End with one line of JSON on standard output."""
    study: ClassVar[str] = "transfer"

    def run(self) -> Outcome:
        """Run the study."""
        from benchmarks.transfer.run import run_bench_retraining, run_bench_transfer

        if self.pixels:
            return self._compare_pixels(), 0
        settings = TransferSettings(
            family=self.family,
            robots=self.robots,
            first=self.first,
            seeds=self.seeds,
            episodes=self.episodes,
            log=self.log,
            conditions=_conditions(self.conditions),
        )
        console, given = make_console(json=self.json), {"workers": self.workers, "docs": self.write}
        if self.retraining:
            return run_bench_retraining(console, settings, self.output, **given), 0
        metrics = run_bench_transfer(console, settings, self.output, **given, study=self.study)
        return metrics, 0

    def _compare_pixels(self) -> dict[str, Any]:
        from benchmarks.transfer.run_pixels import run_bench_pixels

        if self.family == "ur5e":
            raise InputError("--pixels: robots of the family ur5e have no cameras. Choose --family hidden or drake.")
        settings = PixelSettings(
            family=self.family,
            robots=self.robots,
            first=self.first,
            seeds=self.seeds,
            episodes=self.episodes,
            look=self.look,
            policies=cast("tuple[PolicyKind, ...]", tuple(self.policies.split(","))),
        )
        console = make_console(json=self.json)
        return run_bench_pixels(console, settings, self.output, workers=self.workers, docs=self.write)


@dataclass(frozen=True, kw_only=True)
class BenchMemory(BenchTransfer):
    """Measure the effect of a memory on robots with hidden parameters: none, four observations, an encoder of history.

    The policies are taught in the same worlds, the twin's hand-written ranges (conditions 2, 6 and 7). An interrupted
    run resumes if it is started again.
    """

    first: int = FIRST_MEMORY
    """Seed of the first robot."""
    conditions: str = ",".join(map(str, MEMORY))
    """Numbers of the conditions to run, separated by commas."""
    study: ClassVar[str] = "memory"


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise InputError(f"--worlds {text}: give whole numbers separated by commas, such as 1,64,4096.") from error


def _conditions(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise InputError(
            f"--conditions {text}: give numbers from 1 to {max(NUMBERS)} separated by commas, such as 1,4."
        ) from error


@dataclass(frozen=True, kw_only=True)
class BenchLoop:
    """Close the loop on a task of the library, on virtual robots: logs, twin, gap, policies, failures, better policies.

    An interrupted run resumes if it is started again.
    """

    name: tyro.conf.Positional[str]
    """Name of the loop: press (soft tissue, to a force) or peg (insertion into a hole)."""
    output: Path
    """Folder for logs, policies, trials and result.json."""
    robots: int = 3
    """Number of robots."""
    first: int = 500
    """Seed of the first robot. Lower seeds were used to choose the settings."""
    write: Path | None = None
    """Documentation folder, e.g. docs. The tables in its page evidence/loops.md are replaced."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Run the loop on each robot."""
        from benchmarks.loops.run import run_bench_loop

        out = make_console(json=self.json)
        told = {"robots": self.robots, "first": self.first, "output": self.output, "docs": self.write}
        return run_bench_loop(out, name=self.name, **told), 0


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
            Command("planted", BenchPlanted),
            Command("policies", BenchPolicies),
            Command("logs", BenchLogs),
            Command("gap", BenchGap),
            Command("gate", BenchGate),
            Command("monitor", BenchMonitor),
            Command("rare", BenchRare),
            Command("quality", BenchQuality),
            Command("transfer", BenchTransfer),
            Command("memory", BenchMemory),
            Command("loop", BenchLoop),
        )
    },
)
