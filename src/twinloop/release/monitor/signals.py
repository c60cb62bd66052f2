"""Name the signals of a monitor, what each points to, and how they drift from episode to episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.release.monitor.calibration import Calibration
from twinloop.stats.betting import log_e_mean
from twinloop.stats.change_points import REFERENCE, cusum, cusum_threshold, self_starting

Cause = Literal[
    "worn actuator",
    "latency",
    "unknown object",
    "moved tracker",
    "moved camera",
    "light",
    "unclear picture",
    "out of distribution",
    "unknown",
]


@dataclass(frozen=True, kw_only=True)
class SignalMeaning:
    """What a signal says: the cause it speaks for, and the words for a person.

    ``general`` signals see that something is unusual, not what: they speak only where nothing else does.
    """

    cause: Cause
    words: str
    general: bool = False


# Chosen on virtual robots 0 to 2; the tables of docs/monitoring.md are of others.
_CLEAR = 1.05  # times: signals of other causes are not that close
# The least likeness of a fault that is named, by its cause.
_ALIKE: Mapping[Cause, float] = {"worn actuator": 0.45, "latency": 0.45, "unknown object": 0.4}
_APART = 0.05  # by which the likeness of another cause's faults must be less
_EARLIER_S = 0.5  # by which drives that depart before the jaws do are not explained by what is in the jaws

_DRIVES: Mapping[str, SignalMeaning] = {
    "friction": SignalMeaning(cause="worn actuator", words="joints move as if their friction had grown"),
    "gain": SignalMeaning(cause="worn actuator", words="servos pull as if weaker than they were"),
    "play": SignalMeaning(cause="worn actuator", words="joints move as if the play of their gears had grown"),
    "latency": SignalMeaning(cause="latency", words="the robot follows its commands later than it did"),
    "load": SignalMeaning(cause="unknown object", words="the arm moves as if it carried another weight"),
    "any": SignalMeaning(cause="unknown", words="the drives do not move as the twin says", general=True),
}
_OTHERS: Mapping[str, SignalMeaning] = {
    "grip": SignalMeaning(cause="unknown object", words="the jaws stop or move other than on what they knew"),
    "tracker": SignalMeaning(cause="moved tracker", words="the tracker sees the hand where the joints say it is not"),
    "observation": SignalMeaning(
        cause="out of distribution", words="readings or scene are unlike any success", general=True
    ),
    "latent": SignalMeaning(
        cause="out of distribution", words="the policy sees what it saw in no success", general=True
    ),
    "chunk": SignalMeaning(
        cause="out of distribution", words="the policy changes its mind from chunk to chunk", general=True
    ),
}
_CAMERA: Mapping[str, SignalMeaning] = {
    "light": SignalMeaning(cause="light", words="its pictures are lighter or darker"),
    "sharpness": SignalMeaning(cause="unclear picture", words="its pictures are blurred or noisy"),
    "shift": SignalMeaning(cause="moved camera", words="the still scene stands elsewhere in its pictures"),
}


def meaning(signal: str) -> SignalMeaning:
    """What a signal says, such as ``drives/latency``, ``tracker`` or ``camera/front/shift``."""
    first, _, rest = signal.partition("/")
    if first == "drives":
        return _DRIVES[rest]
    if first == "camera":
        camera, _, kind = rest.rpartition("/")
        said = _CAMERA[kind]
        return SignalMeaning(cause=said.cause, words=f"camera {camera}: {said.words}")
    return _OTHERS[first]


def cause_of(
    excess: Mapping[str, float],
    likeness: Mapping[str, float] | None = None,
    first: Mapping[str, int] | None = None,
    *,
    hz: float = 30.0,
) -> tuple[Cause, list[Cause]]:
    """What signals point to together, and the causes that come into question, the likeliest first.

    Of the drives a fault is named that the episode so far is like, and clearly more than like one of another cause. It
    shows in the jaws too, which then say nothing of their own; nor do they where the drives had departed before for no
    known reason. The signals of one cause count by the largest; a cause stands where it is clearly further beyond its
    limit than the next. General signals speak only where no other does.

    Args:
        excess: of signals beyond their limits, how many times the limit they reached.
        likeness: of the episode so far to each fault of the drives, see `judging.Drives.likeness`.
        first: steps at which they went beyond them.
        hz: steps per second.
    """
    left = {name: value for name, value in excess.items() if not name.startswith("drives/")}
    drives = {name: value for name, value in excess.items() if name.startswith("drives/")}
    strength: dict[Cause, float] = {}
    doubtful: list[Cause] = []
    if drives:
        named = _of_drives(likeness or {})
        if len(named) == 1:
            strength[named[0]] = max(drives.values())
        else:
            doubtful = named
        if "grip" in left and not _of_the_jaws(named, drives, first or {}, hz):
            left.pop("grip")
    special = {name: value for name, value in left.items() if not meaning(name).general}
    for name, value in special.items():
        cause = meaning(name).cause
        strength[cause] = max(strength.get(cause, 0.0), value)
    if not strength and not drives:
        strength = {meaning(name).cause: value for name, value in left.items()}
    order = sorted(strength, key=lambda cause: -strength[cause])
    if not order or (len(order) > 1 and strength[order[0]] < _CLEAR * strength[order[1]]):
        return "unknown", [*order, *doubtful]
    return order[0], order


def _of_the_jaws(named: list[Cause], drives: Mapping[str, float], first: Mapping[str, int], hz: float) -> bool:
    """Whether jaws that depart speak for what they hold, beside drives that do."""
    if len(named) == 1:
        return named[0] == "unknown object"
    earliest = min((first[name] for name in drives if name in first), default=0)
    return first.get("grip", 0) - earliest <= _EARLIER_S * hz


def _of_drives(likeness: Mapping[str, float]) -> list[Cause]:
    """The cause that the drives speak for; several where it is not clear, none where they are like no fault."""
    best: dict[Cause, float] = {}
    for name, value in likeness.items():
        cause = _DRIVES[name].cause
        best[cause] = max(best.get(cause, value), value)
    alike: list[Cause] = [cause for cause, value in best.items() if value >= _ALIKE[cause]]
    if not alike:
        return []
    near: list[Cause] = [cause for cause, value in best.items() if value > max(map(best.__getitem__, alike)) - _APART]
    return sorted(near, key=best.__getitem__, reverse=True)


Array = NDArray[np.float64]
RUN_LENGTH = 1000.0  # episodes until a false alarm of drift, of all signals together (our choice)
ALPHA = 0.01  # chance that the test of a rate ever errs (our choice)
MARGIN = 0.1  # below the success rate at calibration (above that of interventions) that is tolerated (our choice)


class EpisodeScores:
    """What one episode has shown so far."""

    def __init__(self) -> None:
        self.excess: dict[str, float] = {}
        self._rise: dict[str, int] = {}
        self._total, self._count = np.zeros(0), np.zeros(0)
        self._names: Sequence[str] = ()
        self.first: dict[str, int] = {}

    def add(self, names: Sequence[str], relative: Array, standard: Array, step: int, *, rising: float) -> None:
        """Scores of a step, in units of their limits and standardized."""
        if not self._names:
            self._names, self._total, self._count = names, np.zeros(len(names)), np.zeros(len(names))
        known = np.isfinite(standard)
        self._total[known] += standard[known]
        self._count[known] += 1
        for name, value in zip(names, relative.tolist(), strict=True):
            if value > rising:
                self._rise.setdefault(name, step)
            else:
                self._rise.pop(name, None)

    def since(self, name: str, step: int) -> int:
        """The step since which a signal has been rising."""
        return self._rise.get(name, step)

    def beyond(self, name: str, step: int, excess: float) -> None:
        """A signal is beyond its limit, so many times it."""
        self.first.setdefault(name, step)
        self.excess[name] = max(self.excess.get(name, 0.0), excess)

    def levels(self) -> dict[str, float]:
        """Mean standardized score of every signal that said something."""
        rows = zip(self._names, self._total.tolist(), self._count.tolist(), strict=True)
        return {name: total / count for name, total, count in rows if count}


class CalibrationHistory:
    """The episodes since a calibration, in their order.

    Drift: a self-starting CUSUM of every signal's mean level, from the calibration's episodes on (see `stats.cusum`);
    the threshold gives a false alarm in `RUN_LENGTH` episodes of all signals together, by Bonferroni, for normal
    levels.

    Rates: a wealth that bets on fewer successes than at calibration less `MARGIN`, or on more interventions; it ever
    reaches 1/`ALPHA` with a chance of at most `ALPHA` where that is not so (`stats.betting`).
    """

    def __init__(self, calibration: Calibration) -> None:
        self._origin, self._known = calibration.origin, calibration.levels
        names = [name for name, values in calibration.levels.items() if len(values) > 2 and np.ptp(values) > 0]
        self.threshold = cusum_threshold(RUN_LENGTH * max(1, len(names)))
        self._levels: dict[str, list[float]] = {name: [] for name in names}
        self._success: list[float] = []
        self._intervened: list[float] = []

    def add(
        self, levels: Mapping[str, float], *, success: bool | None = None, intervened: bool | None = None
    ) -> list[str]:
        """Add an episode; what is beyond its limit now, a sentence each."""
        for name, series in self._levels.items():
            if name in levels:
                series.append(levels[name])
        if success is not None:
            self._success.append(float(success))
        if intervened is not None:
            self._intervened.append(float(intervened))
        return [*self._drifting(), *self._rates()]

    def paths(self) -> dict[str, Array]:
        """The CUSUM of every signal after each episode."""
        return {
            name: cusum(self_starting(self._known[name], series)) if series else np.empty(0)
            for name, series in self._levels.items()
        }

    def _drifting(self) -> list[str]:
        said = []
        for name, path in self.paths().items():
            if len(path) and path[-1] >= self.threshold:
                start = int(np.flatnonzero(np.concatenate([[0.0], path[:-1]]) <= 0.0)[-1])
                said.append(
                    f"{name} has drifted since episode {start + 1} of {len(path)} (CUSUM {path[-1]:.1f}, limit "
                    f"{self.threshold:.1f}, k = {REFERENCE:g}): {meaning(name).words}. Points to: "
                    f"{meaning(name).cause}."
                )
        return said

    def _rates(self) -> list[str]:
        said = []
        for what, series, usual, side in (
            ("success", self._success, self._origin.success_rate, -1),
            ("intervention", self._intervened, self._origin.intervention_rate, 1),
        ):
            if usual is None or not series:
                continue
            limit = usual + side * MARGIN
            if not 0.0 < limit < 1.0:
                continue
            wealth = log_e_mean(series, limit, alternative="greater" if side > 0 else "less")
            if wealth.max() >= -np.log(ALPHA):
                at = int(np.argmax(wealth >= -np.log(ALPHA))) + 1
                said.append(
                    f"The {what} rate is {'above' if side > 0 else 'below'} {limit:.2f}, decided after {at} episodes "
                    f"at an error of {100 * ALPHA:g} %: {sum(series):.0f} of {len(series)}."
                )
        return said
