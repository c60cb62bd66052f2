"""Run ``twinloop run``: a policy on a robot, through the envelope; each episode is stored before the next begins."""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from twinloop.core.documents import MOST_LINES_BYTES, read_text
from twinloop.core.errors import InputError, TwinloopError
from twinloop.hardware.excite_guard import stop_on_signals
from twinloop.release.promotion import rollback
from twinloop.release.registry import PolicyRegistry
from twinloop.release.running import Runner
from twinloop.release.running_observers import ShadowWatcher
from twinloop.release.running_policy import HomingMove
from twinloop.release.running_record import RunFacts, RunWriter
from twinloop.release.running_robot import EpisodeRun, RunOptions
from twinloop.workflows.deploy.cell import PATIENCE_S, RobotCell, episode_steps, open_cell, open_registry
from twinloop.workflows.deploy.requests import RunRequest
from twinloop.workflows.run.results import claim_output

_WORDS = {"1": True, "true": True, "yes": True, "y": True, "0": False, "false": False, "no": False, "n": False}


def determine_outcome(ran: EpisodeRun, request: RunRequest) -> bool | None:
    """Return whether an episode succeeded, or None if it is not known.

    Raises:
        InputError: the file of outcomes is invalid.
    """
    if ran.success is not None:
        return ran.success
    if request.outcome is not None:
        return read_outcomes(request.outcome).get(ran.episode)
    if request.ask and sys.stdin.isatty():
        return _WORDS.get(input(f"Did episode {ran.episode} succeed? [y/n, Enter: unknown] ").strip().lower())
    return None


def read_outcomes(path: Path) -> dict[int, bool]:
    """Return outcomes by episode number from a CSV file with the columns ``episode`` and ``success``.

    Raises:
        InputError: the file is missing, or a row is invalid; names the line.
    """
    try:
        table = csv.DictReader(io.StringIO(read_text(path, MOST_LINES_BYTES), newline=""))
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
    """A person's request to stop; see `hardware.excite_guard.stop_on_signals`."""

    reason: str = ""


def run_policy(request: RunRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Run a policy and record it; return the metrics, and 1 if an episode was stopped early or could not begin.

    Raises:
        InputError: robot, twin, policy, settings or output do not fit together; nothing has moved.
        TwinloopError: the first episode could not begin.
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
        cell = open_cell(request, registry, held)
        console.print(_describe_run(cell, request), soft_wrap=True)
        writer = RunWriter(request.output, _run_facts(cell, request))
        held.callback(writer.close)
        run = _Run(cell, request, writer, registry, console)
        held.enter_context(stop_on_signals(run.stop))
        try:
            run.all()
        except TwinloopError as error:
            if not writer.episodes:
                raise
            run.end(str(error))
        finally:
            figures = run.figures()
            writer.finish({key: value for key, value in figures.items() if key != "output"})
        if not writer.episodes:
            raise InputError(f"Nothing was recorded: {run.ended or 'no episode began'}.")
    _print_summary(figures, console)
    return figures, 1 if figures["trips"] or run.ended else 0


class _Run:
    """A run in progress; ``ended`` is the reason why it ended early, or ""."""

    def __init__(
        self, cell: RobotCell, request: RunRequest, writer: RunWriter, registry: PolicyRegistry | None, console: Console
    ) -> None:
        self._cell, self._request, self._writer, self._registry = cell, request, writer, registry
        self._console, self._connected = console, False
        self.stop, self.ended = _Stop(), ""
        self.done: list[tuple[EpisodeRun, bool | None]] = []

    def all(self) -> None:
        """Run every episode, until there is a reason to end."""
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
            lost = self._cell.spoken.disconnect() if self._connected else ""
            if lost:
                self.end(f"the robot could not be disconnected, switch it off by hand: {lost}")

    def end(self, reason: str) -> None:
        """Add a reason for ending early."""
        self.ended = f"{self.ended}; {reason}" if self.ended else reason

    def figures(self) -> dict[str, Any]:
        """Return the metrics of the run."""
        decider = self._cell.deciders["champion"]
        steps = [step for ran, _ in self.done for step in ran.steps]
        kinds = [step.ruling.kind for step in steps if step.sent]
        known = [success for _, success in self.done if success is not None]
        trips = [{"episode": ran.episode, "kind": ran.trip, "reason": ran.reason} for ran, _ in self.done if ran.trip]
        return {
            "schema": 1,
            "verb": "run",
            "robot": self._cell.robot.origin,
            "policy": decider.name,
            "policy_hash": decider.hash,
            "output": str(self._request.output),
            "episodes": len(self.done),
            "frames": len(steps),
            "judged": len(known),
            "successes": sum(known),
            "commands": {"issued": len(kinds), "failed": len(steps) - len(kinds)},
            "envelope": {kind: kinds.count(kind) for kind in ("passed", "limited", "held", "stopped")},
            "events": sum(len(ran.events) for ran, _ in self.done),
            "latency_ms": _latency_quantiles(np.array([step.latency_s for step in steps])),
            "trips": trips,
            "ended": self.ended,
        }

    def _prepare(self) -> None:
        """Connect the robot (a virtual one for every episode, with a new scene), and move a real one home."""
        spoken, virtual = self._cell.spoken, self._cell.robot.source == "sim"
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
        cell = self._cell
        home = cell.envelope.units.from_si(cell.twin.home()[0][cell.twin.joint_qpos])
        homing = HomingMove(cell.envelope, home, cell.offered)
        steps = homing.count_steps(cell.spoken.read_observation().reading)
        options = RunOptions(steps=steps, interrupted=lambda: bool(self.stop.reason))
        ran = self._drive(Runner(cell.spoken, cell.envelope, homing), 0, options)
        if ran.trip:
            raise InputError(f"The robot did not reach its home pose: {ran.reason}. Check it before the next run.")

    def _run_episode(self, number: int) -> None:
        """Run one episode, determine its outcome, store it and print a line."""
        cell = self._cell
        stage = "" if cell.stages is None else cell.stages.stage
        arm = "champion" if cell.stages is None else cell.stages.assign_arm(number)
        ran = self._execute_episode(number, arm, shadow=stage == "shadow")
        success = determine_outcome(ran, self._request)
        if ran.steps:
            self._writer.add(
                ran, policy_hash=cell.deciders[arm].hash, success=success, notes={"stage": stage, "arm": arm}
            )
            self.done.append((ran, success))
        self._console.print(episode_line(ran, success), soft_wrap=True, markup=False)
        self._report_to_stages(ran, success)
        if cell.monitor is not None and arm == "champion":
            for line in cell.monitor.end(success):
                self._console.print(line, soft_wrap=True, markup=False)
        if ran.trip:
            self._handle_trip(ran)

    def _execute_episode(self, number: int, arm: str, *, shadow: bool) -> EpisodeRun:
        cell, request = self._cell, self._request
        slow_time = cell.robot.source == "sim" and not request.realtime
        watcher = None
        if shadow and cell.stages is not None:
            patience = PATIENCE_S if slow_time else 0.0
            watcher = ShadowWatcher(cell.deciders["shadow"], cell.spoken, cell.stages, patience_s=patience)
        options = RunOptions(
            steps=episode_steps(cell, request),
            patience_s=PATIENCE_S if slow_time else None,
            judge=cell.judge,
            stop_on_success=request.stop_on_success,
            interrupted=lambda: bool(self.stop.reason),
        )
        watchers = [one for one in (watcher, cell.monitor if arm == "champion" else None) if one is not None]
        ran = self._drive(Runner(cell.spoken, cell.envelope, cell.deciders[arm], tuple(watchers)), number, options)
        if watcher is not None:
            ran.shadow = watcher.log.summary()
        return ran

    def _drive(self, runner: Runner, number: int, options: RunOptions) -> EpisodeRun:
        try:
            return runner.run(number, options)
        finally:
            runner.close()

    def _report_to_stages(self, ran: EpisodeRun, success: bool | None) -> None:
        """Report the outcome to the candidate's stages; an unknown outcome counts as a failure."""
        stages = self._cell.stages
        if stages is None or stages.current_candidate is None or ran.trip == "hand":
            return
        if stages.record_outcome(ran.episode, bool(success), ran.violations, shadow=ran.shadow) == "abort":
            self._console.print("The candidate was aborted: it is no longer a candidate, and the champion continues.")

    def _handle_trip(self, ran: EpisodeRun) -> None:
        choice = self._request.on_trip
        if choice == "go-on" and ran.trip not in ("hand", "robot"):  # a person checks a failed robot first
            return
        self.ended = ran.reason
        if choice == "rollback" and ran.trip != "hand" and self._registry is not None:
            moved = rollback(self._registry, f"episode {ran.episode} of {ran.policy} tripped: {ran.reason}")
            self._console.print(f"Rolled back: {moved.to_json()}", soft_wrap=True, markup=False)


def _run_facts(cell: RobotCell, request: RunRequest) -> RunFacts:
    deciders = {arm: {"name": one.name, "hash": one.hash} for arm, one in cell.deciders.items()}
    return RunFacts(
        origin=cell.robot.origin,
        source=cell.robot.source,
        offered=cell.offered,
        twin=cell.twin.name,
        twin_hash=cell.twin.hash,
        task=request.instruction or str(getattr(cell.task, "instruction", "")),
        judged=cell.judge is not None,
        success_version=str(getattr(cell.task, "success_version", "")) or "said by a person",
        config={"policies": deciders, "envelope": cell.envelope.settings.model_dump(), "robot": cell.robot.origin},
    )


def _latency_quantiles(seconds: NDArray[np.float64]) -> dict[str, float | None]:
    """Return quantiles of the policy's response time, in ms of real time."""
    known = 1e3 * seconds[np.isfinite(seconds)]
    levels = {"median": 0.5, "p99": 0.99, "max": 1.0}
    return {name: float(np.quantile(known, level)) if len(known) else None for name, level in levels.items()}


def _describe_run(cell: RobotCell, request: RunRequest) -> str:
    limits, settings = cell.envelope.limits, cell.envelope.settings
    speed = np.rad2deg(limits.speed)
    return (
        f"{cell.deciders['champion'].name} on {cell.robot.origin}: {request.episodes} × "
        f"{episode_steps(cell, request) * limits.dt:.1f} s at {cell.offered.control_hz:g} Hz\n"
        f"Envelope by {cell.twin.name}: {speed.min():.0f} to {speed.max():.0f} deg/s, links at least "
        f"{1e3 * settings.clearance_m:g} mm and the hand {1e3 * settings.hand_clearance_m:g} mm away from fixed "
        f"objects, holds after {1e3 * cell.envelope.watchdog_s:.0f} ms without a command"
    )


def episode_line(ran: EpisodeRun, success: bool | None) -> str:
    """Return a line on an episode: its outcome, and the actions of the envelope."""
    said = "outcome unknown" if success is None else "success" if success else "failure"
    tail = f"; {ran.reason}" if ran.trip else ""
    return f"episode {ran.episode}: {said}, {len(ran.steps)} frames, {_format_envelope_actions(ran)}{tail}"


def _format_envelope_actions(ran: EpisodeRun) -> str:
    """Return the envelope's actions as text. Limited commands are sent within the limits; held ones are not sent."""
    kinds = Counter(ran.ruling_counts)
    told = {"limited": "clipped to the limits", "held": "held", "stopped": "stopped"}
    done = [f"{kinds[kind]} {words}" for kind, words in told.items() if kinds[kind]]
    done += [f"{ran.unsent_count} not taken by the robot"] if ran.unsent_count else []
    return f"envelope: {', '.join(done)}" if done else "all passed by the envelope"


def _print_summary(figures: Mapping[str, Any], console: Console) -> None:
    known = f"{figures['successes']} of {figures['judged']} succeeded, " if figures["judged"] else ""
    told = f"{figures['episodes']} episodes, {known}{figures['frames']} frames: {figures['output']}"
    console.print(told, soft_wrap=True, markup=False)
    if figures["commands"]["failed"]:
        console.print(f"The robot did not take {figures['commands']['failed']} of {figures['frames']} commands.")
    if figures["ended"]:
        console.print(f"Ended early: {figures['ended']}", soft_wrap=True, markup=False)
