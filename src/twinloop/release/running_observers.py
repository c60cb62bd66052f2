"""Observe a running robot with a monitor that scores every step, and with a policy in shadow.

Both classes are watchers (`running_robot.Watcher`) that `running.Runner` calls at each control step.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import ENVIRONMENT
from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.extension import describe_error
from twinloop.core.metrics import log_metrics
from twinloop.core.units import UnitMap
from twinloop.hardware.call_thread import CallThread
from twinloop.release.monitor.calibration import read_monitor_calibration
from twinloop.release.monitor.live import LiveMonitor
from twinloop.release.running_policy import Decider, LocalDecider
from twinloop.release.running_robot import RobotObservation, TimedRobot, WatcherReport
from twinloop.release.shadow import ShadowLog
from twinloop.release.stages import StageTracker
from twinloop.twin import load_twin

OnAlarm = Literal["stop", "log"]


class MonitorWatcher:
    """Watcher that scores every control step with a monitor.

    Args:
        monitor: monitor calibrated for the acting policy.
        decider: acting policy, which must run in this process.
        robot: robot that the policy controls.
        on_alarm: ``stop`` ends the episode at an alarm; ``log`` only records the alarm.
    """

    def __init__(
        self, monitor: LiveMonitor, decider: LocalDecider, robot: TimedRobot, *, on_alarm: OnAlarm = "stop"
    ) -> None:
        self._monitor, self._decider, self._stops = monitor, decider, on_alarm == "stop"
        self._columns, self._step = robot.find_environment_columns(monitor.contract), 0

    def begin(self, episode: int) -> None:  # noqa: ARG002  # the monitor does not depend on the number
        """Start a new episode of the monitor; the number ``episode`` is not used."""
        self._monitor.begin(1)

    def watch_step(self, observation: RobotObservation, command: NDArray[np.float64]) -> WatcherReport:
        """Return the monitor's scores and alarms for one step.

        Args:
            observation: observation of the step.
            command: command that was sent, shape ``(k,)`` for k joints, in the robot's units.
        """
        rows = {key: np.asarray(values)[None] for key, values in observation.arrays.items()}
        if ENVIRONMENT in rows:
            rows[ENVIRONMENT] = rows[ENVIRONMENT][:, self._columns]
        result = self._monitor.score_step(rows, self._decider.acting, command[None], observation.reading[None])
        scores = {name: float(values[0]) for name, values in result.scores.items()}
        messages = tuple(str(alarm) for alarm in result.alarms)
        log_metrics(self._step, {f"monitor/{name}": score for name, score in scores.items()})
        self._step += 1
        return WatcherReport(
            scores=scores, alarm=messages[0] if messages and self._stops else "", notes=() if self._stops else messages
        )

    def end(self, success: bool | None) -> list[str]:
        """Add the finished episode to the monitor's history, and return one sentence for each drift over the episodes.

        Args:
            success: whether the episode succeeded; None if unknown.
        """
        return self._monitor.end(0, success=success)


class FigureWatcher:
    """Watcher that reports measured and commanded joint positions in SI units, see `core.metrics`.

    Args:
        units: joints of the robot and their units.
    """

    def __init__(self, units: UnitMap) -> None:
        self._units, self._step = units, 0

    def begin(self, episode: int) -> None:
        """Do nothing: the steps of all episodes are counted together."""

    def watch_step(self, observation: RobotObservation, command: NDArray[np.float64]) -> WatcherReport:
        """Report one step; see `Watcher`."""
        rows = {"measured": observation.reading, "commanded": command}
        values = {
            f"{kind}/{joint}": value
            for kind, row in rows.items()
            for joint, value in zip(self._units.names, self._units.to_si(row), strict=True)
        }
        log_metrics(self._step, values)
        self._step += 1
        return WatcherReport()


def open_watcher(folder: Path, decider: Decider, robot: TimedRobot, *, on_alarm: OnAlarm = "stop") -> MonitorWatcher:
    """Open the monitor that is stored in a folder, after checking that it was calibrated for the acting policy.

    Args:
        decider: acting policy.
        robot: robot that the policy controls.
        on_alarm: ``stop`` ends the episode at an alarm; ``log`` only records the alarm.

    Raises:
        InputError: If the folder has no monitor, the monitor is for another policy, or the policy runs on a server. A
            server returns commands only, but a monitor also needs the policy's features.
    """
    if not isinstance(decider, LocalDecider):
        raise InputError(
            f"A monitor needs the policy in this process, but {decider.name} runs on a server. Run the policy here, "
            "from its folder or by name, or leave --monitor out."
        )
    calibration, _ = read_monitor_calibration(folder)
    monitor = LiveMonitor.open(folder, load_twin(calibration.origin.twin), policy_hash=decider.hash)
    return MonitorWatcher(monitor, decider, robot, on_alarm=on_alarm)


Array = NDArray[np.float64]
_RESTART_S = 30.0


class ShadowWatcher:
    """Watcher that computes the commands of a policy in shadow and compares them with those of the acting policy.

    The robot never waits for an answer: the answer to the observation of one step is compared at the next step, with
    the command that was sent for the same observation.

    Args:
        decider: policy in shadow.
        robot: robot whose observations the policy gets.
        stages: stage tracker of the deployment (`StageTracker`), which creates the shadow log of each episode.
        patience_s: time in s to wait for an answer; 0 for a real robot, whose time continues while the policy computes.
        budget_s: longest time in s that an answer may take without counting as a fault; None for no limit.
    """

    def __init__(
        self,
        decider: Decider,
        robot: TimedRobot,
        stages: StageTracker,
        *,
        patience_s: float = 0.0,
        budget_s: float | None = None,
    ) -> None:
        self._decider, self._stages, self._patience, self._budget = decider, stages, patience_s, budget_s
        self._columns = robot.find_environment_columns(decider.contract)
        self._thread = CallThread(f"shadow {decider.name}")
        self._pending: tuple[Array, float] | None = None
        self.log: ShadowLog = stages.create_shadow_log(decider.contract.action.names, budget_s=budget_s)

    def begin(self, episode: int) -> None:
        """Start a new episode of the policy in shadow, and an empty shadow log.

        Raises:
            TwinloopError: If the policy cannot start.
        """
        if self._thread.busy:
            self._thread.wait(_RESTART_S)
        self._thread.start(lambda: self._decider.restart(episode))
        answer = self._thread.wait(_RESTART_S)
        if answer is None or answer.error is not None:
            why = "it does not answer" if answer is None or answer.error is None else describe_error(answer.error)
            raise TwinloopError(f"{self._decider.name}, in shadow, cannot start an episode: {why}.")
        self._pending = None
        self.log = self._stages.create_shadow_log(self._decider.contract.action.names, budget_s=self._budget)

    def watch_step(self, observation: RobotObservation, command: Array) -> WatcherReport:
        """Request the shadow's command for an observation; report the difference at the last compared step.

        Args:
            observation: observation of the step.
            command: command that was sent, shape ``(k,)`` for k joints, in the robot's units.

        Returns:
            Report with the score ``shadow``: the largest difference of any joint; no score before the first comparison.
        """
        self._compare()
        if not self._thread.busy:
            arrays = observation.copy_for_policy(self._decider.contract, self._columns)
            self._thread.start(lambda: self._decider.act(arrays))
        self._pending = (command, time.perf_counter())
        if self._patience:
            self._compare()
        last = self.log.steps[-1:]
        return WatcherReport(scores={"shadow": last[0].largest} if last else {})

    def close(self) -> None:
        """End the watcher's thread and close the policy in shadow."""
        self._thread.close()
        self._decider.close()

    def _compare(self) -> None:
        if self._pending is None:
            return
        command, began = self._pending
        answer = self._thread.wait(self._patience)
        spent = time.perf_counter() - began
        given = None if answer is None or answer.error is not None else answer.value
        self.log.compare_step(command, given, latency_s=spent if self._patience else None)
        self._pending = None
