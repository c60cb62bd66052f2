"""Run `twinloop demo`: every step once, from a log to a dataset, and from a policy's failure to a better policy.

The steps from the real log to the dataset and those with policies run at the same time, in two processes: a policy is
trained on one core. The policies' process identifies its robot first, on all cores, because it takes longer.
"""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from rich.console import Console

from twinloop.catalog import Workspace
from twinloop.core.console import SafeConsole
from twinloop.core.errors import CheckFailedError, InputError, MissingDependencyError, TwinloopError
from twinloop.core.files import write_text
from twinloop.core.pool import initialize_worker
from twinloop.core.seeds import generator
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.validation import ValidationResult, validate
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.dataset.logs.sets.registry import RealDataUnavailableError
from twinloop.generate import GenerateConfig, RenderConfig, ReplayResult, replay_episode, resolve_config
from twinloop.generate.config import load_plan
from twinloop.hardware.virtual import virtual_log
from twinloop.policies.factory import require_torch
from twinloop.render import choose_renderer, contact_sheet, write_png, write_video
from twinloop.report import ReportPage
from twinloop.report.page import KeyMetric
from twinloop.twin import load_twin
from twinloop.workflows.data.logs import LogEpisodes, open_public
from twinloop.workflows.demo.policies import (
    IDENTIFIED,
    TASK,
    TWIN,
    PolicyLoopResult,
    policy_metric,
    policy_section,
    retraining_section,
    run_policy_loop,
)
from twinloop.workflows.demo.requests import DemoRequest
from twinloop.workflows.generate.generate import (
    format_rendering,
    format_states,
    open_run_engine,
    resolve_workers,
    run_images_pass,
    run_states_pass,
)
from twinloop.workflows.identify.identify import IdentifyOutcome, fit
from twinloop.workflows.run.record_command import record_command
from twinloop.workflows.run.results import write_report, write_result
from twinloop.workflows.run.sections import dataset_section, draws_section

_REPLAYS = 3


@dataclass(frozen=True, kw_only=True)
class DatasetVerification:
    """Result of the checks of the demo's datasets.

    Attributes:
        verdicts: pairs of dataset name and verdict of a validator.
        replays: comparisons of stored episodes with a repeated simulation.
        missing: messages on validators that are not installed.
    """

    verdicts: tuple[tuple[str, ValidationResult], ...]
    replays: tuple[ReplayResult, ...]
    missing: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """True if every installed validator accepted the datasets and every replay was equal."""
        return all(verdict.accepted for _, verdict in self.verdicts) and all(replay.equal for replay in self.replays)

    def rows(self) -> list[tuple[str, str]]:
        """Return pairs of a check's name and its result, for a table."""
        rows = [(f"{verdict.validator} on {name}", str(verdict)) for name, verdict in self.verdicts]
        rows += [(f"replay of {Path(r.dataset).name}", r.summary_line()) for r in self.replays]
        return rows + [("validator", text) for text in self.missing]

    def text(self) -> str:
        """Return the results as lines for people."""
        return "\n".join(f"{what}: {answer}" for what, answer in self.rows())

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary for results."""
        return {
            "passed": self.passed,
            "verdicts": [{"dataset": name, **verdict.to_json()} for name, verdict in self.verdicts],
            "replays": [replay.to_json() for replay in self.replays],
            "missing": list(self.missing),
        }


def verify(datasets: Sequence[Path], *, seed: int) -> DatasetVerification:
    """Check every dataset with all installed validators, and replay three random episodes of the first dataset.

    Args:
        datasets: folders of the datasets.
        seed: seed of the choice of episodes.
    """
    verdicts: list[tuple[str, ValidationResult]] = []
    missing: list[str] = []
    for dataset in datasets:
        try:
            verdicts += [(dataset.name, verdict) for verdict in validate(dataset)]
        except MissingDependencyError as error:
            missing.append(str(error))
    count = len(DatasetReader(datasets[0]))
    chosen = np.sort(generator(seed, "verify").choice(count, min(_REPLAYS, count), replace=False))
    replays = tuple(replay_episode(datasets[0], int(episode)) for episode in chosen)
    return DatasetVerification(verdicts=tuple(verdicts), replays=replays, missing=tuple(dict.fromkeys(missing)))


_MOMENTS = 6


def write_images(dataset: Path, output: Path) -> Path:
    """Write images of all episodes as ``contact_sheet.png`` and ``episodes.mp4``; return the sheet's path.

    Args:
        dataset: folder of a dataset with images.
        output: folder for both files.
    """
    reader = DatasetReader(dataset)
    episodes = range(len(reader))
    images, labels = [], []
    for episode in episodes:
        for camera in reader.cameras:
            moments = np.linspace(0, reader.lengths[episode] - 1, _MOMENTS).astype(int)
            images += list(reader.images(episode, camera, [int(moment) for moment in moments]))
            labels += [f"episode {episode} {camera} {moment / reader.fps:.1f} s" for moment in moments]
    sheet = output / "contact_sheet.png"
    write_png(sheet, contact_sheet(images, labels, columns=_MOMENTS))
    write_video(output / "episodes.mp4", _concatenate_views(reader, episodes), fps=round(reader.fps))
    return sheet


def _concatenate_views(reader: DatasetReader, episodes: range) -> Iterator[NDArray[np.uint8]]:
    for episode in episodes:
        views = [reader.images(episode, camera) for camera in reader.cameras]
        yield from np.concatenate(views, axis=2)


LOG = "so101_pick_place_tape"
FILE = "generate.yaml"
HOLDOUT = "last:10"
EPISODES = 16  # of the log, the last ones: with all 40, identification takes more than half of the demo's time
ATTEMPTS = 128
# A renderer without the graphics library draws about 20 images per second on two cores instead of hundreds.
RENDERS = {
    "gl": RenderConfig(cameras=["front", "wrist"], height=240, width=320, episodes=4, renderer="gl"),
    "warp": RenderConfig(cameras=["front", "wrist"], height=128, width=128, episodes=3, renderer="warp"),
}
# Held-out mean absolute error per joint of a second-order fit with delay and bias on this log, in log units.
SECOND_ORDER = (0.24, 0.81, 0.95, 0.30, 0.14, 0.71)


@dataclass(kw_only=True)
class _StepTimer:
    """Print the steps of the demo and measure their durations.

    Attributes:
        console: output for people.
        seconds: duration of each step by its name, in s.
        started: when the last step started.
    """

    console: Console
    seconds: dict[str, float] = field(default_factory=dict)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Return a context manager that prints the name of a step and measures its duration."""
        self.console.print(f"\n{name}", style="bold")
        began, self.started = time.perf_counter(), datetime.now(UTC)
        yield
        self.seconds[name] = time.perf_counter() - began

    def record(self, words: Sequence[str], metrics: Mapping[str, Any], output: Path) -> None:
        """Record the command that does the same as the last step in the workspace, and add the datasets that it made.

        Args:
            words: words of the command line.
            metrics: result of the step.
            output: folder that the step wrote.
        """
        made, ended = {**metrics, "output": str(output)}, datetime.now(UTC)
        line = record_command("makes", words, made, 0, started=self.started, ended=ended)
        if line:
            self.console.print(line, style="dim")


def run_demo(request: DemoRequest, console: Console) -> dict[str, Any]:
    """Run the demo in a folder; return its metrics.

    Raises:
        InputError: If the folder contains files that the demo did not write.
        CheckFailedError: If a validator refused a dataset, or a replayed episode differed.
    """
    _claim_demo_folder(request.output)
    began = time.perf_counter()
    clock, workers = _StepTimer(console=console), resolve_workers(request.workers)
    with _policies_in_background(request, console) as finish_policies:
        with clock.step("A log of an SO-101"):
            log = _load_log(console)
            write_log_dataset(log.episodes, request.output / "data" / "log", name=log.name, data_hash=log.hash)
            clock.record(["import", log.name, "--output", "data/log"], log.describe(), request.output / "data" / "log")
        with clock.step("Gap of the nominal twin, and identification from the log"):
            found = fit(load_twin(TWIN), log, HOLDOUT)
            console.print(found.result.text(), soft_wrap=True)
            if found.gap is not None:
                console.print("\n" + found.gap.text(), soft_wrap=True)
            identified = write_result(request.output / "identify", found.metrics())
            flags = ["--twin", TWIN, "--data", "data/log", "--holdout", HOLDOUT]
            clock.record(["identify", *flags, "--output", "identify"], identified, request.output / "identify")
        with clock.step("Simulation with identified parameters: pick and place, states"):
            config = _config(request.output, request.seed)
            with open_run_engine(config, "local", workers=workers) as engine:
                states = run_states_pass(config, request.output / "states", engine)
            console.print(format_states(states, request.output / "states"))
            flags = ["--episodes", f"{ATTEMPTS}", "--seed", f"{request.seed}"]
            clock.record(["generate", FILE, *flags, "--output", "states"], states, request.output / "states")
        with clock.step("Images rendered from the states"):
            images = _render(request.output, workers)
            console.print(format_rendering(images))
            clock.record(["render", "states", "--output", "images"], images, request.output / "images")
        with clock.step("Validation and replay of the datasets"):
            verified = verify([request.output / "states", request.output / "images"], seed=request.seed)
            console.print(verified.text())
            sheet = write_images(request.output / "images", request.output)
        loop, seconds = finish_policies()
    metrics = {
        "schema": 1,
        "verb": "demo",
        "data": log.describe(),
        "identify": identified,
        "states": states,
        "images": images,
        "verify": verified.to_json(),
        "loop": loop.to_json() if loop else None,
        "seconds": {**clock.seconds, **seconds},
        "total_seconds": time.perf_counter() - began,
    }
    console.print()
    result = write_result(request.output, metrics)
    page = ReportPage("twinloop: one pass of the loop", f"{log.label}. Twin {TWIN}, seed {request.seed}.")
    write_report(
        page,
        lambda p: _fill_report(p, found, config, states, images, verified, sheet, loop),
        request.output / "report.html",
        console,
    )
    console.print(
        f"Yield {states['yield']:.1%}, {states['timing']['episodes_per_second']:.1f} episodes/s (states), "
        f"{images['frames_per_second']:.0f} frames/s with two cameras; {metrics['total_seconds']:.0f} s in all."
    )
    console.print(f"See every episode, run and policy in a browser: twinloop studio {request.output}", soft_wrap=True)
    if not verified.passed:
        raise CheckFailedError(
            "The demo's dataset did not pass its checks; see the lines above. Please report this with the seed."
        )
    return result


def _claim_demo_folder(output: Path) -> None:
    """Create a workspace, and first delete the folder of an earlier demo if it exists.

    Raises:
        InputError: If the path is a file, or the folder contains files that the demo did not write.
    """
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; the demo needs a folder. Choose another --output.")
    if output.exists() and any(output.iterdir()):
        if not (output / ".twinloop-demo").is_file():
            raise InputError(
                f"{output} contains files that the demo did not write. Choose another folder with --output."
            )
        shutil.rmtree(output)
    Workspace.create(output, twin=TWIN, task=TASK).close()
    (output / ".twinloop-demo").touch()


def _load_log(console: Console) -> LogEpisodes:
    try:
        log = open_public(LOG)
        log = replace(log, label=f"{log.label}, the last {EPISODES} episodes", episodes=log.episodes[-EPISODES:])
    except RealDataUnavailableError as error:
        console.print(f"No real log is available, a virtual robot is used instead: {error}", soft_wrap=True)
        episodes = virtual_log(seed=1, twin=TWIN, episodes=EPISODES)
        log = LogEpisodes(
            name="virtual",
            label=f"VIRTUAL robot {episodes[0].origin}, no real log available",
            hash="",
            episodes=tuple(episodes),
        )
    frames = sum(map(len, log.episodes))
    console.print(f"{log.label}: {len(log.episodes)} episodes, {frames} frames of commands and positions")
    return log


def _config(output: Path, seed: int) -> GenerateConfig:
    value = {
        "scene": {"twin": TWIN, "task": TASK},
        "randomization": {"identified": "identify/result.json"},
        "rollout": {"parallel_envs": ATTEMPTS // 2},
    }
    write_text(output / FILE, yaml.safe_dump(value, sort_keys=False))
    return resolve_config(value, where="demo", folder=output, episodes=ATTEMPTS, seed=seed)


def _render(output: Path, workers: int) -> dict[str, Any]:
    settings = RENDERS[choose_renderer()]
    return run_images_pass(output / "states", output / "images", settings, workers=workers, resume=False)


def _fill_report(
    page: ReportPage,
    found: IdentifyOutcome,
    config: GenerateConfig,
    states: dict[str, Any],
    images: dict[str, Any],
    verified: DatasetVerification,
    sheet: Path,
    loop: PolicyLoopResult | None,
) -> None:
    source, simulated = found.log.label, f"{TWIN}, {states['attempted']} attempts"
    shown = [] if loop is None else [policy_metric(loop)]
    page.key_metrics([*shown, *_joint_error_metrics(found, source)])
    if loop is not None:
        policy_section(page, loop)
    found.page(page, target=SECOND_ORDER if found.log.name == LOG else None)
    plan = load_plan(config)
    draws_section(page, plan, plan.draw(range(states["attempted"])))
    low, high = states["yield_interval"]
    metrics = [
        KeyMetric(
            label="yield", value=f"{states['yield']:.1%}", unit=f"95 %: {low:.1%} to {high:.1%}", source=simulated
        ),
        KeyMetric(label="episodes kept", value=states["episodes"], source=simulated),
        KeyMetric(
            label="states",
            value=round(states["timing"]["episodes_per_second"], 1),
            unit="episodes/s",
            source="this run",
        ),
        KeyMetric(
            label="pixels", value=round(images["frames_per_second"]), unit="frames/s, two cameras", source="this run"
        ),
    ]
    dataset_section(page, metrics, verified.rows(), sheet)
    if loop is not None:
        retraining_section(page, loop)


_Policies = tuple[PolicyLoopResult | None, dict[str, float]]  # result, and the duration of each step in s


@contextmanager
def _policies_in_background(request: DemoRequest, console: Console) -> Generator[Callable[[], _Policies]]:
    """Start the policy part of the demo in another process, which ends with the ``with`` block.

    The block begins when that process has finished its first step, the identification of the robot. The context manager
    yields a function that prints what the process has printed so far and prints until it ends, and returns its result.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("printed", "progress")]
        for file in files:
            file.touch()
        arguments = (request, files, console.width, console.is_terminal, theirs)
        process = context.Process(target=_run_policies, args=arguments, name="policies")
        process.start()
        theirs.close()  # so that the end of the process is the end of the pipe

        def finish() -> _Policies:
            with files[0].open() as printed, files[1].open() as progress:
                done = False
                while not done:
                    done = ours.poll(0.2)
                    console.file.write(printed.read())
                    sys.stderr.write(progress.read())
            try:
                answer = ours.recv()
            except EOFError:
                process.join()
                raise TwinloopError(
                    f"The process with the policies ended with code {process.exitcode}. Is there enough memory?"
                ) from None
            if isinstance(answer, Exception):
                raise answer
            return answer

        try:
            console.print("First, a virtual robot is identified, for the steps with policies at the end.")
            while process.is_alive() and not (request.output / IDENTIFIED).exists():
                time.sleep(0.2)
            yield finish
        finally:
            process.kill()
            process.join()


def _run_policies(request: DemoRequest, files: Sequence[Path], width: int, terminal: bool, pipe: Connection) -> None:
    """Run the policy part of the demo in its folder, and send its result or its error through a pipe.

    Args:
        request: the demo's request.
        files: file for the lines of the steps, and file for the lines of the progress.
        width: width of the lines.
        terminal: whether the lines are shown on a terminal.
        pipe: connection to the other process. The result is None if torch is not installed.
    """
    initialize_worker("1")
    answer: _Policies | Exception
    with files[0].open("w", buffering=1) as printed, files[1].open("w", buffering=1) as log, redirect_stderr(log):
        console = SafeConsole(file=printed, width=width, force_terminal=terminal, highlight=False, emoji=False)
        clock = _StepTimer(console=console)
        try:
            require_torch()
            half = run_policy_loop(request.output, request.seed, console=clock.console, step=clock.step)
            answer = (replace(half, robot=replace(half.robot)), clock.seconds)  # without its cell, which has no copy
        except MissingDependencyError as error:
            clock.console.print(f"\nNo policies are trained: {error}", soft_wrap=True)
            answer = (None, clock.seconds)
        except Exception as error:  # noqa: BLE001 - sent to the parent process, which raises it
            answer = error
    pipe.send(answer)


def _joint_error_metrics(found: IdentifyOutcome, source: str) -> Sequence[KeyMetric]:
    if found.gap is None or found.gap.improvement is None:
        return []
    nominal, best = found.gap.twins["nominal"].estimate, found.gap.best.estimate
    return [
        KeyMetric(label=f"{joint}, held-out error", value=f"{before:.2f} → {after:.2f}", unit=unit, source=source)
        for joint, before, after, unit in zip(found.gap.channel_labels, nominal, best, found.gap.log_units, strict=True)
    ]
