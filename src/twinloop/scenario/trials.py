"""Tries of a pinned world: under an actor, or under the commands that were issued; as often as asked for."""

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

_BATCH = 128  # worlds at once: past this a batch gets no faster on C threads (benchmarks/speed/generate.py)
LOGGED = "commands"  # what is said to have acted where the commands of the log were issued again


@dataclass(frozen=True, kw_only=True)
class TrialOutcomes:
    """What tries came to: ``success`` ``(n,)``, and ``valid`` ``(n,)``, false where the simulation lost a world.

    Try 0 is the pinned world itself. ``actor`` says who acted.
    """

    actor: str
    success: NDArray[np.bool_]
    valid: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.success)

    @property
    def trials(self) -> int:
        """Tries that can be counted."""
        return int(self.valid.sum())

    @property
    def successes(self) -> int:
        """Of those, how many ended in success."""
        return int((self.success & self.valid).sum())

    @property
    def failures(self) -> int:
        """Of those, how many did not."""
        return self.trials - self.successes

    def success_rate(self, level: float = 0.95) -> Interval:
        """The success rate with its exact interval.

        Raises:
            InputError: the simulation lost every world.
        """
        if not self.trials:
            raise InputError(
                f"The simulation lost all {len(self)} worlds, so there is no rate. Check the twin with `twinloop twin "
                "check`, or try values nearer to nominal."
            )
        return clopper_pearson(self.successes, self.trials, level=level)

    def failure_rate(self, level: float = 0.95) -> Interval:
        """The failure rate with its exact interval; raises as `success_rate`."""
        self.success_rate(level)
        return clopper_pearson(self.failures, self.trials, level=level)

    def against(self, base: TrialOutcomes) -> PairedCounts | None:
        """Pairs of these tries (a) with those of the same worlds in ``base`` (b); None where none is valid in both."""
        n = min(len(self), len(base))
        both = self.valid[:n] & base.valid[:n]
        if not both.any():
            return None
        a, b = self.success[:n][both], base.success[:n][both]
        pairs = {"both": a & b, "only_a": a & ~b, "only_b": ~a & b, "neither": ~a & ~b}
        return PairedCounts(**{name: int(there.sum()) for name, there in pairs.items()})

    def to_json(self, level: float = 0.95) -> dict[str, Any]:
        """A plain form: counts, failure rate with its interval, and each try in order: 1 success, 0 failure, x lost."""
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
        """Every try in order as a letter: 1 success, 0 failure, x lost."""
        pairs = zip(self.success.tolist(), self.valid.tolist(), strict=True)
        return "".join("x" if not valid else "01"[success] for success, valid in pairs)

    @classmethod
    def of_outcomes(cls, outcomes: str, actor: str = "") -> TrialOutcomes:
        """The inverse of `outcomes`."""
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
    """Let an actor act in a pinned world and worlds like it; see `PinnedWorld.beginning` for the arguments."""
    begun = pinned.beginning(n, twin=twin, task=task, chance=chance, values=values)
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
        for part in _parts(begun)
    ]
    return TrialOutcomes(
        actor=actor.name,
        success=np.concatenate([part.success for part in parts]),
        valid=np.concatenate([part.trajectories.valid for part in parts]),
    )


def try_commands(
    pinned: PinnedWorld, twin: Twin, task: Task, n: int, *, backend: Backend | None = None
) -> TrialOutcomes:
    """Issue the commands that were issued, whatever comes of it; see `PinnedWorld.beginning` for the arguments.

    Raises:
        InputError: the world holds no commands.
    """
    if pinned.commands is None:
        raise InputError(f"Scenario {pinned.name} holds no commands. Try it under an actor instead.")
    begun = pinned.beginning(n, twin=twin, task=task)
    backend, success, valid = backend or open_backend(), [], []
    for part in _parts(begun):
        commands = np.tile(pinned.commands, (len(part.numbers), 1, 1))
        ran = rollout(backend, twin, part.params, part.initial, commands, commands.shape[1])
        kept = ran.valid & ~np.array([bool(reason) for reason in part.initial.refused or [""] * len(ran.valid)])
        success.append(task.success(ran.states)[:, -1] & kept)
        valid.append(kept)
    return TrialOutcomes(actor=LOGGED, success=np.concatenate(success), valid=np.concatenate(valid))


def _parts(begun: EpisodeStart) -> list[EpisodeStart]:
    """A beginning in batches."""
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
