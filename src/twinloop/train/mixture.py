"""Choose the samples of each batch with exact shares of the sources and an optional curriculum.

A batch has B samples. A source with share w gets the integer part of B·w in every batch. The samples that are left are
given out one by one, each to the source that is about to fall too far behind its share (Tijdeman, "The chairman
assignment problem", Discrete Mathematics 32, 1980). By Tijdeman's theorem, the total number of samples of a source
after t batches differs from t·B·w by at most 1 - 1/(2n - 2) for n sources, and by less than two in any sequence of
consecutive batches. The curriculum starts with the episodes whose parameters are nearest to the nominal values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.seeds import generator
from twinloop.train.config import CurriculumConfig
from twinloop.train.data import Ints, TrainingFrames
from twinloop.train.sources import ListedEpisode, TrainingSource
from twinloop.twin import load_twin


def randomization_strengths(episodes: Sequence[ListedEpisode]) -> NDArray[np.float64]:
    """Return the randomization strength of E episodes, ``(E,)``, from 0 (nominal parameters) to 1.

    The strength is a root mean square over the varied parameters. Each parameter counts by its distance from the
    nominal value, divided by the largest such distance among the episodes of the same twin. If the twin cannot be
    loaded, the median of the drawn values replaces the nominal value. An episode without drawn parameters, such as a
    recorded one, has strength 0.
    """
    made = np.zeros(len(episodes))
    groups: dict[tuple[str, frozenset[str]], list[int]] = {}
    for place, episode in enumerate(episodes):
        if episode.params:
            groups.setdefault((episode.twin, frozenset(episode.params)), []).append(place)
    for (twin, names), places in groups.items():
        order = sorted(names)
        values = np.array([[episodes[place].params[name] for name in order] for place in places])
        away = np.abs(values - _nominal_values(twin, order, values))
        most = away.max(axis=0)
        varied = most > 0
        if varied.any():
            made[places] = np.sqrt(np.mean((away[:, varied] / most[varied]) ** 2, axis=1))
    return made


def _nominal_values(twin: str, names: Sequence[str], values: NDArray[np.float64]) -> NDArray[np.float64]:
    nominal = np.median(values, axis=0)
    try:
        params = load_twin(twin).params
    except (TwinloopError, OSError):
        return nominal
    return np.array([params[n].nominal if n in params else m for n, m in zip(names, nominal, strict=True)])


_STAGES = 10  # number of increments of a curriculum
_ROUND_OFF = 1e-9  # of a sample: shares such as 1/3 are not exact in float64


def compute_shares(
    sources: Sequence[TrainingSource], sim_fraction: float | None, frames: ArrayLike
) -> NDArray[np.float64]:
    """Return the share of each of S sources in every batch, ``(S,)``; the shares sum to 1.

    Shares are proportional to the given weights, or to the numbers of frames if no weights are given.

    Args:
        sources: the sources, in the order of the shares.
        sim_fraction: total share of all simulated sources; None to use the weights unchanged.
        frames: number of frames of each source that may be drawn, ``(S,)``.

    Raises:
        InputError: If only some sources have weights, or ``sim_fraction`` gives a share to simulated or real sources
            and there is no such source.
    """
    given = [source.config.weight for source in sources]
    if any(weight is not None for weight in given) and any(weight is None for weight in given):
        names = ", ".join(s.name for s, weight in zip(sources, given, strict=True) if weight is None)
        raise InputError(f"{names} has no weight, but other sources do. Give a weight to every source or to none.")
    weight = np.asarray(frames if given[0] is None else given, dtype=np.float64)
    if sim_fraction is None:
        return weight / weight.sum()
    real = np.array([source.real for source in sources])
    for name, group, part in (("simulated", ~real, sim_fraction), ("real", real, 1 - sim_fraction)):
        if not group.any() and part > 0:
            raise InputError(
                f"sim_fraction {sim_fraction:g} assigns {part:.0%} to {name} sources, but there are none: "
                f"{', '.join(source.name for source in sources)}. Add one, or leave sim_fraction out. "
                "A folder without this information counts as real; add `kind: sim` to the source if it is simulated."
            )
    made = np.zeros(len(weight))
    for group, part in ((~real, sim_fraction), (real, 1 - sim_fraction)):
        if group.any():
            made[group] = part * weight[group] / weight[group].sum()
    return made


class BatchShares:
    """Sequence of sample counts per source for successive batches.

    Args:
        share: share of each of S sources, ``(S,)``; sums to 1.
        batch: samples per batch.
    """

    def __init__(self, share: ArrayLike, batch: int) -> None:
        exact = np.asarray(share, dtype=np.float64) * batch
        self._whole = np.floor(exact + _ROUND_OFF).astype(np.int64)
        left = np.clip(exact - self._whole, 0.0, None)
        self._left = int(batch - self._whole.sum())
        self._weights = left / left.sum() if self._left else left
        self._had = np.zeros(len(exact), dtype=np.int64)

    def next(self) -> NDArray[np.int64]:
        """Return the number of samples of each source in the next batch, ``(S,)``."""
        counts = self._whole.copy()
        for _ in range(self._left):
            counts[self._next_due_source()] += 1
        return counts

    def skip(self, batches: int) -> None:
        """Advance by a number of batches without returning their counts, to resume a training."""
        for _ in range(batches * self._left):
            self._next_due_source()

    def _next_due_source(self) -> int:
        """Return the index of the source that gets the next sample left over by rounding, and count the sample for it.

        In each batch, a source first gets the integer part of batch size · share. The remaining samples are distributed
        so that over many batches each source gets its exact share.
        """
        owed = (self._had.sum() + 1) * self._weights - self._had
        slack = 1.0 / (2 * max(len(owed), 2) - 2)
        may = (owed >= slack - _ROUND_OFF) & (self._weights > 0)
        waits = np.where(may, (1 - slack - owed) / np.where(self._weights > 0, self._weights, 1.0), np.inf)
        chosen = int(np.argmin(waits))
        self._had[chosen] += 1
        return chosen


class FrameMixture:
    """Sequence of batches of frames, in which each source has its share.

    The frames of a source are drawn in random order, all of them once before any repeats.

    Args:
        data: the frames.
        share: share of each source, see `compute_shares`.
        batch: samples per batch.
        seed: run seed; batch t depends only on the seed, the data and t.
        episodes: episodes that may be drawn; by default all.
        strength: randomization strength of each of E episodes ``(E,)``, see `randomization_strengths`; used only by a
            curriculum.
        curriculum: see `config.CurriculumConfig`.
        steps: number of batches in the whole run, for the curriculum's schedule.
    """

    def __init__(
        self,
        data: TrainingFrames,
        share: ArrayLike,
        batch: int,
        *,
        seed: int,
        episodes: Sequence[int] | Ints | None = None,
        strength: ArrayLike | None = None,
        curriculum: CurriculumConfig | None = None,
        steps: int = 1,
    ) -> None:
        chosen = np.arange(len(data.episodes)) if episodes is None else np.asarray(episodes, dtype=np.int64)
        self.share = np.asarray(share, dtype=np.float64)
        self.drawn = np.zeros(len(self.share), dtype=np.int64)
        self._shares, self._seed, self._steps, self._at = BatchShares(share, batch), seed, steps, 0
        self._curriculum = curriculum
        strength = np.zeros(len(data.episodes)) if strength is None else np.asarray(strength, dtype=np.float64)
        self._pools = [
            _ShuffledFrames(data, chosen[data.source_of[chosen] == n], strength, seed, n)
            for n in range(len(self.share))
        ]

    def next(self) -> Ints:
        """Return the frame indices ``(batch,)`` of the next batch, ordered by source."""
        counts = self._shares.next()
        stage = self._curriculum_share()
        self._at += 1
        self.drawn += counts
        return np.concatenate([pool.take(int(n), stage) for pool, n in zip(self._pools, counts, strict=True)])

    def state(self) -> dict[str, Any]:
        """Return the position in the sequence of batches as plain values, for a checkpoint."""
        return {"at": self._at, "drawn": self.drawn.tolist(), "pools": [pool.state() for pool in self._pools]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state`, with the same batches as without the interruption."""
        self._at = int(state["at"])
        self._shares.skip(self._at)
        self.drawn = np.array(state["drawn"], dtype=np.int64)
        for pool, pool_state in zip(self._pools, state["pools"], strict=True):
            pool.restore(pool_state)

    def _curriculum_share(self) -> float:
        """Return the share of each source's episodes that the curriculum uses now.

        The curriculum starts with the episodes nearest to the nominal parameters and grows from there.
        """
        if self._curriculum is None:
            return 1.0
        begin, until = self._curriculum.begin, self._curriculum.until
        grown = min(1.0, np.floor(_STAGES * self._at / (until * self._steps)) / _STAGES)
        return begin + (1 - begin) * grown


class _ShuffledFrames:
    """Frames of one source in random order; they are shuffled again after each pass."""

    def __init__(
        self, data: TrainingFrames, episodes: Ints, strength: NDArray[np.float64], seed: int, number: int
    ) -> None:
        self._data, self._stream, self._seed = data, f"train/mixture/{number}", seed
        self._episodes = episodes[np.argsort(strength[episodes], kind="stable")]
        self._stage, self._shuffles, self._dealt = -1.0, 0, 0
        self._cards = np.empty(0, dtype=np.int64)

    def take(self, count: int, stage: float) -> Ints:
        """Return the next ``count`` frames.

        ``stage`` is the share of the episodes in use. If it has changed, their frames are shuffled first.
        """
        if not count:
            return np.empty(0, dtype=np.int64)
        if stage != self._stage:
            self._stage = stage
            self._shuffle()
        hands, missing = list[Ints](), count
        while missing:
            if self._dealt == len(self._cards):
                self._shuffle()
            hand = self._cards[self._dealt : self._dealt + missing]
            self._dealt += len(hand)
            missing -= len(hand)
            hands.append(hand)
        return np.concatenate(hands)

    def state(self) -> dict[str, Any]:
        return {"stage": self._stage, "shuffles": self._shuffles, "dealt": self._dealt}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._stage, self._shuffles = float(state["stage"]), int(state["shuffles"]) - 1
        if self._shuffles >= 0:
            self._shuffle()
        self._shuffles, self._dealt = int(state["shuffles"]), int(state["dealt"])

    def _shuffle(self) -> None:
        most = max(1, int(np.ceil(self._stage * len(self._episodes) - _ROUND_OFF)))
        frames = self._data.frames_of(self._episodes[:most])
        self._cards = generator(self._seed, self._stream, self._shuffles).permutation(frames)
        self._shuffles, self._dealt = self._shuffles + 1, 0
