"""Define the configuration of a fit, and the selection of held-out episodes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from twinloop.core.errors import InputError
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin.quantities import Prior

_REPLAY_HZ = 240.0
_Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Configuration of a fit; the defaults suit six-joint arms logged at 30 Hz.

    Attributes:
        replay: Windows of the log, and the compared channels.
        free: Name patterns (with ``*``) of the free parameters; by default the robot's parameters that a log can
            identify.
        quantities: Restrict the free parameters to these quantities (``kp``, ``damping``, …); by default all
            quantities.
        fixed: Values of known parameters, SI.
        priors: Priors by name pattern; they take precedence over the quantities' declared priors.
        start: Start values, SI; by default the nominal values.
        walk: Number of training windows for the main iterations, evenly spaced (whole episodes if ``replay`` cuts no
            windows). The last stage uses all training windows.
        physics_hz: Physics rate of the replays, at most the twin's own, see `limit_physics_rate`. Their error is
            extrapolated. By default 240 Hz, and the twin's own rate with contacts, whose forces depend on it.
        iterations: Maximum number of main iterations.
        polish: Largest number of times that the derivatives of the last stage, with all windows, are computed again.
        level: Confidence level of the intervals.
        coupled: True fits all parameters to all channels in the main iterations; False fits each joint's parameters to
            that joint alone. By default chosen by the number of joints. The last stage always fits all to all.
        width: Residual at which the loss changes from square to linear (Huber), as a multiple of each channel's median
            absolute residual. The median is estimated at the start of the optimization and again during it.
        accuracy: Accuracy of sensors by name pattern of their channels, in the channels' units. Where a channel rests
            most of the time, such as a scale before something touches it, its residuals are mostly far smaller, and the
            few frames in motion would count as outliers.
        rescale: Maximum number of times that the noise of each sensor is estimated again during the optimization.
        bounds: Narrower bounds by name pattern, SI.
        search: ``lm`` is Levenberg-Marquardt from one start, ``multistart`` from many starts at once. ``cma`` is the
            evolution strategy CMA-ES, for rough losses with misleading gradients, such as those with contact. All end
            with ``lm``.
        starts: Number of starts of ``multistart``: the given start and draws from the prior.
        generations: Maximum number of generations of ``cma``.
        population: Number of points per generation of ``cma``; by default 4 + ⌊3 ln p⌋ for p free parameters.
        seed: Seed of the starts and of ``cma``.
        bootstrap: Number of full refits to resampled clusters of frames, from which the intervals are computed. 0 uses
            the linearized fit, which needs no refit.
        profile: Names of the parameters whose profile likelihood is computed.
        checkpoint: File with the progress of the fit. If it exists, the same fit continues from it.
    """

    replay: ReplayOptions = field(default_factory=ReplayOptions)
    free: tuple[str, ...] | None = None
    quantities: tuple[str, ...] | None = None
    fixed: Mapping[str, float] = field(default_factory=dict[str, float])
    priors: Mapping[str, Prior] = field(default_factory=dict[str, Prior])
    start: Mapping[str, float] = field(default_factory=dict[str, float])
    walk: int = 12
    physics_hz: float | None = None
    iterations: int = 20
    polish: int = 2
    level: float = 0.95
    coupled: bool | None = None
    width: float = 1.0
    accuracy: Mapping[str, _Positive] = field(default_factory=dict[str, float])
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

    @property
    def replay_hz(self) -> float:
        """Physics rate of the replays in Hz; infinite for the twin's own."""
        return self.physics_hz or (math.inf if self.replay.contacts else _REPLAY_HZ)


_FORMS = "Write last:K, every:K or a list of episode numbers such as 3,7,9."


@dataclass(frozen=True, kw_only=True)
class HoldoutSpec:
    """Selection of the held-out episodes of a log.

    Attributes:
        kind: ``last`` holds out the last ``count`` episodes, ``every`` each ``count``-th episode, ``list`` the episodes
            with these ``numbers``, ``none`` no episode.
        count: Number for ``last`` and ``every``.
        numbers: Episode numbers for ``list``.
        option: Name of the command-line option, for error messages.
    """

    kind: Literal["none", "last", "every", "list"]
    count: int = 0
    numbers: tuple[int, ...] = ()
    option: str = "--holdout"

    @classmethod
    def parse(cls, text: str | None, *, option: str = "--holdout") -> HoldoutSpec:
        """Parse ``last:K``, ``every:K`` or a list such as ``3,7,9``; None selects no episode.

        Args:
            text: The text of the option.
            option: Name of the command-line option, for error messages.

        Raises:
            InputError: If the text has none of these forms.
        """
        if text is None:
            return cls(kind="none", option=option)
        stripped = text.strip()
        if not stripped:
            raise InputError(f"{option} is empty. {_FORMS} Omit it to hold out nothing.")
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
        """Split episodes into training and held-out episodes.

        Args:
            numbers: Numbers of all episodes.

        Returns:
            The positions in ``numbers`` of the training episodes and of the held-out episodes, both in ascending order.

        Raises:
            InputError: If an episode does not exist, no episode is held out, or no episode is left for training.
        """
        held = self._held_out_positions(list(numbers))
        if not held and self.kind != "none":
            raise InputError(
                f"{self.option} {self} holds out none of {len(numbers)} episodes. Choose a smaller number."
            )
        training = [i for i in range(len(numbers)) if i not in held]
        if not training:
            raise InputError(f"{self.option} {self} of {len(numbers)} episodes leaves no episode to train on. {_FORMS}")
        return training, sorted(held)

    def _held_out_positions(self, numbers: list[int]) -> set[int]:
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
