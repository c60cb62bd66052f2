"""Run ``twinloop run``: let a policy control a robot within the safety envelope, and record every episode.

Each episode is stored on the disk before the next one begins.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from twinloop.core.documents import MAX_LINES_BYTES, read_text
from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.metrics import is_reported
from twinloop.hardware.excite_guard import stop_on_signals
from twinloop.release.promotion import rollback
from twinloop.release.registry import PolicyRegistry
from twinloop.release.running import Runner
from twinloop.release.running_observers import FigureWatcher, ShadowWatcher
from twinloop.release.running_policy import HomingMove
from twinloop.release.running_record import RunFacts, RunWriter
from twinloop.release.running_robot import EpisodeRun, RunOptions
from twinloop.workflows.deploy.parts import PATIENCE_S, OpenedRun, episode_steps, open_registry, open_run_parts
from twinloop.workflows.deploy.requests import RunRequest
from twinloop.workflows.deploy.run_text import describe_run, episode_line
from twinloop.workflows.run.results import claim_output

_WORDS = {"1": True, "true": True, "yes": True, "y": True, "0": False, "false": False, "no": False, "n": False}


def determine_outcome(episode: EpisodeRun, request: RunRequest) -> bool | None:
    """Return whether an episode succeeded: from the robot, the file ``--outcome`` or a person; None if it is not known.

    Args:
        episode: the episode.
        request: flags of the run.

    Raises:
        InputError: If the file of outcomes is invalid.
    """
    if episode.success is not None:
        return episode.success
    if request.outcome is not None:
        return read_outcomes(request.outcome).get(episode.episode)
    if request.ask and sys.stdin.isatty():
        return _WORDS.get(input(f"Did episode {episode.episode} succeed? [y/n, Enter: unknown] ").strip().lower())
    return None


def read_outcomes(path: Path) -> dict[int, bool]:
    """Read outcomes by episode number from a CSV file with the columns ``episode`` and ``success``.

    Raises:
        InputError: If the file or a column is missing, or a row is invalid.
    """
    try:
        table = csv.DictReader(io.StringIO(read_text(path, MAX_LINES_BYTES), newline=""))
        rows, header = list(table), [name.strip() for name in table.fieldnames or ()]
    except InputError as error:
        raise InputError(
            f"{path} cannot be read ({error}). Give a CSV file with the columns episode, success."
        ) from error
    lacking = [name for name in ("episode", "success") if name not in header]
    if lacking:
        raise InputError(
            f"{path} has no column {lacking[0]}; it has: {', '.join(header) or 'nothing'}. Give a CSV file whose first "
            "line is episode,success, separated by commas."
        )
    found: dict[int, bool] = {}
    for line, row in enumerate(rows, start=2):
        number, word = (row.get("episode") or "").strip(), (row.get("success") or "").strip().lower()
        if not number.isdecimal() or word not in _WORDS:
            raise InputError(
                f"{path}, line {line}: episode {number!r} and success {word!r} are not an outcome. Write a whole "
                f"number, and one of {', '.join(_WORDS)}."
            )
        found[int(number)] = _WORDS[word]
    return found


@dataclass
class _Stop:
    """Flag that is set when a person requests to stop; see `hardware.excite_guard.stop_on_signals`.

    Attributes:
        reason: reason for the stop, or "" if no stop was requested.
    """

    reason: str = ""


def run_policy(request: RunRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Run a policy on a robot and record it as a dataset.

    Returns:
        The metrics, and exit code 1 if an episode was stopped early or the run ended early, else 0.

    Raises:
        InputError: If robot, twin, policy, settings or output do not fit together, or nothing was recorded.
        TwinloopError: If the first episode could not begin.
    """
    if request.episodes < 1 or request.first < 0:
        raise InputError("Give one episode or more (--episodes), numbered from 0 (--first).")
    for flag, value in (("--seconds", request.seconds), ("--hz", request.hz)):
        if value is not None and not 0 < value < np.inf:
            raise InputError(f"{flag} {value:g} is not valid. Give a number above 0, or leave the flag out.")
    if request.outcome is not None and request.outcome.exists():
        read_outcomes(request.outcome)  # an invalid file is refused before the robot moves
    claim_output(request.output)
    if request.output.exists() and any(request.output.iterdir()):
        raise InputError(f"{request.output} is not an empty folder. Choose another --output.")
    with ExitStack() as held:
        registry = open_registry(held)
        opened = open_run_parts(request, registry, held)
        console.print(describe_run(opened, request), soft_wrap=True)
        writer = RunWriter(request.output, _run_facts(opened, request))
        held.callback(writer.close)
        run = _Run(opened, request, writer, registry, console)
        held.enter_context(stop_on_signals(run.stop))
        try:
            run.all()
        except TwinloopError as error:
            if not writer.episodes:
                raise
            run.end(str(error))
        finally:
            result = run.metrics()
            writer.finish({key: value for key, value in result.items() if key != "output"})
        if not writer.episodes:
            raise InputError(f"Nothing was recorded: {run.ended or 'no episode began'}.")
    _print_summary(result, console)
    return result, 1 if result["trips"] or run.ended else 0


class _Run:
    """A run in progress.

    Attributes:
        stop: set when a person requests to stop.
        ended: reason why the run ended early, or "".
        done: recorded episodes, each with its outcome (None if unknown).
    """

    def __init__(
        self,
        opened: OpenedRun,
        request: RunRequest,
        writer: RunWriter,
        registry: PolicyRegistry | None,
        console: Console,
    ) -> None:
        self._opened, self._request, self._writer, self._registry = opened, request, writer, registry
        self._console, self._connected = console, False
        self.stop, self.ended = _Stop(), ""
        self.done: list[tuple[EpisodeRun, bool | None]] = []

    def all(self) -> None:
        """Run all requested episodes, then disconnect the robot; if the run ends early, set ``ended`` to the reason."""
        first = self._request.first
        try:
            for number in range(first, first + self._request.episodes):
                self._prepare()
                if not self.stop.reason:
                    self._run_episode(number)
                if self.ended or self.stop.reason:
                    self.ended = self.ended or self.stop.reason
                    return
        finally:
            lost = self._opened.timed_robot.disconnect() if self._connected else ""
            if lost:
                self.end(f"the robot could not be disconnected, switch it off by hand: {lost}")

    def end(self, reason: str) -> None:
        """Add a reason why the run ended early to ``ended``; this does not stop the run."""
        self.ended = f"{self.ended}; {reason}" if self.ended else reason

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of the episodes recorded so far, for ``--json``.

        They include the numbers of episodes, successes and commands, the latency of the policy in ms, and the episodes
        that were stopped early (``trips``).
        """
        decider = self._opened.deciders["champion"]
        steps = [step for episode, _ in self.done for step in episode.steps]
        kinds = [step.decision.kind for step in steps if step.sent]
        known = [success for _, success in self.done if success is not None]
        trips = [
            {"episode": episode.episode, "kind": episode.end_kind, "reason": episode.reason}
            for episode, _ in self.done
            if episode.end_kind
        ]
        return {
            "schema": 1,
            "verb": "run",
            "robot": self._opened.robot.origin,
            "policy": decider.name,
            "policy_hash": decider.hash,
            "output": str(self._request.output),
            "episodes": len(self.done),
            "frames": len(steps),
            "judged": len(known),
            "successes": sum(known),
            "commands": {"issued": len(kinds), "failed": len(steps) - len(kinds)},
            "envelope": {kind: kinds.count(kind) for kind in ("passed", "limited", "held", "stopped")},
            "events": sum(len(episode.events) for episode, _ in self.done),
            "latency_ms": _latency_quantiles(np.array([step.latency_s for step in steps])),
            "trips": trips,
            "ended": self.ended,
        }

    def _prepare(self) -> None:
        """Prepare the robot for an episode.

        A virtual robot is connected again for every episode, which gives a new scene. A real robot is connected once,
        and moves to its home pose before each episode.
        """
        spoken, virtual = self._opened.timed_robot, self._opened.robot.source == "sim"
        if virtual and self._connected:
            spoken.reconnect()
        elif not self._connected:
            self._connected = True  # a robot whose connection fails half-way is disconnected, too
            spoken.connect()
        if virtual:
            return
        if not self._request.no_home:
            self._go_home()
        if sys.stdin.isatty():
            self._console.input("Set the scene, step back, then press Enter. ")

    def _go_home(self) -> None:
        opened = self._opened
        home = opened.envelope.units.from_si(opened.twin.home()[0][opened.twin.joint_qpos])
        homing = HomingMove(opened.envelope, home, opened.robot_contract)
        steps = homing.count_steps(opened.timed_robot.read_observation().reading)
        options = RunOptions(steps=steps, interrupted=lambda: bool(self.stop.reason))
        episode = self._drive(Runner(opened.timed_robot, opened.envelope, homing), 0, options)
        if episode.end_kind:
            raise InputError(f"The robot did not reach its home pose: {episode.reason}. Check it before the next run.")

    def _run_episode(self, number: int) -> None:
        """Run one episode, determine its outcome, store it and print a line about it."""
        opened = self._opened
        stage = "" if opened.stages is None else opened.stages.stage
        arm = "champion" if opened.stages is None else opened.stages.assign_arm(number)
        episode = self._execute_episode(number, arm, shadow=stage == "shadow")
        success = determine_outcome(episode, self._request)
        if episode.steps:
            self._writer.add(
                episode, policy_hash=opened.deciders[arm].hash, success=success, notes={"stage": stage, "arm": arm}
            )
            self.done.append((episode, success))
        self._console.print(episode_line(episode, success), soft_wrap=True, markup=False)
        self._report_to_stages(episode, success)
        if opened.monitor is not None and arm == "champion":
            for line in opened.monitor.end(success):
                self._console.print(line, soft_wrap=True, markup=False)
        if episode.end_kind:
            self._handle_trip(episode)

    def _execute_episode(self, number: int, arm: str, *, shadow: bool) -> EpisodeRun:
        opened, request = self._opened, self._request
        slow_time = opened.robot.source == "sim" and not request.realtime
        watcher = None
        if shadow and opened.stages is not None:
            patience = PATIENCE_S if slow_time else 0.0
            watcher = ShadowWatcher(opened.deciders["shadow"], opened.timed_robot, opened.stages, patience_s=patience)
        options = RunOptions(
            steps=episode_steps(opened, request),
            patience_s=PATIENCE_S if slow_time else None,
            judge=opened.judge,
            stop_on_success=request.stop_on_success,
            interrupted=lambda: bool(self.stop.reason),
        )
        figures = FigureWatcher(opened.robot.units) if is_reported() else None
        watchers = [one for one in (watcher, opened.monitor if arm == "champion" else None, figures) if one is not None]
        episode = self._drive(
            Runner(opened.timed_robot, opened.envelope, opened.deciders[arm], tuple(watchers)), number, options
        )
        if watcher is not None:
            episode.shadow = watcher.log.summary()
        return episode

    def _drive(self, runner: Runner, number: int, options: RunOptions) -> EpisodeRun:
        try:
            return runner.run(number, options)
        finally:
            runner.close()

    def _report_to_stages(self, episode: EpisodeRun, success: bool | None) -> None:
        """Store the outcome for the candidate's stage.

        Episodes that a person stopped are not counted. Print a message if the stage aborts the candidate.
        """
        stages = self._opened.stages
        if stages is None or stages.current_candidate is None or episode.end_kind == "hand":
            return
        if stages.record_outcome(episode.episode, success, episode.violations, shadow=episode.shadow) == "abort":
            self._console.print("The candidate was aborted: it is no longer a candidate, and the champion continues.")

    def _handle_trip(self, episode: EpisodeRun) -> None:
        choice = self._request.on_trip
        if choice == "go-on" and episode.end_kind not in ("hand", "robot"):  # a person checks a failed robot first
            return
        self.ended = episode.reason
        if choice == "rollback" and episode.end_kind != "hand" and self._registry is not None:
            moved = rollback(self._registry, f"episode {episode.episode} of {episode.policy} tripped: {episode.reason}")
            self._console.print(f"Rolled back: {moved.to_json()}", soft_wrap=True, markup=False)


def _run_facts(opened: OpenedRun, request: RunRequest) -> RunFacts:
    deciders = {arm: {"name": one.name, "hash": one.hash} for arm, one in opened.deciders.items()}
    return RunFacts(
        origin=opened.robot.origin,
        source=opened.robot.source,
        contract=opened.robot_contract,
        twin=opened.twin.name,
        twin_hash=opened.twin.hash,
        task=request.instruction or str(getattr(opened.task, "instruction", "")),
        is_success_known=opened.judge is not None,
        success_version=str(getattr(opened.task, "success_version", "")) or "said by a person",
        config={"policies": deciders, "envelope": opened.envelope.settings.model_dump(), "robot": opened.robot.origin},
        assignment=opened.assignment,
        sources=opened.sources,
    )


def _latency_quantiles(seconds: NDArray[np.float64]) -> dict[str, float | None]:
    """Return quantiles of the policy's response time in ms of real time, by name; None if no time is known.

    Args:
        seconds: response times in s; NaN if the policy did not answer.
    """
    known = 1e3 * seconds[np.isfinite(seconds)]
    levels = {"median": 0.5, "p99": 0.99, "max": 1.0}
    return {name: float(np.quantile(known, level)) if len(known) else None for name, level in levels.items()}


def _print_summary(result: Mapping[str, Any], console: Console) -> None:
    known = f"{result['successes']} of {result['judged']} succeeded, " if result["judged"] else ""
    told = f"{result['episodes']} episodes, {known}{result['frames']} frames: {result['output']}"
    console.print(told, soft_wrap=True, markup=False)
    if result["commands"]["failed"]:
        console.print(f"The robot did not take {result['commands']['failed']} of {result['frames']} commands.")
    if result["ended"]:
        console.print(f"Ended early: {result['ended']}", soft_wrap=True, markup=False)
