"""Write the episodes of several training sources as one dataset, in which each source has its share of the frames.

Whole episodes are written; episodes of a source are repeated if the source has too few frames for its share.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.core.files import write_json
from twinloop.core.seeds import generator
from twinloop.dataset.edit.documents import EditOperation
from twinloop.dataset.edit.rows import SourceEpisode, make_transform_entry
from twinloop.dataset.edit.source import EditSource as Opened
from twinloop.dataset.edit.writing import EditSettings, write_items
from twinloop.train.mixture import compute_shares
from twinloop.train.sources import TrainingSource

_FILE = "mixture.json"
_OBSERVATION = "observation."


@dataclass(frozen=True, kw_only=True)
class MaterializedDataset:
    """Summary of a written training dataset.

    Attributes:
        rows: one row per source: name, numbers of episodes and frames, requested and actual share.
        episodes: number of copies of each episode, by episode id.
        notes: notes for the user.
    """

    rows: tuple[dict[str, Any], ...]
    episodes: dict[str, int]
    notes: tuple[str, ...] = ()

    def write(self, output: Path) -> None:
        """Save this summary of the dataset in the folder of a run, from which `read` loads it."""
        write_json(output / _FILE, {"rows": self.rows, "episodes": self.episodes, "notes": self.notes})

    @classmethod
    def read(cls, output: Path) -> Self:
        """Read the summary of an earlier run from its folder ``output``.

        Raises:
            InputError: If the folder has no summary.
        """
        if not (output / _FILE).is_file():
            raise InputError(f"{output} holds no run to resume: {_FILE} is missing. Train without --resume.")
        value = read_json(output / _FILE)
        return cls(rows=tuple(value["rows"]), episodes=value["episodes"], notes=tuple(value["notes"]))


def materialize(
    sources: Sequence[TrainingSource],
    output: Path,
    *,
    sim_fraction: float | None = None,
    seed: int = 0,
    observed: Collection[str] | None = None,
) -> MaterializedDataset:
    """Write one LeRobot v3.0 folder whose frames match the sources' shares as closely as whole episodes allow.

    The source with the most frames for its share is written once. The episodes of each other source are repeated: first
    all of them as often as they fit, then single episodes in a random order, as long as each one brings the frames
    closer to the share. A trainer that draws frames uniformly then draws from each source by its share. Features that
    some folders lack are left out.

    Args:
        sources: see `sources.open_sources`.
        output: an absent or empty folder.
        sim_fraction: see `config.TrainConfig`.
        seed: seed of the choice of episodes that are repeated once more.
        observed: the ``observation.…`` features to write; by default all.

    Raises:
        UnitsError: If the folders' units differ, or some folders have none.
        InputError: If the shares are impossible, or features with the same name differ.
        DatasetError: If a source is damaged, the output exists, or the disk is full.
    """
    opened = {folder: Opened(folder) for folder in dict.fromkeys(e.folder for s in sources for e in s.episodes)}
    if observed is not None:
        for one in opened.values():
            one.keep_features([key for key in one.features if not key.startswith(_OBSERVATION) or key in observed])
    items = [[SourceEpisode(source=opened[e.folder], index=e.index) for e in source.episodes] for source in sources]
    lengths = [np.array([item.length for item in mine], dtype=np.int64) for mine in items]
    frames = np.array([mine.sum() for mine in lengths], dtype=np.float64)
    share = compute_shares(sources, sim_fraction, frames)
    whole = (frames / np.where(share > 0, share, np.inf)).max()
    often = [
        choose_copies(mine, whole * part, generator(seed, "train/lerobot", number))
        for number, (mine, part) in enumerate(zip(lengths, share, strict=True))
    ]
    written = [
        replace(item, transforms=(make_transform_entry("repeat", {"copy": copy}),)) if copy else item
        for mine, times in zip(items, often, strict=True)
        for item, count in zip(mine, times.tolist(), strict=True)
        for copy in range(count)
    ]
    parameters = {
        "shares": {source.name: float(part) for source, part in zip(sources, share, strict=True)},
        "seed": seed,
    }
    made = write_items(
        written, output, EditSettings(common_features_only=True), EditOperation(name="mixture", parameters=parameters)
    )
    counts: dict[str, int] = {}
    for source, times in zip(sources, often, strict=True):
        for episode, count in zip(source.episodes, times.tolist(), strict=True):
            counts[episode.episode_id] = counts.get(episode.episode_id, 0) + count
    return MaterializedDataset(rows=_summary_rows(sources, lengths, often, share), episodes=counts, notes=made.notes)


def choose_copies(lengths: NDArray[np.int64], wanted: float, chance: np.random.Generator) -> NDArray[np.int64]:
    """Return the number of copies of each episode, ``(n,)``, so that all copies together have about ``wanted`` frames.

    Episodes are copied because LeRobot's training draws all frames with equal probability, without weights of sources.

    Args:
        lengths: number of frames of each episode.
        wanted: required number of frames; 0 gives no copies.
        chance: generator that chooses the episodes with one more copy.
    """
    rounds = int(wanted // lengths.sum() + 1e-9)
    times = np.full(len(lengths), rounds, dtype=np.int64)
    left = wanted - rounds * float(lengths.sum())
    for place in chance.permutation(len(lengths)).tolist():
        if lengths[place] / 2 <= left:
            times[place] += 1
            left -= float(lengths[place])
    return times


def _summary_rows(
    sources: Sequence[TrainingSource],
    lengths: Sequence[NDArray[np.int64]],
    often: Sequence[NDArray[np.int64]],
    share: NDArray[np.float64],
) -> tuple[dict[str, Any], ...]:
    frames = [int(mine @ times) for mine, times in zip(lengths, often, strict=True)]
    episodes = [int(times.sum()) for times in often]
    return tuple(
        {
            "name": source.name,
            "data": source.config.data,
            "real": source.real,
            "episodes": len(source.episodes),
            "written": episodes[number],
            "frames": frames[number],
            "share": float(share[number]),
            "share_realized": frames[number] / sum(frames),
            "share_episodes": episodes[number] / sum(episodes),
        }
        for number, source in enumerate(sources)
    )
