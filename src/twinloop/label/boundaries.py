"""How far those who divide the same episodes into subtasks agree: on the moments, and on what each frame is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.label.agreement import observer, require_observers
from twinloop.label.rule import UNKNOWN
from twinloop.stats import Interval, bootstrap, match_moments

Segments = Sequence[tuple[int, int, str]]
_FEW = 2


@dataclass(frozen=True, kw_only=True)
class BoundaryPair:
    """Two observers' beginnings of subtasks in the ``episodes`` that both divide.

    ``f1`` counts beginnings after the first frame that lie within ``tolerance_s``; ``offset_s`` is the median time by
    which the second is later, over those; ``alike`` the share of frames that both give the same word, of those
    that both give one.
    """

    first: str
    second: str
    episodes: int
    tolerance_s: float
    f1: Interval
    offset_s: float
    alike: Interval

    def to_json(self) -> dict[str, Any]:
        """A plain form."""
        return vars(self) | {"f1": self.f1.to_json(), "alike": self.alike.to_json()}


def boundary_agreement(
    rows: Sequence[Mapping[str, Any]],
    fps: Mapping[str, float],
    *,
    tolerance_s: float = 0.2,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[list[BoundaryPair], list[dict[str, Any]]]:
    """Agreement of every pair of observers on subtasks, and the episodes by how ill they agree, worst first.

    Args:
        rows: of the view `labels`, kind ``subtask``, whole episodes.
        fps: frames per second by episode.
        tolerance_s: how far two beginnings of the same moment may lie apart, in s.
        level: of the intervals, over episodes.
        seed: of resamples.

    Raises:
        InputError: fewer than two observers, or fewer than two episodes that both of any pair divide.
    """
    said: dict[str, dict[str, list[tuple[int, int, str]]]] = {}
    for row in rows:
        if row["value"] != UNKNOWN:
            segment = (row["first_frame"], row["last_frame"], row["value"])
            said.setdefault(row["episode_id"], {}).setdefault(observer(row), []).append(segment)
    observers, episodes = require_observers(said, "subtask")
    pairs, worst = list[BoundaryPair](), dict[str, dict[str, Any]]()
    for first, second in combinations(observers, 2):
        shared = [name for name in episodes if {first, second} <= said[name].keys()]
        if len(shared) < _FEW:
            continue
        figures = [_compare(said[name][first], said[name][second], fps[name], tolerance_s) for name in shared]
        pairs.append(_pair(first, second, figures, tolerance_s, level=level, seed=seed))
        for name, figure in zip(shared, figures, strict=True):
            row = {"episode_id": name, "f1": figure.f1, "between": [first, second]}
            if figure.f1 < 1.0 and figure.f1 < worst.get(name, {"f1": 1.0})["f1"]:
                worst[name] = row
    if not pairs:
        raise InputError(f"No two of {', '.join(observers)} divide {_FEW} of the same episodes. Let them.")
    return pairs, sorted(worst.values(), key=lambda row: (row["f1"], row["episode_id"]))


@dataclass(frozen=True, kw_only=True)
class _Figures:
    matches: int
    moments: int
    alike: int
    frames: int
    offsets: tuple[float, ...]

    @property
    def f1(self) -> float:
        return 2 * self.matches / self.moments if self.moments else 1.0


def _compare(one: Segments, other: Segments, fps: float, tolerance_s: float) -> _Figures:
    begins = [np.array(sorted(first for first, _, _ in part if first > 0)) for part in (one, other)]
    # A hair more, because frames are compared in whole numbers and the tolerance is given in seconds.
    found = match_moments(begins[0], begins[1], tolerance_s * fps + 1e-6)
    count = 1 + max(last for _, last, _ in (*one, *other))
    words = [_words(part, count) for part in (one, other)]
    both = (words[0] != "") & (words[1] != "")
    offsets = (begins[1][found.second] - begins[0][found.first]) / fps if len(found.first) else np.empty(0)
    return _Figures(
        matches=len(found.first),
        moments=sum(found.sizes),
        alike=int((words[0] == words[1])[both].sum()),
        frames=int(both.sum()),
        offsets=tuple(offsets.tolist()),
    )


def _words(segments: Segments, count: int) -> NDArray[np.str_]:
    words = np.full(count, "", dtype=object)
    for first, last, word in segments:
        words[first : last + 1] = word
    return words.astype(str)


def _pair(
    first: str, second: str, figures: Sequence[_Figures], tolerance_s: float, *, level: float, seed: int
) -> BoundaryPair:
    offsets = [offset for figure in figures for offset in figure.offsets]
    return BoundaryPair(
        first=first,
        second=second,
        episodes=len(figures),
        tolerance_s=tolerance_s,
        f1=_ratio([2 * f.matches for f in figures], [f.moments for f in figures], level=level, seed=seed),
        offset_s=float(np.median(offsets)) if offsets else float("nan"),
        alike=_ratio([f.alike for f in figures], [f.frames for f in figures], level=level, seed=seed),
    )


def _ratio(above: Sequence[int], below: Sequence[int], *, level: float, seed: int) -> Interval:
    """Sum over sum, with episodes drawn again; 1 where there is nothing to match."""
    sums = np.stack([np.asarray(above, float), np.asarray(below, float)])

    def figure(rows: NDArray[np.intp]) -> NDArray[np.float64]:
        top, bottom = sums[0][rows].sum(axis=1), sums[1][rows].sum(axis=1)
        return np.where(bottom > 0, top / np.maximum(bottom, 1e-12), 1.0)

    return bootstrap(figure, sums.shape[1], level=level, method="percentile", seed=seed)
