"""Run a policy on a robot through the safety envelope for one episode; after any failure, the robot brakes and holds.

At each control step of the robot's clock: read the observation, call the policy, wait at most the watchdog time, let
the envelope limit the command, send the command, record the step. If the policy is late, the robot brakes and holds.
The late answer is used at a later step unless its observation is too old by then.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import TwinloopError
from twinloop.core.extension import describe_error
from twinloop.hardware.call_thread import CallThread
from twinloop.hardware.driver import RobotLostError
from twinloop.release.envelope import Envelope, EnvelopeDecision, RobotMotion
from twinloop.release.running_policy import Decider
from twinloop.release.running_robot import (
    ControlStep,
    EpisodeRun,
    EventKind,
    RobotObservation,
    RunEvent,
    RunOptions,
    TimedRobot,
    Watcher,
    WatcherReport,
)

Array = NDArray[np.float64]
_ROUND_OFF = 1e-6  # in the robot's units, as in `envelope`
_LONGEST_BRAKE = 300  # largest number of steps for coming to rest; 10 s at 30 Hz
_RESTART_S = 30.0  # longest time for a policy to begin an episode: a server may have to load it
_SLOW = 1.5  # control periods between commands above which a step counts as slow
_FAILED_SHARE = 0.1  # largest share of an episode's commands that the robot may fail to take


class Runner:
    """Runner of episodes with one robot, one envelope and one source of commands; see `run`.

    Args:
        robot: connected robot.
        envelope: safety envelope at the robot's rate and in its units.
        decider: source of the commands; its contract must fit the robot.
        watchers: observers that are called at each step, such as a monitor.
    """

    def __init__(
        self, robot: TimedRobot, envelope: Envelope, decider: Decider, watchers: tuple[Watcher, ...] = ()
    ) -> None:
        self._robot, self._envelope, self._decider, self._watchers = robot, envelope, decider, watchers
        self._thread = CallThread(f"policy {decider.name}")
        self._period = envelope.limits.dt

    def run(self, episode: int, options: RunOptions) -> EpisodeRun:
        """Run one episode and return its record.

        A failure after the start of the episode raises no error; it is recorded and ends the episode.

        Args:
            episode: number of the episode; the policy's random draws depend on it.
            options: number of steps and conditions for the end of the episode.

        Raises:
            InputError: If the robot starts in a position that the envelope (the limits of every command) forbids.
            RobotLostError: If the robot does not answer before the first motion.
            TwinloopError: If the policy cannot start.
        """
        self._begin(episode)  # may take long, so it comes before the observation that the motion starts from
        observation = self._robot.read_observation()
        motion = self._envelope.begin(observation.reading)
        running = _RunningEpisode(self._robot, self._envelope, self._decider, self._thread, self._watchers, options)
        return running.run(EpisodeRun(episode=episode, policy=self._decider.name), motion, observation)

    def close(self) -> None:
        """End the thread in which the policy is called."""
        self._thread.close()

    def _begin(self, episode: int) -> None:
        if self._thread.busy and self._thread.wait(_RESTART_S) is None:
            raise TwinloopError(f"{self._decider.name} has not answered since the previous episode. Start it again.")
        self._thread.start(lambda: self._decider.restart(episode))
        answer = self._thread.wait(_RESTART_S)
        if answer is None:
            raise TwinloopError(
                f"{self._decider.name} did not start an episode within {_RESTART_S:g} s. Start it again."
            )
        if isinstance(answer.error, TwinloopError):
            raise answer.error
        if answer.error is not None:
            raise TwinloopError(f"{self._decider.name} cannot start an episode: {describe_error(answer.error)}.")
        for watcher in self._watchers:
            watcher.begin(episode)


@dataclass(frozen=True, kw_only=True)
class _PendingCommand:
    """Command that was requested from the policy and has not arrived yet.

    Attributes:
        time_s: time of the observation by the robot's clock, in s.
        began: time of the request by `time.perf_counter`, in s.
    """

    time_s: float
    began: float


@dataclass(frozen=True, kw_only=True)
class _PolicyAnswer:
    """Answer of the policy at one step.

    Attributes:
        command: command in the robot's units; None if there is no usable one.
        latency_s: time in s that the policy took; NaN if it has not answered.
        age_s: age of the observation in s when the answer arrived.
        missing: reason why there is no command.
    """

    command: Array | None = None
    latency_s: float = float("nan")
    age_s: float = 0.0
    missing: str = "no command in time"


class _RunningEpisode:
    """State of one running episode: pending call of the policy, start time, last decision of the envelope."""

    def __init__(
        self,
        robot: TimedRobot,
        envelope: Envelope,
        decider: Decider,
        thread: CallThread,
        watchers: tuple[Watcher, ...],
        options: RunOptions,
    ) -> None:
        self._robot, self._envelope, self._decider, self._thread = robot, envelope, decider, thread
        self._watchers, self._options, self._period = watchers, options, envelope.limits.dt
        self._patience = envelope.watchdog_s if options.patience_s is None else options.patience_s
        self._pending: _PendingCommand | None = None
        self._start = robot.clock.now()
        self._last_kind = ""
        self._columns = robot.find_environment_columns(decider.contract)

    def run(self, record: EpisodeRun, motion: RobotMotion, observation: RobotObservation) -> EpisodeRun:
        """Run the control steps, then brake until the robot is at rest.

        Args:
            record: record of the episode, filled in place.
            motion: state of the robot at rest.
            observation: first observation.

        Returns:
            The record of the episode.
        """
        self._motion, self._seen, self._due = motion, observation, self._start
        for part in (self._drive, self._come_to_rest):
            try:
                part(record)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # no failure may prevent the robot from braking
                record.end_kind, record.reason = "stopped", f"the run failed: {describe_error(error)}"
                self._add_event(record, "stopped", record.reason)
        return record

    def _drive(self, record: EpisodeRun) -> None:
        """Run control steps until the episode has its full length, succeeds or ends early; add them to ``record``."""
        fresh = True
        while len(record.steps) < self._options.steps and not record.end_kind:
            self._step(record, fresh=fresh)
            self._wait_for_next_step(record)
            self._judge(record, fresh=fresh)
            if record.success and self._options.stop_on_success:
                break
            if self._options.interrupted():
                self._end_early(record, "hand", "stopped by hand")
            fresh = self._read_observation(record)
        if record.unsent_count > _FAILED_SHARE * len(record.steps):
            self._end_early(
                record, "robot", f"the robot did not take {record.unsent_count} of {len(record.steps)} commands"
            )

    def _step(self, record: EpisodeRun, *, fresh: bool) -> None:
        clock, observation = self._robot.clock, self._seen
        if fresh:
            self._update_motion(
                record, self._motion, self._envelope.add_reading(self._motion, observation.reading, observation.time_s)
            )
        answer = (
            self._request_command(record, observation) if fresh else _PolicyAnswer(missing="the robot does not answer")
        )
        age = 0.0 if fresh else clock.now() - observation.time_s
        decision = self._envelope.judge(
            self._motion, answer.command, observation.reading, age_s=age, missing=answer.missing
        )
        when = clock.now() - self._start
        issued, sent = self._send(record, decision, when)
        self._log_decision(record, decision, when)
        report = self._call_watchers(record, observation, issued) if fresh else WatcherReport()
        values = np.full(len(issued), np.nan) if answer.command is None else answer.command
        record.steps.append(
            ControlStep(
                time_s=when,
                observation=observation,
                requested=values if values.shape == issued.shape else np.full(len(issued), np.nan),
                issued=issued,
                decision=decision,
                latency_s=answer.latency_s,
                age_s=answer.age_s,
                scores=report.scores,
                sent=sent,
            )
        )
        if decision.kind == "stopped":
            lost = next((event.message for event in reversed(record.events) if event.kind == "robot"), "")
            self._end_early(
                record, "stopped" if fresh else "robot", decision.reason if fresh else f"{decision.reason}: {lost}"
            )
        if report.alarm:
            self._end_early(record, "alarm", report.alarm)

    def _update_motion(self, record: EpisodeRun, before: RobotMotion, after: RobotMotion) -> None:
        """Store the robot's state after a report of the robot; if the report stopped the robot, end the episode.

        Args:
            record: record of the episode.
            before: state before the report.
            after: state after the report.
        """
        self._motion = after
        if after.stopped and not before.stopped:
            self._end_early(record, "robot", after.stopped)

    def _request_command(self, record: EpisodeRun, observation: RobotObservation) -> _PolicyAnswer:
        """Return the policy's answer for this step, after waiting for it at most the watchdog time (or ``patience_s``).

        If no answer arrives in this time, the result has no command, and its ``missing`` is the reason. The policy
        continues to compute, and its answer may be used at a later step. The result also has no command if the robot is
        stopped, the observation is not finite, the policy failed, or its answer is too old.

        Args:
            record: record of the episode, for events.
            observation: observation of this step.
        """
        if self._motion.stopped:
            return _PolicyAnswer(missing=self._motion.stopped)
        invalid = _find_non_finite(observation)
        if invalid:
            return _PolicyAnswer(missing=f"{invalid} of the robot is not a number")
        if self._pending is None:
            self._pending = _PendingCommand(time_s=observation.time_s, began=time.perf_counter())
            shown = observation.copy_for_policy(self._decider.contract, self._columns)
            self._thread.start(lambda: np.array(self._decider.act(shown), dtype=np.float64))
        answer = self._thread.wait(self._patience)
        pending = self._pending
        if answer is None:
            return _PolicyAnswer(
                missing=f"no command in time: the policy has taken {self._compute_latency(pending):.2f} s so far"
            )
        self._pending = None
        latency = self._compute_latency(pending)
        if answer.error is not None:
            error = answer.error
            message = str(error) if isinstance(error, TwinloopError) else f"the policy failed: {describe_error(error)}"
            self._end_early(record, "policy", message)
            return _PolicyAnswer(missing=message, latency_s=latency)
        age = self._robot.clock.now() - pending.time_s
        if age > self._envelope.settings.max_age_s:
            message = f"an answer after {latency:.2f} s, for an observation {age:.2f} s old, was too late to be used"
            self._add_event(record, "late", message)
            return _PolicyAnswer(missing="no command in time: the answer was too late to be used", latency_s=latency)
        return _PolicyAnswer(command=answer.value, latency_s=latency, age_s=age)

    def _compute_latency(self, pending: _PendingCommand) -> float:
        return time.perf_counter() - pending.began

    def _send(
        self, record: EpisodeRun, decision: EnvelopeDecision, when: float, *, tell: bool = True
    ) -> tuple[Array, bool]:
        """Send a command that the envelope has decided, and update the robot's state.

        Args:
            record: record of the episode, for events.
            decision: decision of the envelope.
            when: time of the step in s since the start of the episode.
            tell: whether to report the command to the policy if it differs from the policy's.

        Returns:
            The command that the robot now follows, and whether the robot accepted this command.
        """
        before, envelope = self._motion, self._envelope
        try:
            reported = self._robot.send(decision.command)
        except RobotLostError as error:
            self._add_event(record, "robot", str(error), when)
            self._update_motion(
                record, decision.motion, envelope.add_failed_command(before, decision.motion, why=str(error))
            )
            return envelope.get_accepted_command(self._motion), False
        self._update_motion(record, decision.motion, envelope.add_accepted_command(before, decision.motion, reported))
        as_ruled = np.allclose(reported, decision.command, rtol=0.0, atol=_ROUND_OFF)
        issued = reported if as_ruled else envelope.get_accepted_command(self._motion)
        if tell and self._pending is None and not (as_ruled and decision.kind == "passed"):
            self._decider.report_sent(issued.copy())
        return issued, True

    def _call_watchers(self, record: EpisodeRun, observation: RobotObservation, issued: Array) -> WatcherReport:
        """Return the combined report of all watchers; a watcher that raises an error is reported once and removed.

        Args:
            record: record of the episode, to which notes and errors are added as events.
            observation: observation of this step.
            issued: command that the robot follows after this step, shape ``(n,)``, in the robot's units.
        """
        scores: dict[str, float] = {}
        alarm = ""
        for watcher in self._watchers:
            try:
                report = watcher.watch_step(observation, issued)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  # a failing watcher must not stop the robot
                self._watchers = tuple(one for one in self._watchers if one is not watcher)
                self._add_event(
                    record, "alarm", f"{type(watcher).__name__} failed and is no longer used: {describe_error(error)}"
                )
                continue
            scores |= report.scores
            for note in report.notes:
                self._add_event(record, "alarm", note)
            alarm = alarm or report.alarm
        return WatcherReport(scores=scores, alarm=alarm)

    def _read_observation(self, record: EpisodeRun) -> bool:
        """Read the next observation and return True; if the robot gives none, keep the last one and return False."""
        try:
            self._seen = self._robot.read_observation()
        except RobotLostError as error:
            self._add_event(record, "robot", str(error))
            return False
        return True

    def _wait_for_next_step(self, record: EpisodeRun) -> None:
        """Wait for the next control step of the robot's clock; missed steps are skipped."""
        clock, self._due = self._robot.clock, self._due + self._period
        clock.wait_until(self._due)
        if clock.fault:
            self._end_early(record, "robot", f"the robot's driver is at fault: {clock.fault}")
        behind = clock.now() - self._due
        if behind <= (_SLOW - 1.0) * self._period:
            return
        if not record.events or record.events[-1].kind != "slow":
            self._add_event(record, "slow", f"the loop is {1e3 * behind:.0f} ms behind its clock")
        self._due = clock.now()

    def _judge(self, record: EpisodeRun, *, fresh: bool) -> None:
        if self._options.judge is None or not fresh:
            return
        try:
            record.success = self._robot.judge_success(self._options.judge)
        except RobotLostError as error:
            self._add_event(record, "robot", str(error))
        record.steps[-1] = replace(record.steps[-1], success=record.success)

    def _come_to_rest(self, record: EpisodeRun) -> None:
        """Brake until the robot is at rest; if the episode ended early, also record these control steps."""
        reason = record.reason or "the episode is over"
        for _ in range(_LONGEST_BRAKE):
            if self._motion.is_at_rest:
                return
            decision = self._envelope.judge(self._motion, None, missing=reason)
            when = self._robot.clock.now() - self._start
            issued, sent = self._send(record, decision, when, tell=False)
            if record.end_kind:
                nothing = np.full(len(issued), np.nan)
                record.steps.append(
                    ControlStep(
                        time_s=when,
                        observation=self._seen,
                        requested=nothing,
                        issued=issued,
                        decision=decision,
                        latency_s=np.nan,
                        age_s=0.0,
                        success=record.success,
                        sent=sent,
                    )
                )
            self._wait_for_next_step(record)
            self._read_observation(record)

    def _log_decision(self, record: EpisodeRun, decision: EnvelopeDecision, when: float) -> None:
        """Add an event for the envelope's decision, unless it is the same as at the previous step."""
        rules = ", ".join(sorted({f"{cut.joint}/{cut.rule}" for cut in decision.changes}))
        kind = f"limited by {rules}" if decision.kind == "limited" else decision.kind
        if kind != self._last_kind and decision.kind != "passed":
            message = decision.reason or "; ".join(
                f"{cut.joint} {cut.requested:.4g} to {cut.issued:.4g} by {cut.rule}" for cut in decision.changes
            )
            self._add_event(record, decision.kind, message, when)
        self._last_kind = kind

    def _end_early(self, record: EpisodeRun, kind: EventKind, reason: str) -> None:
        """End the episode early for a reason; a reason that was given before remains."""
        if record.end_kind:
            return
        record.end_kind, record.reason = kind, reason
        if kind != "stopped":  # the envelope's event is already recorded
            self._add_event(record, kind, reason)

    def _add_event(self, record: EpisodeRun, kind: EventKind, message: str, when: float | None = None) -> None:
        moment = self._robot.clock.now() - self._start if when is None else when
        last = record.events[-1] if record.events else None
        if last is not None and (last.kind, last.message) == (kind, message):
            return  # the event continues
        record.events.append(RunEvent(frame=len(record.steps), time_s=moment, kind=kind, message=message))


def _find_non_finite(observation: RobotObservation) -> str:
    """Return the name of the first array of an observation that contains a value that is not finite, or ""."""
    return next((key for key, array in observation.arrays.items() if not np.isfinite(array).all()), "")
