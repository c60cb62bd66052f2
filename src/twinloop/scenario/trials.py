"""Run trials of a stored scenario, with a policy or with the logged commands, any number of times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.rollout import Actor, run_batch
from twinloop.rollout.actor import EpisodeStart
from twinloop.rollout.scenario import RandomNumbers, Scenario
from twinloop.simulate import Backend, open_backend, rollout
from twinloop.stats import Interval, PairedCounts, clopper_pearson
from twinloop.tasks import Task
from twinloop.twin import Twin

_BATCH = 128  # worlds at once: larger batches are not faster on C threads (benchmarks/speed/generate.py)
LOGGED = "commands"  # name of the actor if the commands of the log were issued again


@dataclass(frozen=True, kw_only=True)
class TrialOutcomes:
    """Outcomes of n trials of one scenario; trial 0 is the stored world itself.

    Attributes:
        actor: Name of the policy or other source of commands.
        success: Whether each trial succeeded, shape ``(n,)``.
        valid: Whether the simulation of each trial is valid, that is, did not diverge, shape ``(n,)``.
    """

    actor: str
    success: NDArray[np.bool_]
    valid: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.success)

    @property
    def trials(self) -> int:
        """Number of valid trials."""
        return int(self.valid.sum())

    @property
    def successes(self) -> int:
        """Number of valid trials that succeeded."""
        return int((self.success & self.valid).sum())

    @property
    def failures(self) -> int:
        """Number of valid trials that failed."""
        return self.trials - self.successes

    def success_rate(self, level: float = 0.95) -> Interval:
        """Return the success rate of the valid trials, with its exact (Clopper–Pearson) interval.

        Raises:
            InputError: If no trial is valid.
        """
        if not self.trials:
            raise InputError(
                f"All {len(self)} worlds are invalid, so there is no rate. Check the twin with `twinloop twin "
                "check`, or use values nearer to nominal."
            )
        return clopper_pearson(self.successes, self.trials, level=level)

    def failure_rate(self, level: float = 0.95) -> Interval:
        """Return the failure rate of the valid trials, with its exact (Clopper–Pearson) interval.

        Raises:
            InputError: If no trial is valid.
        """
        self.success_rate(level)
        return clopper_pearson(self.failures, self.trials, level=level)

    def pair_with(self, base: TrialOutcomes) -> PairedCounts | None:
        """Return the counts of pairs of these trials (a) and other trials in the same worlds (b), by their outcomes.

        Args:
            base: Other trials of the same scenario. Trials with the same index are pairs.

        Returns:
            The counts, or None if no pair is valid in both.
        """
        n = min(len(self), len(base))
        both = self.valid[:n] & base.valid[:n]
        if not both.any():
            return None
        return PairedCounts.of_outcomes(self.success[:n][both], base.success[:n][both])

    def to_json(self, level: float = 0.95) -> dict[str, Any]:
        """Return numbers of trials, failure rate with its interval, and `outcomes` as a JSON-compatible dictionary."""
        rate = self.failure_rate(level)
        return {
            "actor": self.actor,
            "trials": self.trials,
            "failures": self.failures,
            "failure_rate": float(rate.estimate),
            "low": float(rate.low),
            "high": float(rate.high),
            "level": level,
            "outcomes": self.outcomes,
        }

    @property
    def outcomes(self) -> str:
        """Outcomes of all trials as a text with one letter per trial: 1 success, 0 failure, x invalid."""
        pairs = zip(self.success.tolist(), self.valid.tolist(), strict=True)
        return "".join("x" if not valid else "01"[success] for success, valid in pairs)

    @classmethod
    def of_outcomes(cls, outcomes: str, actor: str = "") -> TrialOutcomes:
        """Return trials from a text with one letter per trial: 1 success, 0 failure, x invalid."""
        letters = np.array(list(outcomes), dtype="U1")
        return cls(actor=actor, success=letters == "1", valid=letters != "x")


def try_actor(
    scenario: Scenario,
    twin: Twin,
    task: Task,
    actor: Actor,
    n: int,
    *,
    random_numbers: RandomNumbers = "varied",
    values: Mapping[str, Any] | None = None,
    backend: Backend | None = None,
) -> TrialOutcomes:
    """Run a policy in a stored world and in variations of it.

    Variations have other stored draws of the uncertain parameters and, if ``random_numbers`` is ``varied``, other
    random effects (noise, jitter).

    Args:
        scenario: The stored world.
        twin: Twin of the scenario.
        task: Task of the scenario.
        actor: Policy or other source of commands.
        n: Number of trials; trial 0 is the stored world itself.
        random_numbers: Whether trials after the first have new random effects (``varied``) or those of the stored world
            (``held``).
        values: Parameter values that replace those of the world, by name; one number or an array of shape ``(n,)``.
        backend: Backend that simulates the worlds; by default `threads`, which uses all CPU cores.
    """
    worlds = scenario.make_worlds(n, twin=twin, task=task, random_numbers=random_numbers, values=values)
    backend = backend or open_backend()
    parts = [
        run_batch(
            twin,
            task,
            part.params,
            run_seed=part.run_seed,
            episodes=part.numbers.tolist(),
            attempt=part.attempt,
            backend=backend,
            actor=actor,
            initial=part.initial,
        )
        for part in _split_batches(worlds)
    ]
    return TrialOutcomes(
        actor=actor.name,
        success=np.concatenate([part.success for part in parts]),
        valid=np.concatenate([part.trajectories.valid for part in parts]),
    )


def try_commands(
    scenario: Scenario, twin: Twin, task: Task, n: int, *, backend: Backend | None = None
) -> TrialOutcomes:
    """Issue the logged commands again in a stored world and in variations of it, without feedback.

    Variations have other random effects (noise, jitter), and other values of the uncertain parameters, from draws that
    are stored with the scenario.

    Args:
        scenario: The stored world with its logged commands.
        twin: Twin of the scenario.
        task: Task of the scenario.
        n: Number of trials; trial 0 is the stored world itself.
        backend: Backend that simulates the worlds; by default `threads`, which uses all CPU cores.

    Raises:
        InputError: If the scenario has no logged commands.
    """
    if scenario.commands is None:
        raise InputError(f"Scenario {scenario.name} has no commands. Run it with an actor instead.")
    worlds = scenario.make_worlds(n, twin=twin, task=task)
    backend, success, valid = backend or open_backend(), [], []
    for part in _split_batches(worlds):
        commands = np.tile(scenario.commands, (len(part.numbers), 1, 1))
        result = rollout(backend, twin, part.params, part.initial, commands, commands.shape[1])
        is_valid = result.valid & ~np.array(
            [bool(reason) for reason in part.initial.refused or [""] * len(result.valid)]
        )
        success.append(task.success(result.states)[:, -1] & is_valid)
        valid.append(is_valid)
    return TrialOutcomes(actor=LOGGED, success=np.concatenate(success), valid=np.concatenate(valid))


def _split_batches(worlds: EpisodeStart) -> list[EpisodeStart]:
    """Divide worlds into batches of at most 128 worlds."""
    starts = range(0, len(worlds.numbers), _BATCH)
    cuts = [np.arange(start, min(start + _BATCH, len(worlds.numbers))) for start in starts]
    return [
        EpisodeStart(
            numbers=worlds.numbers[cut],
            params=worlds.params.take(cut),
            initial=worlds.initial.take(cut),
            run_seed=worlds.run_seed,
            attempt=worlds.attempt,
        )
        for cut in cuts
    ]
