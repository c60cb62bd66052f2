"""Measure how well people, rules and models agree on the labels of episodes and on the start frames of subtasks.

A person, rule or model that labels is called an observer. The label ``unknown`` is ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.plain import JsonRecord
from twinloop.label.rule import UNKNOWN
from twinloop.stats import Interval, bootstrap, clopper_pearson, cohens_kappa, krippendorff_alpha, match_times

KINDS = ("success", "failure", "number/NAME", "subtask")
_FEWEST = 2


@dataclass(frozen=True, kw_only=True)
class ObserverPair:
    """Agreement of two observers on the episodes that both have labelled.

    Attributes:
        first: First observer as ``source:author``.
        second: Second observer as ``source:author``.
        episodes: Number of episodes that both observers have labelled.
        raw: Share of episodes with equal labels, with its exact binomial (Clopper-Pearson) interval.
        kappa: Cohen's kappa, the agreement beyond chance; None for numeric labels.
        confusion: Number of episodes by (label of the first observer, label of the second); empty for numeric labels.
        median_difference: Median of the second observer's number minus the first observer's; None if the labels are
            not numeric.
    """

    first: str
    second: str
    episodes: int
    raw: Interval
    kappa: Interval | None
    confusion: Mapping[tuple[str, str], int]
    median_difference: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the agreement as a JSON-compatible dictionary."""
        return {
            "first": self.first,
            "second": self.second,
            "episodes": self.episodes,
            "raw": self.raw.to_json(),
            "kappa": None if self.kappa is None else self.kappa.to_json(),
            "median_difference": self.median_difference,
            "confusion": [[one, other, count] for (one, other), count in sorted(self.confusion.items())],
        }


@dataclass(frozen=True, kw_only=True)
class LabelAgreement(JsonRecord):
    """Agreement of all observers on one kind of label.

    Attributes:
        kind: Kind of the labels: ``success``, ``failure`` or ``number/NAME``.
        observers: Observers as ``source:author``.
        episodes: Number of episodes that two or more observers have labelled.
        alpha: Krippendorff's alpha (1: perfect agreement, 0: chance), with its interval.
        pairs: Agreement of each pair of observers.
        disagreements: Episodes with different labels, largest disagreement first, with the keys ``episode_id``,
            ``disagreement`` (share of differing pairs of observers, or largest difference of two numbers) and
            ``labels`` (label by observer).
    """

    kind: str
    observers: tuple[str, ...]
    episodes: int
    alpha: Interval
    pairs: tuple[ObserverPair, ...]
    disagreements: tuple[Mapping[str, Any], ...]


def measure_agreement(
    rows: Sequence[Mapping[str, Any]], kind: str, *, level: float = 0.95, seed: int = 0
) -> LabelAgreement:
    """Return the agreement of all observers on one kind of label.

    Args:
        rows: Rows of the catalog's view `labels` with this kind, for whole episodes.
        kind: ``success``, ``failure`` or ``number/NAME``.
        level: Confidence level of the intervals, which describe the uncertainty over episodes.
        seed: Seed of the bootstrap over episodes.

    Raises:
        InputError: If there are fewer than two observers, or fewer than two episodes that two observers have labelled.
        UnknownNameError: If the kind is another one; `measure_boundary_agreement` is for ``subtask``.
    """
    number = kind.startswith("number/")
    if kind not in ("success", "failure") and not number:
        raise UnknownNameError("kind", kind, KINDS, where="the kinds whose agreement is measured")
    labels = group_labels(rows)
    observers, episodes = require_observers(labels, kind)
    values = np.array([[labels[name].get(who) for who in observers] for name in episodes], dtype=object)
    if number:
        values = np.array([[None if v is None else float(v) for v in row] for row in values], dtype=object)
    alpha = krippendorff_alpha(values, "interval" if number else "nominal", level=level, seed=seed)
    compared = [
        _compare_observers(observers[i], observers[j], values[:, [i, j]], number=number, level=level, seed=seed)
        for i, j in combinations(range(len(observers)), 2)
    ]
    return LabelAgreement(
        kind=kind,
        observers=tuple(observers),
        episodes=len(episodes),
        alpha=alpha,
        pairs=tuple(pair for pair in compared if pair is not None),
        disagreements=tuple(_list_disagreements(labels, episodes, number=number)),
    )


def group_labels(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return label values by episode id and observer, excluding ``unknown``.

    Args:
        rows: Rows of the catalog's view `labels`.
    """
    labels: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["value"] != UNKNOWN:
            labels.setdefault(row["episode_id"], {})[get_observer(row)] = row["value"]
    return labels


def get_observer(row: Mapping[str, Any]) -> str:
    """Return the observer of a label row, as ``source:author``."""
    return f"{row['source']}:{row['author']}"


def require_observers(labels: Mapping[str, Mapping[str, Any]], kind: str) -> tuple[list[str], list[str]]:
    """Return the sorted observers, and the sorted ids of the episodes that two or more observers have labelled.

    Args:
        labels: Labels by episode id, then by observer.
        kind: Kind of the labels, for the error message.

    Raises:
        InputError: If there are fewer than two observers, or fewer than two such episodes.
    """
    observers = sorted({who for answers in labels.values() for who in answers})
    if len(observers) < _FEWEST:
        who = f"only {observers[0]} has" if observers else "no observer has"
        raise InputError(f"Agreement needs two observers, but {who} labels of {kind}. Label by hand, or run a rule.")
    episodes = sorted(name for name, answers in labels.items() if len(answers) >= _FEWEST)
    if len(episodes) < _FEWEST:
        raise InputError(
            f"{len(episodes)} episode(s) have a {kind} of two observers ({', '.join(observers)}); agreement needs "
            f"{_FEWEST}. Let both observers label the same episodes."
        )
    return observers, episodes


def _compare_observers(
    first: str, second: str, values: NDArray[np.object_], *, number: bool, level: float, seed: int
) -> ObserverPair | None:
    """Return the agreement of two observers; None if both have labelled fewer than two of the same episodes.

    Args:
        first: First observer.
        second: Second observer.
        values: Labels of the two observers, shape ``(nepisode, 2)``; None where a label is missing.
        number: Whether the labels are numbers.
        level: Confidence level of the intervals.
        seed: Seed of the bootstrap.
    """
    both = np.array([row for row in values.tolist() if None not in row], dtype=object).reshape(-1, 2)
    if len(both) < _FEWEST:
        return None
    same = int(sum(one == other for one, other in both))
    return ObserverPair(
        first=first,
        second=second,
        episodes=len(both),
        raw=clopper_pearson(same, len(both), level=level),
        kappa=None if number else cohens_kappa(both[:, 0], both[:, 1], level=level, seed=seed),
        confusion={} if number else Counter((str(one), str(other)) for one, other in both),
        median_difference=float(np.median((both[:, 1] - both[:, 0]).astype(np.float64))) if number else None,
    )


def _list_disagreements(
    labels: Mapping[str, Mapping[str, str]], episodes: Sequence[str], *, number: bool
) -> list[dict[str, Any]]:
    """Return the episodes with different labels, largest disagreement first.

    The disagreement is the share of observer pairs with different labels; for numbers, the largest difference of a
    pair.

    Args:
        labels: Labels by episode id, then by observer.
        episodes: Ids of the episodes to compare.
        number: Whether the labels are numbers.
    """
    disagreements = list[dict[str, Any]]()
    for name in episodes:
        answers = labels[name]
        pairs = list(combinations(answers.values(), 2))
        share = sum(one != other for one, other in pairs) / len(pairs)
        if share:
            rank = max(abs(float(one) - float(other)) for one, other in pairs) if number else share
            disagreements.append({"episode_id": name, "disagreement": rank, "labels": dict(sorted(answers.items()))})
    return sorted(disagreements, key=lambda row: (-row["disagreement"], row["episode_id"]))


Segments = Sequence[tuple[int, int, str]]
_FEW = 2


@dataclass(frozen=True, kw_only=True)
class BoundaryPair(JsonRecord):
    """Agreement of two observers on the start frames of subtasks.

    Attributes:
        first: First observer as ``source:author``.
        second: Second observer as ``source:author``.
        episodes: Number of episodes in which both observers have labelled subtasks.
        tolerance_s: Largest difference in s of two start times that count as equal.
        f1: F1 score of the matched start times, excluding starts at the first frame, with its interval. Two starts
            match if their times differ by at most ``tolerance_s``, for any names of their subtasks.
        offset_s: Median time in s by which the second observer's start is later than the first observer's; NaN if no
            start times match.
        frame_agreement: Share of frames with the same subtask, of the frames that both have labelled, with its
            interval.
    """

    first: str
    second: str
    episodes: int
    tolerance_s: float
    f1: Interval
    offset_s: float
    frame_agreement: Interval


def measure_boundary_agreement(
    rows: Sequence[Mapping[str, Any]],
    fps: Mapping[str, float],
    *,
    tolerance_s: float = 0.2,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[list[BoundaryPair], list[dict[str, Any]]]:
    """Measure the agreement of every pair of observers on the start frames of subtasks.

    Args:
        rows: Rows of the catalog's view `labels` with the kind ``subtask``, including first and last frame.
        fps: Frames per second by episode id.
        tolerance_s: Largest difference in s of two start times that count as equal.
        level: Confidence level of the intervals, which describe the uncertainty over episodes.
        seed: Seed of the bootstrap over episodes.

    Returns:
        The agreement of each pair, and the episodes with different start times, lowest F1 score first, as dictionaries
        with the keys ``episode_id``, ``f1`` and ``between`` (the two observers).

    Raises:
        InputError: If there are fewer than two observers, or no pair of observers has labelled two of the same
            episodes.
    """
    segments: dict[str, dict[str, list[tuple[int, int, str]]]] = {}
    for row in rows:
        if row["value"] != UNKNOWN:
            segment = (row["first_frame"], row["last_frame"], row["value"])
            segments.setdefault(row["episode_id"], {}).setdefault(get_observer(row), []).append(segment)
    observers, episodes = require_observers(segments, "subtask")
    pairs, worst = list[BoundaryPair](), dict[str, dict[str, Any]]()
    for first, second in combinations(observers, 2):
        shared = [name for name in episodes if {first, second} <= segments[name].keys()]
        if len(shared) < _FEW:
            continue
        metrics = [
            _compare_segments(segments[name][first], segments[name][second], fps[name], tolerance_s) for name in shared
        ]
        pairs.append(_make_boundary_pair(first, second, metrics, tolerance_s, level=level, seed=seed))
        for name, metric in zip(shared, metrics, strict=True):
            row = {"episode_id": name, "f1": metric.f1, "between": [first, second]}
            if metric.f1 < 1.0 and metric.f1 < worst.get(name, {"f1": 1.0})["f1"]:
                worst[name] = row
    if not pairs:
        raise InputError(
            f"No two of the observers {', '.join(observers)} have labelled the subtasks of {_FEW} common episodes. "
            "Let two observers label the same episodes."
        )
    return pairs, sorted(worst.values(), key=lambda row: (row["f1"], row["episode_id"]))


@dataclass(frozen=True, kw_only=True)
class _AgreementMetrics:
    matches: int
    moments: int
    equal_frames: int
    frames: int
    offsets: tuple[float, ...]

    @property
    def f1(self) -> float:
        return 2 * self.matches / self.moments if self.moments else 1.0


def _compare_segments(one: Segments, other: Segments, fps: float, tolerance_s: float) -> _AgreementMetrics:
    starts = [np.array(sorted(first for first, _, _ in part if first > 0)) for part in (one, other)]
    # Slightly more, because frames are compared in whole numbers and the tolerance is given in seconds.
    matched = match_times(starts[0], starts[1], tolerance_s * fps + 1e-6)
    count = 1 + max(last for _, last, _ in (*one, *other))
    frame_labels = [_expand_segments(part, count) for part in (one, other)]
    both = (frame_labels[0] != "") & (frame_labels[1] != "")
    offsets = (starts[1][matched.second] - starts[0][matched.first]) / fps if len(matched.first) else np.empty(0)
    return _AgreementMetrics(
        matches=len(matched.first),
        moments=sum(matched.sizes),
        equal_frames=int((frame_labels[0] == frame_labels[1])[both].sum()),
        frames=int(both.sum()),
        offsets=tuple(offsets.tolist()),
    )


def _expand_segments(segments: Segments, count: int) -> NDArray[np.str_]:
    frame_labels = np.full(count, "", dtype=object)
    for first, last, label in segments:
        frame_labels[first : last + 1] = label
    return frame_labels.astype(str)


def _make_boundary_pair(
    first: str, second: str, metrics: Sequence[_AgreementMetrics], tolerance_s: float, *, level: float, seed: int
) -> BoundaryPair:
    offsets = [offset for metric in metrics for offset in metric.offsets]
    return BoundaryPair(
        first=first,
        second=second,
        episodes=len(metrics),
        tolerance_s=tolerance_s,
        f1=_bootstrap_ratio([2 * f.matches for f in metrics], [f.moments for f in metrics], level=level, seed=seed),
        offset_s=float(np.median(offsets)) if offsets else float("nan"),
        frame_agreement=_bootstrap_ratio(
            [f.equal_frames for f in metrics], [f.frames for f in metrics], level=level, seed=seed
        ),
    )


def _bootstrap_ratio(numerators: Sequence[int], denominators: Sequence[int], *, level: float, seed: int) -> Interval:
    """Return the ratio of two sums over episodes with its bootstrap interval; 1 if the sum of denominators is 0.

    Args:
        numerators: Numerator of each episode.
        denominators: Denominator of each episode.
        level: Confidence level.
        seed: Seed of the bootstrap.
    """
    sums = np.stack([np.asarray(numerators, float), np.asarray(denominators, float)])

    def ratio(rows: NDArray[np.intp]) -> NDArray[np.float64]:
        top, bottom = sums[0][rows].sum(axis=1), sums[1][rows].sum(axis=1)
        return np.where(bottom > 0, top / np.maximum(bottom, 1e-12), 1.0)

    return bootstrap(ratio, sums.shape[1], level=level, method="percentile", seed=seed)
