"""Run trials of a stored scenario, with an actor or with the logged commands, any number of times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.rollout import Actor, run_batch
from twinloop.rollout.actor import EpisodeStart
from twinloop.rollout.pinned import Chance, PinnedWorld
from twinloop.simulate import Backend, open_backend, rollout
from twinloop.stats import Interval, PairedCounts, clopper_pearson
from twinloop.tasks import Task
from twinloop.twin import Twin

_BATCH = 128  # worlds at once: larger batches are not faster on C threads (benchmarks/speed/generate.py)
LOGGED = "commands"  # name of the actor if the commands of the log were issued again


@dataclass(frozen=True, kw_only=True)
class TrialOutcomes:
    """Outcomes of trials: ``success`` ``(n,)``, and ``valid`` ``(n,)``, false for an invalid world.

    Trial 0 is the stored world itself. ``actor`` is the actor's name.
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
        """Number of valid trials with success."""
        return int((self.success & self.valid).sum())

    @property
    def failures(self) -> int:
        """Number of valid trials without success."""
        return self.trials - self.successes

    def success_rate(self, level: float = 0.95) -> Interval:
        """Return the success rate with its exact interval.

        Raises:
            InputError: no world is valid.
        """
        if not self.trials:
            raise InputError(
                f"All {len(self)} worlds are invalid, so there is no rate. Check the twin with `twinloop twin "
                "check`, or use values nearer to nominal."
            )
        return clopper_pearson(self.successes, self.trials, level=level)

    def failure_rate(self, level: float = 0.95) -> Interval:
        """Return the failure rate with its exact interval; raises as `success_rate`."""
        self.success_rate(level)
        return clopper_pearson(self.failures, self.trials, level=level)

    def pair_with(self, base: TrialOutcomes) -> PairedCounts | None:
        """Return pairs of these trials (a) with the same worlds in ``base`` (b); None if no pair is valid in both."""
        n = min(len(self), len(base))
        both = self.valid[:n] & base.valid[:n]
        if not both.any():
            return None
        a, b = self.success[:n][both], base.success[:n][both]
        pairs = {"both": a & b, "only_a": a & ~b, "only_b": ~a & b, "neither": ~a & ~b}
        return PairedCounts(**{name: int(there.sum()) for name, there in pairs.items()})

    def to_json(self, level: float = 0.95) -> dict[str, Any]:
        """Return counts, failure rate with its interval, and `outcomes` as a JSON-compatible dictionary."""
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
        """Every trial in order as a letter: 1 success, 0 failure, x invalid."""
        pairs = zip(self.success.tolist(), self.valid.tolist(), strict=True)
        return "".join("x" if not valid else "01"[success] for success, valid in pairs)

    @classmethod
    def of_outcomes(cls, outcomes: str, actor: str = "") -> TrialOutcomes:
        """Return the trials of a text of `outcomes`."""
        letters = np.array(list(outcomes), dtype="U1")
        return cls(actor=actor, success=letters == "1", valid=letters != "x")


def try_actor(
    pinned: PinnedWorld,
    twin: Twin,
    task: Task,
    actor: Actor,
    n: int,
    *,
    chance: Chance = "varied",
    values: Mapping[str, Any] | None = None,
    backend: Backend | None = None,
) -> TrialOutcomes:
    """Run an actor in a stored world and variations of it; see `PinnedWorld.make_worlds` for the arguments."""
    begun = pinned.make_worlds(n, twin=twin, task=task, chance=chance, values=values)
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
        for part in _split_batches(begun)
    ]
    return TrialOutcomes(
        actor=actor.name,
        success=np.concatenate([part.success for part in parts]),
        valid=np.concatenate([part.trajectories.valid for part in parts]),
    )


def try_commands(
    pinned: PinnedWorld, twin: Twin, task: Task, n: int, *, backend: Backend | None = None
) -> TrialOutcomes:
    """Issue the logged commands again, without feedback; see `PinnedWorld.make_worlds` for the arguments.

    Raises:
        InputError: the scenario has no commands.
    """
    if pinned.commands is None:
        raise InputError(f"Scenario {pinned.name} has no commands. Run it with an actor instead.")
    begun = pinned.make_worlds(n, twin=twin, task=task)
    backend, success, valid = backend or open_backend(), [], []
    for part in _split_batches(begun):
        commands = np.tile(pinned.commands, (len(part.numbers), 1, 1))
        ran = rollout(backend, twin, part.params, part.initial, commands, commands.shape[1])
        kept = ran.valid & ~np.array([bool(reason) for reason in part.initial.refused or [""] * len(ran.valid)])
        success.append(task.success(ran.states)[:, -1] & kept)
        valid.append(kept)
    return TrialOutcomes(actor=LOGGED, success=np.concatenate(success), valid=np.concatenate(valid))


def _split_batches(begun: EpisodeStart) -> list[EpisodeStart]:
    """Divide the initial worlds into batches."""
    starts = range(0, len(begun.numbers), _BATCH)
    cuts = [np.arange(start, min(start + _BATCH, len(begun.numbers))) for start in starts]
    return [
        EpisodeStart(
            numbers=begun.numbers[cut],
            params=begun.params.take(cut),
            initial=begun.initial.take(cut),
            run_seed=begun.run_seed,
            attempt=begun.attempt,
        )
        for cut in cuts
    ]
