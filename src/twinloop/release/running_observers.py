"""Observe a running robot: a monitor that scores every step, and a policy in shadow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import ENVIRONMENT
from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.extension import describe_error
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
    """Watcher that runs a monitor; see `running_robot.Watcher`.

    Args:
        monitor: a monitor calibrated for the acting policy.
        decider: the acting policy, in this process.
        robot: the robot that it drives.
        on_alarm: ``stop`` ends the episode at an alarm; ``log`` only records it.
    """

    def __init__(
        self, monitor: LiveMonitor, decider: LocalDecider, robot: TimedRobot, *, on_alarm: OnAlarm = "stop"
    ) -> None:
        self._monitor, self._decider, self._stops = monitor, decider, on_alarm == "stop"
        self._columns = robot.find_environment_columns(monitor.contract)

    def begin(self, episode: int) -> None:  # noqa: ARG002  # the monitor does not depend on the number
        """Start a new episode of the monitor."""
        self._monitor.begin(1)

    def watch_step(self, seen: RobotObservation, command: NDArray[np.float64]) -> WatcherReport:
        """Return the monitor's scores and alarms for one step."""
        rows = {key: np.asarray(values)[None] for key, values in seen.arrays.items()}
        if ENVIRONMENT in rows:
            rows[ENVIRONMENT] = rows[ENVIRONMENT][:, self._columns]
        told = self._monitor.score_step(rows, self._decider.acting, command[None], seen.reading[None])
        scores = {name: float(values[0]) for name, values in told.scores.items()}
        said = tuple(str(alarm) for alarm in told.alarms)
        return WatcherReport(
            scores=scores, alarm=said[0] if said and self._stops else "", notes=() if self._stops else said
        )

    def end(self, success: bool | None) -> list[str]:
        """End an episode; return one sentence for each drift over the episodes."""
        return self._monitor.end(0, success=success)


def open_watcher(folder: Path, decider: Decider, robot: TimedRobot, *, on_alarm: OnAlarm = "stop") -> MonitorWatcher:
    """Open the monitor in a folder for the policy that it was calibrated for.

    Raises:
        InputError: the folder has no monitor, the monitor is for another policy, or the policy runs on a server, which
            returns commands only.
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
    """Watcher that runs a policy in shadow; see `running_robot.Watcher`.

    An answer is compared one step later, so that the robot never waits for it.

    Args:
        decider: the policy in shadow.
        robot: the robot whose observations it gets.
        stages: tracker that creates the log of each episode.
        patience_s: time to wait for an answer in s; 0 for a robot whose time continues meanwhile.
        budget_s: longest time in s for an answer that is not a fault.
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
        """Start a new episode of the policy in shadow, with an empty log.

        Raises:
            TwinloopError: the policy cannot start.
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

    def watch_step(self, seen: RobotObservation, command: Array) -> WatcherReport:
        """Start the shadow's answer to an observation; return the largest difference of its last compared command."""
        self._compare()
        if not self._thread.busy:
            arrays = seen.copy_for_policy(self._columns)
            self._thread.start(lambda: self._decider.act(arrays))
        self._pending = (command, time.perf_counter())
        if self._patience:
            self._compare()
        last = self.log.steps[-1:]
        return WatcherReport(scores={"shadow": last[0].largest} if last else {})

    def close(self) -> None:
        """Close its thread and its policy."""
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
