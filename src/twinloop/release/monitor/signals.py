"""Interpret the signals of a monitor: meaning, probable causes, and drift from episode to episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.release.monitor.calibration import Calibration
from twinloop.stats.betting import log_e_mean
from twinloop.stats.change_points import REFERENCE, cusum, cusum_threshold, self_starting_scores

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
    """Meaning of a signal: its probable cause and its description for a person.

    A ``general`` signal detects that something is unusual but not its cause. It is used only if no other signal is.
    """

    cause: Cause
    words: str
    general: bool = False


# Chosen on virtual robots 0 to 2; the tables of docs/evidence/release.md use other robots.
_CLEAR = 1.05  # smallest ratio between the strengths of a named cause and the next one
# Smallest similarity at which a fault is named, by its cause.
_ALIKE: Mapping[Cause, float] = {"worn actuator": 0.45, "latency": 0.45, "unknown object": 0.4}
_APART = 0.05  # by which the similarity to faults of other causes must be lower
_EARLIER_S = 0.5  # drives that exceed their limits this much before the gripper are not explained by its object

_DRIVES: Mapping[str, SignalMeaning] = {
    "friction": SignalMeaning(cause="worn actuator", words="joints move as if their friction had grown"),
    "gain": SignalMeaning(cause="worn actuator", words="servos move as if they had become weaker"),
    "play": SignalMeaning(cause="worn actuator", words="joints move as if the backlash of their gears had grown"),
    "latency": SignalMeaning(cause="latency", words="the robot follows its commands later than before"),
    "load": SignalMeaning(cause="unknown object", words="the arm moves as if it carried a different weight"),
    "any": SignalMeaning(cause="unknown", words="the drives do not move as the twin predicts", general=True),
}
_OTHERS: Mapping[str, SignalMeaning] = {
    "grip": SignalMeaning(cause="unknown object", words="the gripper stops or moves differently than on known objects"),
    "tracker": SignalMeaning(
        cause="moved tracker", words="the tracker and the joint readings give different positions of the hand"
    ),
    "observation": SignalMeaning(
        cause="out of distribution", words="readings or scene differ from all successful episodes", general=True
    ),
    "latent": SignalMeaning(
        cause="out of distribution", words="the policy's features differ from all successful episodes", general=True
    ),
    "chunk": SignalMeaning(cause="out of distribution", words="the policy's consecutive chunks disagree", general=True),
}
_CAMERA: Mapping[str, SignalMeaning] = {
    "light": SignalMeaning(cause="light", words="its images are brighter or darker"),
    "sharpness": SignalMeaning(cause="unclear picture", words="its images are blurred or noisy"),
    "shift": SignalMeaning(cause="moved camera", words="the static scene has moved in its images"),
}


def get_meaning(signal: str) -> SignalMeaning:
    """Return the meaning of a signal, such as ``drives/latency``, ``tracker`` or ``camera/front/shift``."""
    first, _, rest = signal.partition("/")
    if first == "drives":
        return _DRIVES[rest]
    if first == "camera":
        camera, _, kind = rest.rpartition("/")
        said = _CAMERA[kind]
        return SignalMeaning(cause=said.cause, words=f"camera {camera}: {said.words}")
    return _OTHERS[first]


def find_cause(
    excess: Mapping[str, float],
    likeness: Mapping[str, float] | None = None,
    first: Mapping[str, int] | None = None,
    *,
    hz: float = 30.0,
) -> tuple[Cause, list[Cause]]:
    """Return the cause that signals indicate together, and all possible causes, the most probable first.

    A fault of the drives is named if the episode is similar to it and clearly less similar to faults of other causes.
    Such a fault also affects the gripper, so the gripper's signal is then ignored. It is also ignored if the drives
    exceeded their limits earlier for an unknown reason. The strength of a cause is that of its strongest signal. A
    cause is named if its strength clearly exceeds that of the next one. General signals count only if there is no other
    signal.

    Args:
        excess: for each signal beyond its limit, its largest value divided by the limit.
        likeness: similarity of the episode so far to each fault of the drives, see
        `judging.DriveScorer.compute_likeness`.
        first: step at which each signal exceeded its limit.
        hz: steps per second.
    """
    left = {name: value for name, value in excess.items() if not name.startswith("drives/")}
    drives = {name: value for name, value in excess.items() if name.startswith("drives/")}
    strength: dict[Cause, float] = {}
    doubtful: list[Cause] = []
    if drives:
        named = _find_drive_causes(likeness or {})
        if len(named) == 1:
            strength[named[0]] = max(drives.values())
        else:
            doubtful = named
        if "grip" in left and not _indicates_object(named, drives, first or {}, hz):
            left.pop("grip")
    special = {name: value for name, value in left.items() if not get_meaning(name).general}
    for name, value in special.items():
        cause = get_meaning(name).cause
        strength[cause] = max(strength.get(cause, 0.0), value)
    if not strength and not drives:
        strength = {get_meaning(name).cause: value for name, value in left.items()}
    order = sorted(strength, key=lambda cause: -strength[cause])
    if not order or (len(order) > 1 and strength[order[0]] < _CLEAR * strength[order[1]]):
        return "unknown", [*order, *doubtful]
    return order[0], order


def _indicates_object(named: list[Cause], drives: Mapping[str, float], first: Mapping[str, int], hz: float) -> bool:
    """Return whether an unusual gripper signal indicates an unknown object although the drives are unusual too."""
    if len(named) == 1:
        return named[0] == "unknown object"
    earliest = min((first[name] for name in drives if name in first), default=0)
    return first.get("grip", 0) - earliest <= _EARLIER_S * hz


def _find_drive_causes(likeness: Mapping[str, float]) -> list[Cause]:
    """Return the cause that the drives indicate; several if it is unclear, none if no fault is similar."""
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
RUN_LENGTH = 1000.0  # mean number of episodes until a false alarm of drift, of all signals together (our choice)
ALPHA = 0.01  # probability that the test of a rate ever errs (our choice)
MARGIN = 0.1  # tolerated change: success rate below, intervention rate above that at calibration (our choice)


class EpisodeScores:
    """Scores of one episode so far."""

    def __init__(self) -> None:
        self.excess: dict[str, float] = {}
        self._rise: dict[str, int] = {}
        self._total, self._count = np.zeros(0), np.zeros(0)
        self._names: Sequence[str] = ()
        self.first: dict[str, int] = {}

    def add(self, names: Sequence[str], relative: Array, standard: Array, step: int, *, rising: float) -> None:
        """Add the scores of a step, relative to their limits and standardized."""
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

    def get_rise_step(self, name: str, step: int) -> int:
        """Return the step since which a signal has been rising; ``step`` if it is not rising."""
        return self._rise.get(name, step)

    def record_excess(self, name: str, step: int, excess: float) -> None:
        """Record that a signal is beyond its limit; ``excess`` is the value divided by the limit."""
        self.first.setdefault(name, step)
        self.excess[name] = max(self.excess.get(name, 0.0), excess)

    def compute_levels(self) -> dict[str, float]:
        """Return the mean standardized score of every signal with at least one finite score."""
        rows = zip(self._names, self._total.tolist(), self._count.tolist(), strict=True)
        return {name: total / count for name, total, count in rows if count}


class CalibrationHistory:
    """Sequence of the episodes since a calibration.

    Drift: a self-starting CUSUM of every signal's mean level, which starts with the calibration's episodes (see
    `stats.cusum`). The threshold gives one false alarm in `RUN_LENGTH` episodes of all signals together, by Bonferroni,
    for normally distributed levels.

    Rates: a betting test for a success rate below that at calibration minus `MARGIN`, or an intervention rate above it
    plus `MARGIN`. If the rate is not outside, the wealth ever reaches 1/`ALPHA` with a probability of at most `ALPHA`
    (`stats.betting`).
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
        """Add an episode; return one sentence for each drift or rate that is beyond its limit now."""
        for name, series in self._levels.items():
            if name in levels:
                series.append(levels[name])
        if success is not None:
            self._success.append(float(success))
        if intervened is not None:
            self._intervened.append(float(intervened))
        return [*self._describe_drifts(), *self._describe_rate_changes()]

    def compute_paths(self) -> dict[str, Array]:
        """Return the CUSUM of every signal after each episode."""
        return {
            name: cusum(self_starting_scores(self._known[name], series)) if series else np.empty(0)
            for name, series in self._levels.items()
        }

    def _describe_drifts(self) -> list[str]:
        said = []
        for name, path in self.compute_paths().items():
            if len(path) and path[-1] >= self.threshold:
                start = int(np.flatnonzero(np.concatenate([[0.0], path[:-1]]) <= 0.0)[-1])
                said.append(
                    f"{name} has drifted since episode {start + 1} of {len(path)} (CUSUM {path[-1]:.1f}, limit "
                    f"{self.threshold:.1f}, k = {REFERENCE:g}): {get_meaning(name).words}. Points to: "
                    f"{get_meaning(name).cause}."
                )
        return said

    def _describe_rate_changes(self) -> list[str]:
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
