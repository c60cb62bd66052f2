"""What a dataset has so far: blocks, counts, tasks, and the sums from which the next commit's metadata follows.

It is a function of the committed blocks alone, so a resumed run continues with the numbers of an unbroken one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import read_json
from twinloop.dataset import layout
from twinloop.dataset.statistics import Moments


@dataclass(frozen=True, kw_only=True)
class BlockEntry:
    """One committed block: episodes and frames kept, and the caller's counts of what became of its attempts."""

    block: int
    episodes: int
    frames: int
    outcome: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CameraSum:
    """Pixel counts ``(3, 256)`` over the sampled frames of one camera."""

    sampled: int
    histogram: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The content of ``twinloop/progress.json``.

    ``quantiles_at`` is the number of frames over which the quantiles in ``stats.json`` were last computed; all other
    statistics always cover every frame. ``params`` are the parameter names of the first kept episodes, ``tables`` the
    columns of each side table.
    """

    blocks: tuple[BlockEntry, ...] = ()
    tasks: tuple[str, ...] = ()
    params: tuple[str, ...] | None = None
    moments: Moments | None = None
    cameras: Mapping[str, CameraSum] = field(default_factory=dict)
    quantiles_at: int = 0
    tables: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def episodes(self) -> int:
        """Episodes kept so far."""
        return sum(entry.episodes for entry in self.blocks)

    @property
    def frames(self) -> int:
        """Frames kept so far."""
        return sum(entry.frames for entry in self.blocks)

    def with_tasks(self, tasks: Sequence[str]) -> Progress:
        """With the new ones among ``tasks`` appended, in order of first appearance."""
        return replace(self, tasks=tuple(dict.fromkeys([*self.tasks, *tasks])))

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        cameras = {
            name: {"sampled": item.sampled, "histogram": item.histogram.tolist()} for name, item in self.cameras.items()
        }
        return {
            "schema": layout.SCHEMA,
            "blocks": [
                {"block": b.block, "episodes": b.episodes, "frames": b.frames, "outcome": dict(b.outcome)}
                for b in self.blocks
            ],
            "tasks": list(self.tasks),
            "params": None if self.params is None else list(self.params),
            "moments": None if self.moments is None else self.moments.to_json(),
            "cameras": cameras,
            "quantiles_at": self.quantiles_at,
            **({"tables": {name: list(columns) for name, columns in self.tables.items()}} if self.tables else {}),
        }

    @classmethod
    def load(cls, root: Path) -> Progress:
        """The progress of a dataset folder.

        Raises:
            DatasetError: a key is missing or has a value of another type, or a newer version wrote it; names the file.
        """
        path = root / layout.PROGRESS
        value = read_json(path)
        layout.require_keys(value, ("blocks", "tasks", "params", "moments", "cameras", "quantiles_at"), where=str(path))
        with layout.understood(str(path)):
            return cls._from_json(value)

    @classmethod
    def _from_json(cls, value: Mapping[str, Any]) -> Progress:
        cameras = {
            name: CameraSum(sampled=item["sampled"], histogram=np.array(item["histogram"], dtype=np.int64))
            for name, item in value["cameras"].items()
        }
        return cls(
            blocks=tuple(BlockEntry(**entry) for entry in value["blocks"]),
            tasks=tuple(value["tasks"]),
            params=None if value["params"] is None else tuple(value["params"]),
            moments=None if value["moments"] is None else Moments.from_json(value["moments"]),
            cameras=cameras,
            quantiles_at=value["quantiles_at"],
            tables=value.get("tables", {}),
        )
