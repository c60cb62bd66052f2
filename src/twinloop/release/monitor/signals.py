"""Interpret the signals of a monitor: their meaning, their probable cause, and their drift from episode to episode."""

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
    "unclear image",
    "out of distribution",
    "unknown",
]


@dataclass(frozen=True, kw_only=True)
class SignalMeaning:
    """Meaning of a monitor's signal.

    Attributes:
        cause: cause that the signal indicates.
        words: description for a person.
        general: whether the signal detects only that something is unusual, not its cause. Such a signal is used only if
            no other signal exceeds its limit.
    """

    cause: Cause
    words: str
    general: bool = False


# Chosen on virtual robots 0 to 2; the tables of docs/evidence/release.md use other robots.
_CLEAR = 1.05  # smallest ratio between the strengths of a named cause and the next one
# Smallest similarity at which a fault is named, by its cause.
_ALIKE: Mapping[Cause, float] = {"worn actuator": 0.45, "latency": 0.45, "unknown object": 0.4}
_APART = 0.05  # smallest difference to the similarity to faults of other causes
_EARLIER_S = 0.5  # if the drives exceed their limits this much earlier than the gripper, an object is not the cause

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
    "sharpness": SignalMeaning(cause="unclear image", words="its images are blurred or noisy"),
    "shift": SignalMeaning(cause="moved camera", words="the static scene has moved in its images"),
}


def get_meaning(signal: str) -> SignalMeaning:
    """Return the meaning of a signal by its name, such as ``drives/latency``, ``tracker`` or ``camera/front/shift``."""
    first, _, rest = signal.partition("/")
    if first == "drives":
        return _DRIVES[rest]
    if first == "camera":
        camera, _, kind = rest.rpartition("/")
        meaning = _CAMERA[kind]
        return SignalMeaning(cause=meaning.cause, words=f"camera {camera}: {meaning.words}")
    return _OTHERS[first]


def find_cause(
    excess: Mapping[str, float],
    similarity: Mapping[str, float] | None = None,
    first: Mapping[str, int] | None = None,
    *,
    hz: float = 30.0,
) -> tuple[Cause, list[Cause]]:
    """Return the cause that the signals of an episode indicate together, and all possible causes.

    The possible causes are sorted, the most probable first.

    - The signals of the joint drives indicate the cause of a fault if the episode's similarity to the fault is large
      enough. The threshold is 0.4 or 0.45, depending on the cause. If another cause's similarity is less than 0.05
      lower, both are possible and no cause of the drives is named.
    - The gripper's signal is ignored if the drives indicate one cause other than an unknown object, because the fault
      also affects the gripper. If the drives indicate no cause or several, the gripper's signal is ignored if the
      drives exceeded their limits more than 0.5 s before it.
    - The strength of a cause is that of its strongest signal. The strongest cause is named if its strength is at least
      1.05 times that of the next cause, else the cause is ``unknown``.
    - General signals, which no particular cause explains, count only if there is no other signal.

    Args:
        excess: for each signal beyond its limit, its largest value divided by the limit.
        similarity: similarity of the episode so far to each fault of the drives, at most 1; see
            `scorers.DriveScorer.compute_similarity`.
        first: step at which each signal first exceeded its limit.
        hz: control steps per second.
    """
    left = {name: value for name, value in excess.items() if not name.startswith("drives/")}
    drives = {name: value for name, value in excess.items() if name.startswith("drives/")}
    strength: dict[Cause, float] = {}
    doubtful: list[Cause] = []
    if drives:
        named = _find_drive_causes(similarity or {})
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
    """Return whether an unusual gripper signal indicates an unknown object, although the joint drives are unusual too.

    If the drives indicate exactly one cause, the result is whether this cause is an unknown object. Otherwise it is
    true, unless the drives exceeded their limits more than 0.5 s before the gripper.

    Args:
        named: causes that the signals of the joint drives indicate.
        drives: signals of the joint drives that are beyond their limits.
        first: step at which each signal first exceeded its limit.
        hz: control steps per second.
    """
    if len(named) == 1:
        return named[0] == "unknown object"
    earliest = min((first[name] for name in drives if name in first), default=0)
    return first.get("grip", 0) - earliest <= _EARLIER_S * hz


def _find_drive_causes(similarity: Mapping[str, float]) -> list[Cause]:
    """Return the causes that the joint drives (motors with gears) indicate, the most probable first.

    The similarity to a cause is the largest similarity to one of its faults. It is large enough from 0.4 for an unknown
    object, and from 0.45 for other causes. If no cause reaches this, the list is empty. Otherwise it contains every
    cause whose similarity is above the highest such similarity minus 0.05.

    Args:
        similarity: similarity of the episode to each fault of the drives by name, at most 1.
    """
    best: dict[Cause, float] = {}
    for name, value in similarity.items():
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
    """Summary of the scores of one episode so far.

    Attributes:
        excess: for each signal beyond its limit, its largest value divided by the limit.
        first: step at which each of these signals first exceeded its limit.
    """

    def __init__(self) -> None:
        self.excess: dict[str, float] = {}
        self._rise: dict[str, int] = {}
        self._total, self._count = np.zeros(0), np.zeros(0)
        self._names: Sequence[str] = ()
        self.first: dict[str, int] = {}

    def add(self, names: Sequence[str], relative: Array, standard: Array, step: int, *, rising: float) -> None:
        """Add the scores of one step.

        Args:
            names: names of the nsignal signals.
            relative: ``standard`` divided by the alarm limit of the signal, shape ``(nsignal,)``; above 1 is an alarm.
            standard: (score − usual score) / usual spread, shape ``(nsignal,)``.
            step: number of the step.
            rising: value of ``relative``, such as 0.5, above which a signal counts as rising towards its limit.
        """
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
        """Return the step since which a signal has been rising without interruption; ``step`` if it is not rising."""
        return self._rise.get(name, step)

    def record_excess(self, name: str, step: int, excess: float) -> None:
        """Record that a signal exceeds its limit.

        Args:
            name: name of the signal.
            excess: value of the signal divided by its limit.
        """
        self.first.setdefault(name, step)
        self.excess[name] = max(self.excess.get(name, 0.0), excess)

    def compute_levels(self) -> dict[str, float]:
        """Return the mean standardized score of every signal with at least one finite score."""
        rows = zip(self._names, self._total.tolist(), self._count.tolist(), strict=True)
        return {name: total / count for name, total, count in rows if count}


class CalibrationHistory:
    """History of the episodes since a calibration, with tests for slow changes.

    Drift is tested with a self-starting CUSUM (cumulative sum, see `stats.change_points`) of every signal's mean score
    per episode. It starts with the episodes of the calibration. For normally distributed mean scores, the threshold
    gives one false alarm in 1000 episodes (`RUN_LENGTH`) on average over all signals together (Bonferroni correction).

    Success and intervention rates are tested with sequential tests (`stats.betting`), which may be evaluated after
    every episode. They detect a success rate more than 0.1 (`MARGIN`) below that at calibration, and an intervention
    rate more than 0.1 above it. If a rate has not changed by that much, the probability that its test gives an alarm at
    any time is at most 0.01 (`ALPHA`).
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
        """Add an episode, and return one sentence for each signal that has drifted and each rate beyond its limit now.

        The rates are those of successes and of interventions.

        Args:
            levels: mean standardized score of each signal in the episode.
            success: whether the episode succeeded; None if unknown.
            intervened: whether a person intervened; None if unknown.
        """
        for name, series in self._levels.items():
            if name in levels:
                series.append(levels[name])
        if success is not None:
            self._success.append(float(success))
        if intervened is not None:
            self._intervened.append(float(intervened))
        return [*self._describe_drifts(), *self._describe_rate_changes()]

    def compute_paths(self) -> dict[str, Array]:
        """Return the CUSUM curves, by signal: value after each episode since the calibration, ``(nepisode,)``."""
        return {
            name: cusum(self_starting_scores(self._known[name], series)) if series else np.empty(0)
            for name, series in self._levels.items()
        }

    def _describe_drifts(self) -> list[str]:
        sentences = []
        for name, path in self.compute_paths().items():
            if len(path) and path[-1] >= self.threshold:
                meaning = get_meaning(name)
                cause = "" if meaning.cause == "unknown" else f" Points to: {meaning.cause}."
                start = int(np.flatnonzero(np.concatenate([[0.0], path[:-1]]) <= 0.0)[-1])
                sentences.append(
                    f"{name} has drifted since episode {start + 1} of {len(path)} (CUSUM {path[-1]:.1f}, limit "
                    f"{self.threshold:.1f}, k = {REFERENCE:g}): {meaning.words}.{cause}"
                )
        return sentences

    def _describe_rate_changes(self) -> list[str]:
        sentences = []
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
                sentences.append(
                    f"The {what} rate is {'above' if side > 0 else 'below'} {limit:.2f}, decided after {at} episodes "
                    f"with an error probability of {100 * ALPHA:g} %: {sum(series):.0f} of {len(series)} episodes."
                )
        return sentences
