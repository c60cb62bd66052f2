"""Measure the agreement of people, rules and models on labels, and on the beginnings of subtasks.

The label ``unknown`` is ignored.
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
    """Agreement of two observers on the ``episodes`` that both labelled.

    ``raw`` is the share of equal labels (exact binomial interval), ``kappa`` the agreement beyond chance; for numbers
    ``apart`` is the median of second minus first, and there is no kappa. ``confusion`` counts the
    labels of the first (rows) against those of the second.
    """

    first: str
    second: str
    episodes: int
    raw: Interval
    kappa: Interval | None
    confusion: Mapping[tuple[str, str], int]
    apart: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "first": self.first,
            "second": self.second,
            "episodes": self.episodes,
            "raw": self.raw.to_json(),
            "kappa": None if self.kappa is None else self.kappa.to_json(),
            "apart": self.apart,
            "confusion": [[one, other, count] for (one, other), count in sorted(self.confusion.items())],
        }


@dataclass(frozen=True, kw_only=True)
class LabelAgreement(JsonRecord):
    """Agreement of all observers on one kind; ``disagreements`` are the episodes with different labels, worst first."""

    kind: str
    observers: tuple[str, ...]
    episodes: int
    alpha: Interval
    pairs: tuple[ObserverPair, ...]
    disagreements: tuple[Mapping[str, Any], ...]


def measure_agreement(
    rows: Sequence[Mapping[str, Any]], kind: str, *, level: float = 0.95, seed: int = 0
) -> LabelAgreement:
    """Return the agreement of observers on one kind.

    Args:
        rows: rows of the view `labels` for this kind, of whole episodes.
        kind: ``success``, ``failure`` or ``number/NAME``.
        level: level of the intervals, which are over episodes.
        seed: seed of the resampling of episodes.

    Raises:
        InputError: fewer than two observers, or fewer than two episodes labelled by two of them.
        UnknownNameError: this function does not measure the agreement on this kind.
    """
    number = kind.startswith("number/")
    if kind not in ("success", "failure") and not number:
        raise UnknownNameError("kind", kind, KINDS, where="the kinds whose agreement is measured")
    said = group_labels(rows)
    observers, episodes = require_observers(said, kind)
    values = np.array([[said[name].get(who) for who in observers] for name in episodes], dtype=object)
    if number:
        values = np.array([[None if v is None else float(v) for v in row] for row in values], dtype=object)
    alpha = krippendorff_alpha(values, "interval" if number else "nominal", level=level, seed=seed)
    made = [
        _compare_observers(observers[i], observers[j], values[:, [i, j]], number=number, level=level, seed=seed)
        for i, j in combinations(range(len(observers)), 2)
    ]
    return LabelAgreement(
        kind=kind,
        observers=tuple(observers),
        episodes=len(episodes),
        alpha=alpha,
        pairs=tuple(pair for pair in made if pair is not None),
        disagreements=tuple(_list_disagreements(said, episodes, number=number)),
    )


def group_labels(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the labels by episode, then by observer, without ``unknown``."""
    said: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["value"] != UNKNOWN:
            said.setdefault(row["episode_id"], {})[get_observer(row)] = row["value"]
    return said


def get_observer(row: Mapping[str, Any]) -> str:
    """Return the observer of a label, as ``source:author``."""
    return f"{row['source']}:{row['author']}"


def require_observers(said: Mapping[str, Mapping[str, Any]], kind: str) -> tuple[list[str], list[str]]:
    """Return the observers in order, and the episodes that two or more of them labelled.

    Raises:
        InputError: there are too few of either; lists the observers.
    """
    observers = sorted({who for answers in said.values() for who in answers})
    if len(observers) < _FEWEST:
        who = f"only {observers[0]} has" if observers else "no observer has"
        raise InputError(f"Agreement needs two observers, but {who} labels of {kind}. Label by hand, or run a rule.")
    episodes = sorted(name for name, answers in said.items() if len(answers) >= _FEWEST)
    if len(episodes) < _FEWEST:
        raise InputError(
            f"{len(episodes)} episode(s) have a {kind} of two observers ({', '.join(observers)}); agreement needs "
            f"{_FEWEST}. Let them label the same ones."
        )
    return observers, episodes


def _compare_observers(
    first: str, second: str, values: NDArray[np.object_], *, number: bool, level: float, seed: int
) -> ObserverPair | None:
    """Return the agreement of two observers; None if fewer than two episodes have labels of both."""
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
        apart=float(np.median((both[:, 1] - both[:, 0]).astype(np.float64))) if number else None,
    )


def _list_disagreements(
    said: Mapping[str, Mapping[str, str]], episodes: Sequence[str], *, number: bool
) -> list[dict[str, Any]]:
    """Return episodes by the number of pairs of observers that disagree; for numbers by the largest difference."""
    found = list[dict[str, Any]]()
    for name in episodes:
        answers = said[name]
        pairs = list(combinations(answers.values(), 2))
        share = sum(one != other for one, other in pairs) / len(pairs)
        if share:
            rank = max(abs(float(one) - float(other)) for one, other in pairs) if number else share
            found.append({"episode_id": name, "disagreement": rank, "said": dict(sorted(answers.items()))})
    return sorted(found, key=lambda row: (-row["disagreement"], row["episode_id"]))


Segments = Sequence[tuple[int, int, str]]
_FEW = 2


@dataclass(frozen=True, kw_only=True)
class BoundaryPair:
    """Agreement of two observers on the beginnings of subtasks, in the ``episodes`` that both divided.

    ``f1`` counts beginnings after the first frame that agree within ``tolerance_s``; ``offset_s`` is the median delay
    of the second over these, in s; ``alike`` is the share of frames with the same label, of those that both labelled.
    """

    first: str
    second: str
    episodes: int
    tolerance_s: float
    f1: Interval
    offset_s: float
    alike: Interval

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return vars(self) | {"f1": self.f1.to_json(), "alike": self.alike.to_json()}


def measure_boundary_agreement(
    rows: Sequence[Mapping[str, Any]],
    fps: Mapping[str, float],
    *,
    tolerance_s: float = 0.2,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[list[BoundaryPair], list[dict[str, Any]]]:
    """Return the agreement of every pair of observers on subtasks, and the episodes by agreement, worst first.

    Args:
        rows: rows of the view `labels` for the kind ``subtask``, with first and last frame.
        fps: frames per second by episode.
        tolerance_s: largest difference of two matching beginnings, in s.
        level: level of the intervals, which are over episodes.
        seed: seed of the resampling of episodes.

    Raises:
        InputError: fewer than two observers, or fewer than two episodes that both of any pair divided.
    """
    said: dict[str, dict[str, list[tuple[int, int, str]]]] = {}
    for row in rows:
        if row["value"] != UNKNOWN:
            segment = (row["first_frame"], row["last_frame"], row["value"])
            said.setdefault(row["episode_id"], {}).setdefault(get_observer(row), []).append(segment)
    observers, episodes = require_observers(said, "subtask")
    pairs, worst = list[BoundaryPair](), dict[str, dict[str, Any]]()
    for first, second in combinations(observers, 2):
        shared = [name for name in episodes if {first, second} <= said[name].keys()]
        if len(shared) < _FEW:
            continue
        figures = [_compare_segments(said[name][first], said[name][second], fps[name], tolerance_s) for name in shared]
        pairs.append(_make_boundary_pair(first, second, figures, tolerance_s, level=level, seed=seed))
        for name, figure in zip(shared, figures, strict=True):
            row = {"episode_id": name, "f1": figure.f1, "between": [first, second]}
            if figure.f1 < 1.0 and figure.f1 < worst.get(name, {"f1": 1.0})["f1"]:
                worst[name] = row
    if not pairs:
        raise InputError(f"No two of {', '.join(observers)} divided {_FEW} of the same episodes. Let both label these.")
    return pairs, sorted(worst.values(), key=lambda row: (row["f1"], row["episode_id"]))


@dataclass(frozen=True, kw_only=True)
class _AgreementMetrics:
    matches: int
    moments: int
    alike: int
    frames: int
    offsets: tuple[float, ...]

    @property
    def f1(self) -> float:
        return 2 * self.matches / self.moments if self.moments else 1.0


def _compare_segments(one: Segments, other: Segments, fps: float, tolerance_s: float) -> _AgreementMetrics:
    begins = [np.array(sorted(first for first, _, _ in part if first > 0)) for part in (one, other)]
    # Slightly more, because frames are compared in whole numbers and the tolerance is given in seconds.
    found = match_times(begins[0], begins[1], tolerance_s * fps + 1e-6)
    count = 1 + max(last for _, last, _ in (*one, *other))
    words = [_expand_segments(part, count) for part in (one, other)]
    both = (words[0] != "") & (words[1] != "")
    offsets = (begins[1][found.second] - begins[0][found.first]) / fps if len(found.first) else np.empty(0)
    return _AgreementMetrics(
        matches=len(found.first),
        moments=sum(found.sizes),
        alike=int((words[0] == words[1])[both].sum()),
        frames=int(both.sum()),
        offsets=tuple(offsets.tolist()),
    )


def _expand_segments(segments: Segments, count: int) -> NDArray[np.str_]:
    words = np.full(count, "", dtype=object)
    for first, last, word in segments:
        words[first : last + 1] = word
    return words.astype(str)


def _make_boundary_pair(
    first: str, second: str, figures: Sequence[_AgreementMetrics], tolerance_s: float, *, level: float, seed: int
) -> BoundaryPair:
    offsets = [offset for figure in figures for offset in figure.offsets]
    return BoundaryPair(
        first=first,
        second=second,
        episodes=len(figures),
        tolerance_s=tolerance_s,
        f1=_bootstrap_ratio([2 * f.matches for f in figures], [f.moments for f in figures], level=level, seed=seed),
        offset_s=float(np.median(offsets)) if offsets else float("nan"),
        alike=_bootstrap_ratio([f.alike for f in figures], [f.frames for f in figures], level=level, seed=seed),
    )


def _bootstrap_ratio(above: Sequence[int], below: Sequence[int], *, level: float, seed: int) -> Interval:
    """Return sum over sum, with an interval by resampling episodes; 1 if there is nothing to match."""
    sums = np.stack([np.asarray(above, float), np.asarray(below, float)])

    def figure(rows: NDArray[np.intp]) -> NDArray[np.float64]:
        top, bottom = sums[0][rows].sum(axis=1), sums[1][rows].sum(axis=1)
        return np.where(bottom > 0, top / np.maximum(bottom, 1e-12), 1.0)

    return bootstrap(figure, sums.shape[1], level=level, method="percentile", seed=seed)
