"""Run a policy in simulated worlds, hundreds at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import ENVIRONMENT, Contract
from twinloop.core.errors import InputError
from twinloop.core.units import UnitMap
from twinloop.policies import PolicyLoop, Predictor
from twinloop.rollout.actor import EpisodeStart
from twinloop.rollout.observing import PERFECT, Observation, TrackerNoise, WorldImages, WorldObserver, offered_contract
from twinloop.simulate import Controller, Simulation
from twinloop.tasks import Task
from twinloop.twin import Twin


class HashedPolicy(Predictor, Protocol):
    """Policy with a content hash, which identifies it in the provenance of episodes."""

    @property
    def hash(self) -> str:
        """SHA-256 of everything that determines the policy's commands."""
        ...


StepCallback = Callable[[Observation, PolicyLoop, NDArray[np.float64]], None]
"""Function that is called at every control step, for example to record the policy's inputs and outputs.

Its arguments are the observation, the policy loop, and the commands ``(nworld, n)`` in the dataset's units.
"""


@dataclass(kw_only=True)
class PolicyActor:
    """Actor that runs a policy.

    The commands of an episode depend on the policy, the run seed, the episode's number and attempt, and the
    observations. In a world with non-finite observations or commands, the last valid command is held.

    Args:
        policy: an opened policy, or any object with the methods of `HashedPolicy`.
        task: the task to perform.
        twin: twin of the worlds; must be the task's.
        units: units of readings and commands, by default the twin's. They must equal the policy's.
        tracker: errors of the simulated tracker that measures object positions.
        images: source of the images; needed if the policy has cameras. It is asked only for images that the policy
            uses.
        domain: name of the domain (such as simulation or real robot) that the policy receives as an input token; by
            default the policy's default.
        step_callback: function called at every control step (see `StepCallback`); it does not affect the run.

    Attributes:
        latest: policy loop of the last batch. Its ``refusals`` list the worlds in which a command was held.

    Raises:
        InputError: If the policy's contract does not match twin and task. The message lists every difference.
    """

    policy: HashedPolicy
    task: Task
    twin: Twin
    units: UnitMap | None = None
    tracker: TrackerNoise = PERFECT
    images: WorldImages | None = None
    domain: str | None = None
    step_callback: StepCallback | None = None
    latest: PolicyLoop | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        wanted = self.policy.contract
        cameras = wanted.cameras if self.images is not None else {}
        offered = offered_contract(self.twin, self.task, units=self.units, cameras=cameras)
        require_matching_contract(self.policy, offered, self.twin, self.task)
        self._columns = [offered.environment.index(name) for name in wanted.environment]

    @property
    def name(self) -> str:
        """Hash of the policy and the settings that affect its commands, such as ``policy 3f2a…, domain real``."""
        spread = f", spread={self.tracker.spread!r}" if self.tracker.spread else ""
        tracker = f"Tracker(noise={self.tracker.noise!r}, offset={self.tracker.offset!r}{spread})"  # as in stored files
        more = "" if self.tracker == PERFECT else f", {tracker}"
        return f"policy {self.policy.hash}{'' if self.domain is None else f', domain {self.domain}'}{more}"

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return a controller that observes these worlds and runs the policy."""
        contract, acting = self.policy.contract, open_policy_loop(self.policy, worlds, domain=self.domain)
        observer = WorldObserver(
            self.twin,
            self.task,
            worlds,
            units=self.units,
            tracker=self.tracker,
            images=self.images,
            parts=(*(("state",) if contract.state else ()), *(("environment",) if contract.environment else ())),
        )
        self.latest = acting
        return self._controller(observer, acting)

    def _controller(self, observer: WorldObserver, acting: PolicyLoop) -> Controller:
        units, columns, watch = self.policy.contract.command_units, self._columns, self.step_callback

        def command(simulation: Simulation) -> NDArray[np.float64]:
            seeing = acting.find_seeing_worlds() if watch is None else None
            seen = observer.observe_worlds(simulation.state, simulation.step_index, seeing=seeing)
            if columns:
                seen[ENVIRONMENT] = seen[ENVIRONMENT][:, columns]
            commands = acting.act(seen)
            if watch is not None:
                watch(seen, acting, commands)
            return units.to_si(commands)

        return command


def require_matching_contract(policy: HashedPolicy, offered: Contract, twin: Twin, task: Task) -> None:
    """Check that a policy can act under the contract that a twin and a task offer.

    Raises:
        InputError: If it cannot. The message lists every difference.
    """
    differences = policy.contract.find_differences(offered)
    if differences:
        raise InputError(
            f"The policy {policy.hash[:12]} cannot act on {twin.name} at {task.name}:\n"
            + "\n".join(f"  {difference}" for difference in differences)
            + "\nTrain one for this contract, or choose the twin and the task that it was trained for."
        )


def open_policy_loop(policy: Predictor, worlds: EpisodeStart, *, domain: str | None = None) -> PolicyLoop:
    """Return the loop of a policy for simulated worlds, in which a command that is not finite is not issued.

    Args:
        policy: the policy.
        worlds: the worlds; their motors hold the commands of the initial states.
        domain: name of the domain that the policy receives; by default the policy's default.
    """
    return PolicyLoop(
        policy,
        len(worlds.numbers),
        worlds.run_seed,
        worlds.numbers,
        attempt=worlds.attempt,
        domain=domain,
        command=policy.contract.command_units.from_si(worlds.initial.command),
        on_refusal="hold",
    )
