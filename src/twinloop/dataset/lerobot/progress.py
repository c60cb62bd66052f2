"""Store how far a dataset is written, and check whether a dataset can be continued and an episode added.

The progress depends on the committed episodes only, so a resumed run gives the same values as an uninterrupted one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import read_json
from twinloop.core.errors import DatasetError
from twinloop.core.files import dumps
from twinloop.core.records import SimEpisode
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.statistics import Moments
from twinloop.dataset.spec import DatasetSpec


@dataclass(frozen=True, kw_only=True)
class BlockEntry:
    """One committed block of episodes.

    Attributes:
        block: Number of the block.
        episodes: Number of stored episodes.
        frames: Number of stored frames.
        outcome: Counts of outcomes given by the caller, such as ``{"attempted": 64, "success": 61}``.
    """

    block: int
    episodes: int
    frames: int
    outcome: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CameraSum:
    """Sums over the images of one camera, from which image statistics are computed.

    Attributes:
        sampled: Number of sampled images.
        histogram: Number of pixels by colour channel and 8-bit value, shape ``(3, 256)``.
    """

    sampled: int
    histogram: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class WriteProgress:
    """How far a dataset is written; the content of ``twinloop/progress.json``.

    Attributes:
        blocks: The committed blocks, in order.
        tasks: Texts of the tasks; the position is the task index.
        params: Parameter names of the first stored episodes; None before the first episode.
        moments: Mean, variance and extremes of all numeric features; None before the first episode.
        cameras: Sums over the images, by camera name.
        quantiles_at: Number of frames from which the quantiles in ``stats.json`` were last computed. All other
            statistics always include every frame.
        tables: Column names of each side table.
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
        """Number of episodes stored so far."""
        return sum(entry.episodes for entry in self.blocks)

    @property
    def frames(self) -> int:
        """Number of frames stored so far."""
        return sum(entry.frames for entry in self.blocks)

    def with_tasks(self, tasks: Sequence[str]) -> WriteProgress:
        """Return a copy with the new tasks appended, in order of first appearance."""
        return replace(self, tasks=tuple(dict.fromkeys([*self.tasks, *tasks])))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
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
    def load(cls, root: Path) -> WriteProgress:
        """Read the progress of a dataset folder.

        Raises:
            DatasetError: If a key is missing or has a value of another type, or a newer version wrote the file.
        """
        path = root / layout.PROGRESS
        value = read_json(path)
        layout.require_keys(value, ("blocks", "tasks", "params", "moments", "cameras", "quantiles_at"), where=str(path))
        with layout.wrap_parse_errors(str(path)):
            return cls._from_json(value)

    @classmethod
    def _from_json(cls, value: Mapping[str, Any]) -> WriteProgress:
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


def start_progress(path: Path, spec: DatasetSpec, *, resume: bool, name: str = "") -> WriteProgress:
    """Return the progress from which a writer continues; it is empty for a new dataset.

    Args:
        path: Folder of the dataset.
        spec: Specification of the dataset to write.
        resume: True to continue a dataset that already exists.
        name: Name of the folder in messages; by default its path.

    Raises:
        DatasetError: If the folder has other files, it has a dataset and ``resume`` is false, or its dataset has
            another specification.
    """
    called = name or path
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return WriteProgress()
    if not path.is_dir():
        raise DatasetError(f"{path} is a file; a dataset needs a folder. Choose another output.")
    stored_path = path / layout.SPEC
    if not stored_path.exists():
        raise DatasetError(f"{path} has files but is not a twinloop dataset. Choose an empty or new folder.")
    progress = WriteProgress.load(path)
    if not resume:
        raise DatasetError(
            f"{called} already holds a dataset of {progress.episodes} episodes. Choose another folder, or continue "
            "the run that made it with --resume."
        )
    stored, wanted = read_json(stored_path), json.loads(dumps(spec.to_json()))
    different = sorted(key for key in stored.keys() | wanted.keys() if stored.get(key) != wanted.get(key))
    if different:
        raise DatasetError(
            f"{called} was started with another {', '.join(different)}{_describe_changes(stored, wanted)}, so it "
            "cannot be resumed with this configuration. Run with the configuration it was started with, or choose "
            "another folder."
        )
    return progress


def _describe_changes(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return the settings that differ, as a text such as `` (episodes 3 instead of 2)``; empty if none differs.

    Args:
        stored: Stored specification.
        wanted: Specification of the present run.
    """
    before, now = (_flatten_mapping(_user_settings(one.get("config", {}))) for one in (stored, wanted))
    changes = [
        f"{key} {now.get(key)!r:.40} instead of {before.get(key)!r:.40}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    return f" ({'; '.join(changes[:4])}{'; …' if len(changes) > 4 else ''})" if changes else ""


def _user_settings(config: Mapping[str, Any]) -> Any:
    """Return the settings that the user chose, from the stored configuration of a simulated or a rendered dataset."""
    if "parent" in config:  # a rendered dataset
        return {key: value for key, value in config.items() if key != "parent"}
    return config.get("generate", {})


def _flatten_mapping(value: Any, place: str = "") -> dict[str, Any]:
    """Return every value of nested mappings by its dotted key, such as ``camera.width``.

    Args:
        value: Nested mapping or a value.
        place: Dotted key of ``value``.
    """
    if not isinstance(value, Mapping):
        return {place: value}
    return {
        k: v for key, one in value.items() for k, v in _flatten_mapping(one, f"{place}.{key}" if place else key).items()
    }


def check_episode(spec: DatasetSpec, episode: SimEpisode) -> None:
    """Check that an episode's arrays have the shapes of the specification and finite values.

    Raises:
        DatasetError: If they do not; the message names the episode, the array and the frame.
    """
    where = f"Episode number {episode.number}"
    length = len(episode.action)
    expected = {"action": (length, len(spec.action_names)), "observation": (length, len(spec.state_names))}
    arrays = {"action": episode.action, "observation": episode.observation}
    for reading in spec.readings:
        arrays[reading.key] = episode.readings.get(reading.key, np.empty((0, 0)))
        expected[reading.key] = (length, len(reading.columns))
    for name, shape in expected.items():
        values: NDArray[np.float64] = arrays[name]
        if values.shape != shape or not length:
            raise DatasetError(f"{where}: {name} has shape {values.shape}; the dataset needs (T, {shape[1]}), T ≥ 1.")
        if not np.isfinite(values).all():
            frame = int(np.argwhere(~np.isfinite(values))[0][0])
            raise DatasetError(f"{where}: {name} is not finite at frame {frame}. Mark the episode as invalid.")
    if len(episode.next_success) != length:
        raise DatasetError(f"{where}: next_success has {len(episode.next_success)} values for {length} frames.")
    if episode.states.size and (len(episode.commands) != length or len(episode.states) != length + 1):
        raise DatasetError(
            f"{where}: {len(episode.states)} states and {len(episode.commands)} commands for {length} frames; "
            "T frames have T commands and T+1 states."
        )
