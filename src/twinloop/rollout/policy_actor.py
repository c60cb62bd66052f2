"""Run a policy in the worlds of a batch, hundreds at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import ENVIRONMENT
from twinloop.core.errors import InputError
from twinloop.core.units import UnitMap
from twinloop.policies import PolicyLoop, Predictor
from twinloop.rollout.actor import EpisodeStart
from twinloop.rollout.observing import PERFECT, Observation, Photograph, TrackerNoise, WorldObserver, offered_contract
from twinloop.simulate import Controller, Simulation
from twinloop.tasks import Task
from twinloop.twin import Twin


class HashedPolicy(Predictor, Protocol):
    """A policy with a content hash."""

    @property
    def hash(self) -> str:
        """SHA-256 of everything that determines its commands."""
        ...


Watch = Callable[[Observation, PolicyLoop, NDArray[np.float64]], None]
"""Called at every step with the observation, the policy in the loop and its commands in the dataset's units."""


@dataclass(kw_only=True)
class PolicyActor:
    """An `Actor` that runs a policy.

    The commands of an episode depend on the policy, the run seed, the episode's number and attempt, and the
    observations. A world with non-finite observations or commands holds its last command. ``latest`` is the policy loop
    with the worlds of the last batch; its ``refusals`` list such worlds.

    Args:
        policy: an opened policy, or any object that predicts.
        task: the task to perform.
        twin: twin of the worlds; must be the task's.
        units: units of readings and commands; by default the twin's. They must be the policy's.
        tracker: errors of the scene tracker.
        photograph: takes the images, if the policy has cameras.
        domain: name of the policy's domain token; by default the policy's default.
        watch: called at every step, without effect on the run.

    Raises:
        InputError: the policy's contract does not match; the message lists every difference.
    """

    policy: HashedPolicy
    task: Task
    twin: Twin
    units: UnitMap | None = None
    tracker: TrackerNoise = PERFECT
    photograph: Photograph | None = None
    domain: str | None = None
    watch: Watch | None = None
    latest: PolicyLoop | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        wanted = self.policy.contract
        cameras = wanted.cameras if self.photograph is not None else {}
        offered = offered_contract(self.twin, self.task, units=self.units, cameras=cameras)
        differences = wanted.find_differences(offered)
        if differences:
            raise InputError(
                f"The policy {self.policy.hash[:12]} cannot act on {self.twin.name} at {self.task.name}:\n"
                + "\n".join(f"  {said}" for said in differences)
                + "\nTrain one for this contract, or choose the twin and the task that it was trained for."
            )
        self._columns = [offered.environment.index(name) for name in wanted.environment]

    @property
    def name(self) -> str:
        """Policy hash, with the other settings that affect its commands."""
        tracker = f"Tracker(noise={self.tracker.noise!r}, offset={self.tracker.offset!r})"  # as stored files have it
        more = "" if self.tracker == PERFECT else f", {tracker}"
        return f"policy {self.policy.hash}{'' if self.domain is None else f', domain {self.domain}'}{more}"

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return a controller that observes these worlds and runs the policy."""
        contract = self.policy.contract
        acting = PolicyLoop(
            self.policy,
            len(worlds.numbers),
            worlds.run_seed,
            worlds.numbers,
            attempt=worlds.attempt,
            domain=self.domain,
            command=contract.action.from_si(worlds.initial.command),
            on_refusal="hold",
        )
        observer = WorldObserver(
            self.twin,
            self.task,
            worlds,
            units=self.units,
            tracker=self.tracker,
            photograph=self.photograph,
            parts=(*(("state",) if contract.state else ()), *(("environment",) if contract.environment else ())),
        )
        self.latest = acting
        return self._controller(observer, acting)

    def _controller(self, observer: WorldObserver, acting: PolicyLoop) -> Controller:
        action, columns, watch = self.policy.contract.action, self._columns, self.watch

        def command(simulation: Simulation) -> NDArray[np.float64]:
            seen = observer.observe_worlds(simulation.state, simulation.step_index)
            if columns:
                seen[ENVIRONMENT] = seen[ENVIRONMENT][:, columns]
            commands = acting.act(seen)
            if watch is not None:
                watch(seen, acting, commands)
            return action.to_si(commands)

        return command
