"""Run a policy on a robot through the envelope for one episode; the robot holds after any failure.

At each control step of the robot's clock: read the observation, call the policy, wait at most the watchdog time, let
the envelope decide, send the command, record the step. If the policy is late, the robot brakes and holds. The late
answer is used at a later step unless its observation is too old by then.
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
_ROUND_OFF = 1e-6  # of a unit, as the envelope's
_LONGEST_BRAKE = 300  # steps for coming to rest; 10 s at 30 Hz
_RESTART_S = 30.0  # for a policy to begin an episode: a server may load it first
_SLOW = 1.5  # control periods between commands above which a step counts as slow
_FAILED_SHARE = 0.1  # largest share of an episode's commands that the robot may fail to take


class Runner:
    """Runner of episodes with one robot, one envelope and one decider; see `run`.

    Args:
        robot: a connected robot.
        envelope: envelope at the robot's rate and in its units.
        decider: source of the commands; its contract fits the robot.
        watchers: observers of each step.
    """

    def __init__(
        self, robot: TimedRobot, envelope: Envelope, decider: Decider, watchers: tuple[Watcher, ...] = ()
    ) -> None:
        self._robot, self._envelope, self._decider, self._watchers = robot, envelope, decider, watchers
        self._thread = CallThread(f"policy {decider.name}")
        self._period = envelope.limits.dt

    def run(self, episode: int, options: RunOptions) -> EpisodeRun:
        """Run one episode. Failures after its start are recorded and end the episode; they raise no error.

        Raises:
            InputError: the robot starts in a position that the envelope forbids.
            RobotLostError: the robot does not answer before the first motion.
            TwinloopError: the policy cannot start.
        """
        self._begin(episode)  # first, since it may take long, and the robot is observed right before it moves
        seen = self._robot.read_observation()
        motion = self._envelope.begin(seen.reading)
        going = _RunningEpisode(self._robot, self._envelope, self._decider, self._thread, self._watchers, options)
        return going.run(EpisodeRun(episode=episode, policy=self._decider.name), motion, seen)

    def close(self) -> None:
        """End the thread that calls the policy."""
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
    """A call of the policy that is not answered yet."""

    taken: float
    began: float


@dataclass(frozen=True, kw_only=True)
class _PolicyAnswer:
    """Answer of the policy; if ``command`` is None, ``missing`` is the reason."""

    command: Array | None = None
    latency_s: float = float("nan")
    age_s: float = 0.0
    missing: str = "no command in time"


class _RunningEpisode:
    """One running episode."""

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
        self._asked: _PendingCommand | None = None
        self._start = robot.clock.now()
        self._last_kind = ""
        self._columns = robot.find_environment_columns(decider.contract)

    def run(self, ran: EpisodeRun, motion: RobotMotion, seen: RobotObservation) -> EpisodeRun:
        """Run the control steps, then brake until the robot is at rest; return the record."""
        self._motion, self._seen, self._due = motion, seen, self._start
        for part in (self._drive, self._come_to_rest):
            try:
                part(ran)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # no failure may prevent the robot from braking
                ran.trip, ran.reason = "stopped", f"the run failed: {describe_error(error)}"
                self._add_event(ran, "stopped", ran.reason)
        return ran

    def _drive(self, ran: EpisodeRun) -> None:
        """Run control steps until there is a reason to end."""
        fresh = True
        while len(ran.steps) < self._options.steps and not ran.trip:
            self._step(ran, fresh=fresh)
            self._wait_for_next_step(ran)
            self._judge(ran, fresh=fresh)
            if ran.success and self._options.stop_on_success:
                break
            if self._options.interrupted():
                self._end_early(ran, "hand", "stopped by hand")
            fresh = self._read_observation(ran)
        if ran.unsent_count > _FAILED_SHARE * len(ran.steps):
            self._end_early(ran, "robot", f"the robot did not take {ran.unsent_count} of {len(ran.steps)} commands")

    def _step(self, ran: EpisodeRun, *, fresh: bool) -> None:
        clock, seen = self._robot.clock, self._seen
        if fresh:
            self._update_motion(ran, self._motion, self._envelope.add_reading(self._motion, seen.reading, seen.taken))
        wanted = self._request_command(ran, seen) if fresh else _PolicyAnswer(missing="the robot does not answer")
        age = 0.0 if fresh else clock.now() - seen.taken
        ruling = self._envelope.judge(self._motion, wanted.command, seen.reading, age_s=age, missing=wanted.missing)
        when = clock.now() - self._start
        issued, sent = self._send(ran, ruling, when)
        self._log_decision(ran, ruling, when)
        told = self._call_watchers(ran, seen, issued) if fresh else WatcherReport()
        values = np.full(len(issued), np.nan) if wanted.command is None else wanted.command
        ran.steps.append(
            ControlStep(
                time_s=when,
                seen=seen,
                wanted=values if values.shape == issued.shape else np.full(len(issued), np.nan),
                issued=issued,
                ruling=ruling,
                latency_s=wanted.latency_s,
                age_s=wanted.age_s,
                scores=told.scores,
                sent=sent,
            )
        )
        if ruling.kind == "stopped":
            lost = next((event.message for event in reversed(ran.events) if event.kind == "robot"), "")
            self._end_early(
                ran, "stopped" if fresh else "robot", ruling.reason if fresh else f"{ruling.reason}: {lost}"
            )
        if told.alarm:
            self._end_early(ran, "alarm", told.alarm)

    def _update_motion(self, ran: EpisodeRun, before: RobotMotion, after: RobotMotion) -> None:
        """Store the motion after a report of the robot; if the report has stopped the robot, end the episode."""
        self._motion = after
        if after.stopped and not before.stopped:
            self._end_early(ran, "robot", after.stopped)

    def _request_command(self, ran: EpisodeRun, seen: RobotObservation) -> _PolicyAnswer:
        """Return the policy's command for this step, after waiting at most the watchdog time."""
        if self._motion.stopped:
            return _PolicyAnswer(missing=self._motion.stopped)
        wrong = _find_non_finite(seen)
        if wrong:
            return _PolicyAnswer(missing=f"{wrong} of the robot is not a number")
        if self._asked is None:
            self._asked = _PendingCommand(taken=seen.taken, began=time.perf_counter())
            shown = seen.copy_for_policy(self._columns)
            self._thread.start(lambda: np.array(self._decider.act(shown), dtype=np.float64))
        answer = self._thread.wait(self._patience)
        asked = self._asked
        if answer is None:
            return _PolicyAnswer(
                missing=f"no command in time: the policy has taken {self._compute_latency(asked):.2f} s so far"
            )
        self._asked = None
        latency = self._compute_latency(asked)
        if answer.error is not None:
            error = answer.error
            said = str(error) if isinstance(error, TwinloopError) else f"the policy failed: {describe_error(error)}"
            self._end_early(ran, "policy", said)
            return _PolicyAnswer(missing=said, latency_s=latency)
        age = self._robot.clock.now() - asked.taken
        if age > self._envelope.settings.max_age_s:
            said = f"an answer after {latency:.2f} s, for an observation {age:.2f} s old, was too late to be used"
            self._add_event(ran, "late", said)
            return _PolicyAnswer(missing="no command in time: the answer was too late to be used", latency_s=latency)
        return _PolicyAnswer(command=answer.value, latency_s=latency, age_s=age)

    def _compute_latency(self, asked: _PendingCommand) -> float:
        return time.perf_counter() - asked.began

    def _send(self, ran: EpisodeRun, ruling: EnvelopeDecision, when: float, *, tell: bool = True) -> tuple[Array, bool]:
        """Send the decided command; return the command in force and whether the robot accepted this one."""
        before, envelope = self._motion, self._envelope
        try:
            said = self._robot.send(ruling.command)
        except RobotLostError as error:
            self._add_event(ran, "robot", str(error), when)
            self._update_motion(ran, ruling.motion, envelope.add_failed_command(before, ruling.motion, why=str(error)))
            return envelope.get_accepted_command(self._motion), False
        self._update_motion(ran, ruling.motion, envelope.add_accepted_command(before, ruling.motion, said))
        as_ruled = np.allclose(said, ruling.command, rtol=0.0, atol=_ROUND_OFF)
        issued = said if as_ruled else envelope.get_accepted_command(self._motion)
        if tell and self._asked is None and not (as_ruled and ruling.kind == "passed"):
            self._decider.report_sent(issued.copy())
        return issued, True

    def _call_watchers(self, ran: EpisodeRun, seen: RobotObservation, issued: Array) -> WatcherReport:
        """Return the combined report of the watchers; a watcher that fails is reported once and removed."""
        scores: dict[str, float] = {}
        alarm = ""
        for watcher in self._watchers:
            try:
                told = watcher.watch_step(seen, issued)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  # a failing watcher must not stop the robot
                self._watchers = tuple(one for one in self._watchers if one is not watcher)
                self._add_event(
                    ran, "alarm", f"{type(watcher).__name__} failed and is no longer used: {describe_error(error)}"
                )
                continue
            scores |= told.scores
            for note in told.notes:
                self._add_event(ran, "alarm", note)
            alarm = alarm or told.alarm
        return WatcherReport(scores=scores, alarm=alarm)

    def _read_observation(self, ran: EpisodeRun) -> bool:
        """Read the next observation; if the robot gives none, keep the last one and return False."""
        try:
            self._seen = self._robot.read_observation()
        except RobotLostError as error:
            self._add_event(ran, "robot", str(error))
            return False
        return True

    def _wait_for_next_step(self, ran: EpisodeRun) -> None:
        """Wait for the next control step; a missed step is not repeated."""
        clock, self._due = self._robot.clock, self._due + self._period
        clock.wait_until(self._due)
        if clock.fault:
            self._end_early(ran, "robot", f"the robot's driver is at fault: {clock.fault}")
        behind = clock.now() - self._due
        if behind <= (_SLOW - 1.0) * self._period:
            return
        if not ran.events or ran.events[-1].kind != "slow":
            self._add_event(ran, "slow", f"the loop is {1e3 * behind:.0f} ms behind its clock")
        self._due = clock.now()

    def _judge(self, ran: EpisodeRun, *, fresh: bool) -> None:
        if self._options.judge is None or not fresh:
            return
        try:
            ran.success = self._robot.judge_success(self._options.judge)
        except RobotLostError as error:
            self._add_event(ran, "robot", str(error))
        ran.steps[-1] = replace(ran.steps[-1], success=ran.success)

    def _come_to_rest(self, ran: EpisodeRun) -> None:
        """Brake along the stopping path; record these steps if the episode ended early."""
        reason = ran.reason or "the episode is over"
        for _ in range(_LONGEST_BRAKE):
            if self._motion.is_at_rest:
                return
            ruling = self._envelope.judge(self._motion, None, missing=reason)
            when = self._robot.clock.now() - self._start
            issued, sent = self._send(ran, ruling, when, tell=False)
            if ran.trip:
                nothing = np.full(len(issued), np.nan)
                ran.steps.append(
                    ControlStep(
                        time_s=when,
                        seen=self._seen,
                        wanted=nothing,
                        issued=issued,
                        ruling=ruling,
                        latency_s=np.nan,
                        age_s=0.0,
                        success=ran.success,
                        sent=sent,
                    )
                )
            self._wait_for_next_step(ran)
            self._read_observation(ran)

    def _log_decision(self, ran: EpisodeRun, ruling: EnvelopeDecision, when: float) -> None:
        """Add an event if the envelope's decision differs from that of the previous step."""
        rules = ", ".join(sorted({f"{cut.joint}/{cut.rule}" for cut in ruling.cuts}))
        kind = f"limited by {rules}" if ruling.kind == "limited" else ruling.kind
        if kind != self._last_kind and ruling.kind != "passed":
            said = ruling.reason or "; ".join(
                f"{cut.joint} {cut.wanted:.4g} to {cut.issued:.4g} by {cut.rule}" for cut in ruling.cuts
            )
            self._add_event(ran, ruling.kind, said, when)
        self._last_kind = kind

    def _end_early(self, ran: EpisodeRun, kind: EventKind, reason: str) -> None:
        """End the episode for a reason, unless it already has one."""
        if ran.trip:
            return
        ran.trip, ran.reason = kind, reason
        if kind != "stopped":  # the envelope's event is already recorded
            self._add_event(ran, kind, reason)

    def _add_event(self, ran: EpisodeRun, kind: EventKind, message: str, when: float | None = None) -> None:
        moment = self._robot.clock.now() - self._start if when is None else when
        last = ran.events[-1] if ran.events else None
        if last is not None and (last.kind, last.message) == (kind, message):
            return  # the event continues
        ran.events.append(RunEvent(frame=len(ran.steps), time_s=moment, kind=kind, message=message))


def _find_non_finite(seen: RobotObservation) -> str:
    """Return the first key of an observation with a value that is not finite, or ""."""
    return next((key for key, array in seen.arrays.items() if not np.isfinite(array).all()), "")
