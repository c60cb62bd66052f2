"""A monitor beside a running robot: its scores on record at every step, its alarms as events or as the end."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import ENVIRONMENT
from twinloop.core.errors import InputError
from twinloop.release.monitor.live import Monitor
from twinloop.release.monitor.storage import read
from twinloop.release.running_policy import Decider, LocalDecider
from twinloop.release.running_robot import Seen, Spoken
from twinloop.release.running_steps import Told
from twinloop.twin import load_twin

OnAlarm = Literal["stop", "log"]


class MonitorWatcher:
    """See `running_steps.Watcher`.

    Args:
        monitor: calibrated for the policy that acts.
        decider: that policy, in this process.
        robot: that it drives.
        on_alarm: whether an alarm ends the episode.
    """

    def __init__(self, monitor: Monitor, decider: LocalDecider, robot: Spoken, *, on_alarm: OnAlarm = "stop") -> None:
        self._monitor, self._decider, self._stops = monitor, decider, on_alarm == "stop"
        self._columns = robot.environment_columns(monitor.contract)

    def begin(self, episode: int) -> None:  # noqa: ARG002  # what is usual does not depend on the number
        """See `running_steps.Watcher`."""
        self._monitor.begin(1)

    def look(self, seen: Seen, command: NDArray[np.float64]) -> Told:
        """See `running_steps.Watcher`."""
        rows = {key: np.asarray(values)[None] for key, values in seen.arrays.items()}
        if ENVIRONMENT in rows:
            rows[ENVIRONMENT] = rows[ENVIRONMENT][:, self._columns]
        told = self._monitor.look(rows, self._decider.acting, command[None], seen.reading[None])
        scores = {name: float(values[0]) for name, values in told.scores.items()}
        said = tuple(str(alarm) for alarm in told.alarms)
        return Told(scores=scores, alarm=said[0] if said and self._stops else "", notes=() if self._stops else said)

    def end(self, success: bool | None) -> list[str]:
        """An episode is over; what the course of all of them says, a sentence each."""
        return self._monitor.end(0, success=success)


def open_watcher(folder: Path, decider: Decider, robot: Spoken, *, on_alarm: OnAlarm = "stop") -> MonitorWatcher:
    """The monitor in a folder, beside the policy that it was calibrated for.

    Raises:
        InputError: no monitor lies there, it is another policy's, or the policy runs on a server, where nothing of it
            but its commands can be looked at.
    """
    if not isinstance(decider, LocalDecider):
        raise InputError(
            f"A monitor looks into the policy, and {decider.name} runs on a server. Run the policy here, from its "
            "folder or by name, or leave --monitor out."
        )
    calibration, _ = read(folder)
    monitor = Monitor.open(folder, load_twin(calibration.origin.twin), policy_hash=decider.hash)
    return MonitorWatcher(monitor, decider, robot, on_alarm=on_alarm)
