"""How a fit walks, and which episodes it must not see."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from twinloop.core.errors import InputError
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin.quantities import Prior


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """How a fit walks; the defaults suit arms of six joints logged at 30 Hz.

    Attributes:
        replay: how the log is cut into windows, and what is compared.
        free: parameters that are free, as patterns with ``*``; None for those of the robot that a log can speak of.
        quantities: of these, only those of such quantities (``kp``, ``damping``, …); None for all.
        fixed: parameters known beforehand, SI.
        priors: by pattern, before those of the quantities' declarations.
        start: where to start from, SI, in place of the nominal values.
        walk: training windows (whole episodes where none are cut) that the walk sees, evenly spread; the last steps see
            them all.
        physics_hz: rate of the physics during the fit, at most the twin's own. On the SO-101 log 240 Hz changes the
            error by 1 % against 480 Hz and halves the time.
        iterations: most iterations of the walk.
        polish: iterations on all training windows afterwards.
        level: confidence level of the intervals.
        coupled: one Jacobian of all joints (True) or one block per joint; None chooses by their number.
        width: where the loss turns from square to linear, by a factor on the median residual of each channel, which is
            estimated at the beginning of a walk and again on the way.
        rescale: at most how often the noise of every sensor is estimated anew while the walk goes on.
        bounds: narrower bounds by pattern, SI.
        search: ``lm`` walks downhill from one start, ``multistart`` from many at once; ``cma`` is an evolution strategy
            for landscapes so rough that slopes mislead, such as those of contact. Each ends with ``lm``.
        starts: starts of ``multistart``, the given one and draws from the prior.
        generations: of ``cma``, at most.
        population: of ``cma``; None for 4 + ⌊3 ln p⌋ of p parameters.
        seed: of the starts and of ``cma``.
        bootstrap: full refits to clusters drawn again, for the intervals; 0 for their linearization.
        profile: parameters whose profile likelihood is walked.
        checkpoint: file that keeps the last good state of the fit, and from which the same fit goes on.
    """

    replay: ReplayOptions = field(default_factory=ReplayOptions)
    free: tuple[str, ...] | None = None
    quantities: tuple[str, ...] | None = None
    fixed: Mapping[str, float] = field(default_factory=dict[str, float])
    priors: Mapping[str, Prior] = field(default_factory=dict[str, Prior])
    start: Mapping[str, float] = field(default_factory=dict[str, float])
    walk: int = 12
    physics_hz: float = 240.0
    iterations: int = 20
    polish: int = 1
    level: float = 0.95
    coupled: bool | None = None
    width: float = 1.0
    rescale: int = 2
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    search: Literal["lm", "multistart", "cma"] = "lm"
    starts: int = 8
    generations: int = 60
    population: int | None = None
    seed: int = 0
    bootstrap: int = 0
    profile: tuple[str, ...] = ()
    checkpoint: Path | None = None


_FORMS = "Write last:K, every:K or a list of episode numbers such as 3,7,9."


@dataclass(frozen=True, kw_only=True)
class HoldoutSpec:
    """The held-out part of a log: its ``last`` K episodes, one in K (``every``), or a ``list`` of episode numbers.

    ``option`` names it in messages.
    """

    kind: Literal["none", "last", "every", "list"]
    count: int = 0
    numbers: tuple[int, ...] = ()
    option: str = "--holdout"

    @classmethod
    def parse(cls, text: str | None, *, option: str = "--holdout") -> HoldoutSpec:
        """``last:K``, ``every:K`` or ``3,7,9``; None holds nothing out.

        Raises:
            InputError: the text is none of these; says which forms exist.
        """
        if text is None:
            return cls(kind="none", option=option)
        stripped = text.strip()
        if not stripped:
            raise InputError(f"{option} is empty. {_FORMS} Leave it away to hold out nothing.")
        if match := re.fullmatch(r"(last|every):(\d+)", stripped):
            kind, count = match.group(1), int(match.group(2))
            least = 1 if kind == "last" else 2
            if count < least:
                raise InputError(
                    f"{option} {stripped} would hold out {'nothing' if kind == 'last' else 'all'}. {_FORMS}"
                )
            return cls(kind="last" if kind == "last" else "every", count=count, option=option)
        if re.fullmatch(r"\d+(\s*,\s*\d+)*", stripped):
            return cls(kind="list", numbers=tuple(int(part) for part in stripped.split(",")), option=option)
        raise InputError(f"{option} {stripped!r} is not understood. {_FORMS}")

    def split(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Positions of the training and of the held-out episodes among ``numbers``, both in order.

        Raises:
            InputError: an episode that does not exist, nothing held out though it was asked for, or nothing left to
                train on.
        """
        held = self._held(list(numbers))
        if not held and self.kind != "none":
            raise InputError(
                f"{self.option} {self} holds out none of {len(numbers)} episodes. Choose a smaller number."
            )
        training = [i for i in range(len(numbers)) if i not in held]
        if not training:
            raise InputError(f"{self.option} {self} of {len(numbers)} episodes leaves none to train on. {_FORMS}")
        return training, sorted(held)

    def _held(self, numbers: list[int]) -> set[int]:
        if self.kind == "last":
            return set(range(max(0, len(numbers) - self.count), len(numbers)))
        if self.kind == "every":
            return set(range(self.count - 1, len(numbers), self.count))
        missing = sorted(set(self.numbers) - set(numbers))
        if missing:
            raise InputError(
                f"{self.option} {self}: there is no episode {', '.join(map(str, missing))} to hold out; "
                f"there are {len(numbers)}, numbered {min(numbers)} to {max(numbers)}."
            )
        return {numbers.index(number) for number in self.numbers}

    def __str__(self) -> str:
        if self.kind == "list":
            return ",".join(map(str, self.numbers))
        return "none" if self.kind == "none" else f"{self.kind}:{self.count}"
