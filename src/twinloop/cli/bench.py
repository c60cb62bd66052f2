"""The command ``twinloop bench``, one measurement each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.bench_gate import BenchGate
from twinloop.cli.bench_monitor import BenchMonitor
from twinloop.cli.bench_policies import BenchPolicies
from twinloop.cli.bench_quality import BenchQuality
from twinloop.cli.bench_rare import BenchRare
from twinloop.cli.bench_study import BenchStudy
from twinloop.cli.bench_transfer import BenchTransfer
from twinloop.cli.commands import Outcome, console
from twinloop.core.errors import InputError


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
        from twinloop.loop.bench import run_bench_gpu
        from twinloop.loop.bench_pictures import WORLDS, run_bench_pictures

        worlds = _numbers(self.worlds)
        same = {"device": self.device, "twin": self.twin, "rounds": self.rounds}
        shown = console(json=self.json)
        figures = run_bench_gpu(shown, worlds=worlds, deterministic=not self.any_order, **same)
        few = [count for count in worlds if count <= max(WORLDS)]
        if few:
            figures["pictures"] = run_bench_pictures(shown, worlds=few, **same)
        return figures, 0


@dataclass(frozen=True, kw_only=True)
class BenchRenderers:
    """How far the renderers that work here agree on silhouettes, depth, ids, normals and colours of built-in twins."""

    frames: int = 3
    """States of each twin."""
    write: Path | None = None
    """A page that takes the tables between its two marks, such as docs/rendering.md."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Compare."""
        from twinloop.loop.agreement import run_bench_renderers

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
    """A page that takes the table between its two marks, such as docs/real_data.md."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Fit and score."""
        from twinloop.loop.real.run import run_bench_real

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
    """A page that takes the tables between its two marks, such as docs/log_checks.md."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Plant and look."""
        from twinloop.loop.log_check_bench import run_bench_logs

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
    """A page that takes the tables between its two marks, such as docs/uncertainty.md."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from twinloop.loop.bench_coverage import run_bench_coverage

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
        from twinloop.loop.gap_study.run import run_bench_gap

        return self.studied(run_bench_gap)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measurements of this machine and of the engine, one table each."""

    action: (
        Annotated[BenchGpu, tyro.conf.subcommand("gpu", prefix_name=False)]
        | Annotated[BenchRenderers, tyro.conf.subcommand("renderers", prefix_name=False)]
        | Annotated[BenchReal, tyro.conf.subcommand("real", prefix_name=False)]
        | Annotated[BenchCoverage, tyro.conf.subcommand("coverage", prefix_name=False)]
        | Annotated[BenchPolicies, tyro.conf.subcommand("policies", prefix_name=False)]
        | Annotated[BenchLogs, tyro.conf.subcommand("logs", prefix_name=False)]
        | Annotated[BenchGap, tyro.conf.subcommand("gap", prefix_name=False)]
        | Annotated[BenchGate, tyro.conf.subcommand("gate", prefix_name=False)]
        | Annotated[BenchMonitor, tyro.conf.subcommand("monitor", prefix_name=False)]
        | Annotated[BenchRare, tyro.conf.subcommand("rare", prefix_name=False)]
        | Annotated[BenchQuality, tyro.conf.subcommand("quality", prefix_name=False)]
        | Annotated[BenchTransfer, tyro.conf.subcommand("transfer", prefix_name=False)]
    )

    @property
    def json(self) -> bool:
        """See the action."""
        return self.action.json

    def run(self) -> Outcome:
        """Run the action."""
        return self.action.run()


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise InputError(f"--worlds {text}: give whole numbers separated by commas, such as 1,64,4096.") from error
