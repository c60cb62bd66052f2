"""A policy in shadow: it is shown what the acting one sees, and its commands are compared and never sent."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import TwinloopError
from twinloop.core.extension import raised
from twinloop.hardware.call_thread import CallThread
from twinloop.release.running_policy import Decider
from twinloop.release.running_robot import Seen, Spoken
from twinloop.release.running_steps import Told
from twinloop.release.shadow import ShadowLog
from twinloop.release.stages import Stages

Array = NDArray[np.float64]
_RESTART_S = 30.0


class ShadowWatcher:
    """See `running.Watcher`. An answer is compared one step later, so that the robot never waits for it.

    Args:
        decider: the policy in shadow.
        robot: whose observations it is shown.
        stages: keeps the log of each episode.
        patience_s: how long an answer is waited for; 0 on a robot whose time goes on meanwhile.
        budget_s: how long an answer may take without being at fault.
    """

    def __init__(
        self, decider: Decider, robot: Spoken, stages: Stages, *, patience_s: float = 0.0, budget_s: float | None = None
    ) -> None:
        self._decider, self._stages, self._patience, self._budget = decider, stages, patience_s, budget_s
        self._columns = robot.environment_columns(decider.contract)
        self._thread = CallThread(f"shadow {decider.name}")
        self._pending: tuple[Array, float] | None = None
        self.log: ShadowLog = stages.shadow_log(decider.contract.action.names, budget_s=budget_s)

    def begin(self, episode: int) -> None:
        """See `running.Watcher`.

        Raises:
            TwinloopError: the policy cannot begin.
        """
        if self._thread.busy:
            self._thread.wait(_RESTART_S)
        self._thread.start(lambda: self._decider.restart(episode))
        answer = self._thread.wait(_RESTART_S)
        if answer is None or answer.error is not None:
            why = "it does not answer" if answer is None or answer.error is None else raised(answer.error)
            raise TwinloopError(f"{self._decider.name}, in shadow, cannot begin an episode: {why}.")
        self._pending = None
        self.log = self._stages.shadow_log(self._decider.contract.action.names, budget_s=self._budget)

    def look(self, seen: Seen, command: Array) -> Told:
        """See `running.Watcher`."""
        self._compare()
        if not self._thread.busy:
            arrays = seen.shown(self._columns)
            self._thread.start(lambda: self._decider.act(arrays))
        self._pending = (command, time.perf_counter())
        if self._patience:
            self._compare()
        last = self.log.steps[-1:]
        return Told(scores={"shadow": last[0].largest} if last else {})

    def close(self) -> None:
        """End its thread."""
        self._thread.close()
        self._decider.close()

    def _compare(self) -> None:
        if self._pending is None:
            return
        command, began = self._pending
        answer = self._thread.wait(self._patience)
        spent = time.perf_counter() - began
        given = None if answer is None or answer.error is not None else answer.value
        self.log.look(command, given, latency_s=spent if self._patience else None)
        self._pending = None
