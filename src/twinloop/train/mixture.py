"""Choose which samples make each batch: exact shares of sources, nearly nominal episodes first if asked for.

After t batches of B samples a source of share w has had t·B·w of them to within one, and in any window of batches to
within two. The whole part of B·w is in every batch; what is left over goes, place by place, to the source whose next
sample is due first (Tijdeman, "The chairman assignment problem", Discrete Mathematics 32, 1980, whose theorem bounds
the deviation of n sources by 1 - 1/(2n - 2)).
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


def strengths(episodes: Sequence[ListedEpisode]) -> NDArray[np.float64]:
    """Of each episode ``(E,)``, from 0 (nominal) to 1: the root mean square over the parameters that vary.

    Each parameter counts by its distance from nominal as a share of the largest such distance among the episodes of the
    same twin. Where the twin is not at hand, the median of what was drawn stands for nominal. An episode of which
    nothing was drawn, such as a recorded one, has strength 0.
    """
    made = np.zeros(len(episodes))
    groups: dict[tuple[str, frozenset[str]], list[int]] = {}
    for place, episode in enumerate(episodes):
        if episode.params:
            groups.setdefault((episode.twin, frozenset(episode.params)), []).append(place)
    for (twin, names), places in groups.items():
        order = sorted(names)
        values = np.array([[episodes[place].params[name] for name in order] for place in places])
        away = np.abs(values - _nominal(twin, order, values))
        most = away.max(axis=0)
        varied = most > 0
        if varied.any():
            made[places] = np.sqrt(np.mean((away[:, varied] / most[varied]) ** 2, axis=1))
    return made


def _nominal(twin: str, names: Sequence[str], values: NDArray[np.float64]) -> NDArray[np.float64]:
    nominal = np.median(values, axis=0)
    try:
        params = load_twin(twin).params
    except (TwinloopError, OSError):
        return nominal
    return np.array([params[n].nominal if n in params else m for n, m in zip(names, nominal, strict=True)])


_STAGES = 10  # steps in which a curriculum widens
_ROUND_OFF = 1e-9  # of a sample: shares such as 1/3 are not exact in float64


def shares(sources: Sequence[TrainingSource], sim_fraction: float | None, frames: ArrayLike) -> NDArray[np.float64]:
    """Each source's share of every batch, ``(S,)``, adding up to 1.

    Weights that are given count; without any, frames do. ``sim_fraction`` is what all simulated sources have together.

    Args:
        sources: in the order of the shares.
        sim_fraction: None for whatever the weights come to.
        frames: of each source that may be drawn, ``(S,)``.

    Raises:
        InputError: weights are given for some sources only, or there is nothing simulated, or nothing real, to give
            its fraction to.
    """
    given = [source.config.weight for source in sources]
    if any(weight is not None for weight in given) and any(weight is None for weight in given):
        names = ", ".join(s.name for s, weight in zip(sources, given, strict=True) if weight is None)
        raise InputError(f"{names} has no weight and other sources have. Give each source a weight, or none.")
    weight = np.asarray(frames if given[0] is None else given, dtype=np.float64)
    if sim_fraction is None:
        return weight / weight.sum()
    real = np.array([source.real for source in sources])
    for name, group, part in (("simulated", ~real, sim_fraction), ("real", real, 1 - sim_fraction)):
        if not group.any() and part > 0:
            raise InputError(
                f"sim_fraction {sim_fraction:g} leaves {part:.0%} to {name} sources, and there is none: "
                f"{', '.join(source.name for source in sources)}. Give one, or leave sim_fraction out. "
                "A folder that does not say what it is counts as real; `kind: sim` beside `data:` says otherwise."
            )
    made = np.zeros(len(weight))
    for group, part in ((~real, sim_fraction), (real, 1 - sim_fraction)):
        if group.any():
            made[group] = part * weight[group] / weight[group].sum()
    return made


class BatchShares:
    """How many samples of each source are in the next batch.

    Args:
        share: ``(S,)``, adding up to 1.
        batch: samples in each.
    """

    def __init__(self, share: ArrayLike, batch: int) -> None:
        exact = np.asarray(share, dtype=np.float64) * batch
        self._whole = np.floor(exact + _ROUND_OFF).astype(np.int64)
        left = np.clip(exact - self._whole, 0.0, None)
        self._left = int(batch - self._whole.sum())
        self._weights = left / left.sum() if self._left else left
        self._had = np.zeros(len(exact), dtype=np.int64)

    def next(self) -> NDArray[np.int64]:
        """Counts ``(S,)`` of the next batch."""
        counts = self._whole.copy()
        for _ in range(self._left):
            counts[self._due()] += 1
        return counts

    def skip(self, batches: int) -> None:
        """Go on as if so many batches had been made."""
        for _ in range(batches * self._left):
            self._due()

    def _due(self) -> int:
        """The source that gets the next place."""
        owed = (self._had.sum() + 1) * self._weights - self._had
        slack = 1.0 / (2 * max(len(owed), 2) - 2)
        may = (owed >= slack - _ROUND_OFF) & (self._weights > 0)
        waits = np.where(may, (1 - slack - owed) / np.where(self._weights > 0, self._weights, 1.0), np.inf)
        chosen = int(np.argmin(waits))
        self._had[chosen] += 1
        return chosen


class FrameMixture:
    """Frames that make each batch: each source's in an order of chance, every one before any comes again.

    Args:
        data: the frames.
        share: of each source, see `shares`.
        batch: samples in each.
        seed: run seed; batch t is a function of it, of the data and of t alone.
        episodes: which may be drawn; by default all.
        strength: of each episode's randomization ``(E,)``, see `strengths`; only a curriculum asks for it.
        curriculum: see `config.CurriculumConfig`.
        steps: batches of the whole run, which a curriculum is a share of.
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
        """The frames ``(batch,)`` of the next batch, source by source."""
        counts = self._shares.next()
        stage = self._stage()
        self._at += 1
        self.drawn += counts
        return np.concatenate([pool.take(int(n), stage) for pool, n in zip(self._pools, counts, strict=True)])

    def state(self) -> dict[str, Any]:
        """Where it stands, as plain values."""
        return {"at": self._at, "drawn": self.drawn.tolist(), "pools": [pool.state() for pool in self._pools]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, as if never interrupted."""
        self._at = int(state["at"])
        self._shares.skip(self._at)
        self.drawn = np.array(state["drawn"], dtype=np.int64)
        for pool, said in zip(self._pools, state["pools"], strict=True):
            pool.restore(said)

    def _stage(self) -> float:
        """The share of each source's episodes that is in now, the nearest to nominal ones."""
        if self._curriculum is None:
            return 1.0
        begin, until = self._curriculum.begin, self._curriculum.until
        grown = min(1.0, np.floor(_STAGES * self._at / (until * self._steps)) / _STAGES)
        return begin + (1 - begin) * grown


class _ShuffledFrames:
    """One source's frames, dealt like cards: shuffled, dealt to the end, shuffled again."""

    def __init__(
        self, data: TrainingFrames, episodes: Ints, strength: NDArray[np.float64], seed: int, number: int
    ) -> None:
        self._data, self._stream, self._seed = data, f"train/mixture/{number}", seed
        self._episodes = episodes[np.argsort(strength[episodes], kind="stable")]
        self._stage, self._shuffles, self._dealt = -1.0, 0, 0
        self._cards = np.empty(0, dtype=np.int64)

    def take(self, count: int, stage: float) -> Ints:
        """The next ``count`` frames; a new stage brings new cards."""
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
