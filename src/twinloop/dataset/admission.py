"""What a writer admits: a folder that it may begin or continue, and episodes that fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import read_json
from twinloop.core.errors import DatasetError
from twinloop.core.files import dumps
from twinloop.core.records import SimEpisode
from twinloop.dataset import layout
from twinloop.dataset.progress import Progress
from twinloop.dataset.spec import DatasetSpec


def begin(path: Path, spec: DatasetSpec, *, resume: bool, name: str = "") -> Progress:
    """The progress to start a writer from, after checking that what is there may be continued.

    Args:
        path: the folder.
        spec: of the dataset that is to be written.
        resume: whether one that is there is to be continued.
        name: what messages call the folder, where it stands for something else.

    Raises:
        DatasetError: the folder holds something else, a dataset that is not to be resumed, or another spec's.
    """
    called = name or path
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return Progress()
    if not path.is_dir():
        raise DatasetError(f"{path} is a file; a dataset needs a folder. Choose another output.")
    stored_path = path / layout.SPEC
    if not stored_path.exists():
        raise DatasetError(f"{path} holds files that are not a twinloop dataset. Choose an empty or new folder.")
    progress = Progress.load(path)
    if not resume:
        raise DatasetError(
            f"{called} already holds a dataset of {progress.episodes} episodes. Choose another folder, or continue "
            "the run that made it with --resume."
        )
    stored, wanted = read_json(stored_path), json.loads(dumps(spec.to_json()))
    different = sorted(key for key in stored.keys() | wanted.keys() if stored.get(key) != wanted.get(key))
    if different:
        raise DatasetError(
            f"{called} was begun with another {', '.join(different)}{_settings(stored, wanted)}, so it "
            "cannot be resumed with this configuration. Run with the configuration it was begun with, or choose "
            "another folder."
        )
    return progress


def _settings(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What a person set otherwise than then: `` (episodes 3 instead of 2)``."""
    before, now = (_leaves(_asked(one.get("config", {}))) for one in (stored, wanted))
    changes = [
        f"{key} {now.get(key)!r:.40} instead of {before.get(key)!r:.40}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    return f" ({'; '.join(changes[:4])}{'; …' if len(changes) > 4 else ''})" if changes else ""


def _asked(config: Mapping[str, Any]) -> Any:
    """What a person asked for, of the configuration of a run that simulated or rendered."""
    if "parent" in config:  # a rendered dataset
        return {key: value for key, value in config.items() if key != "parent"}
    return config.get("generate", {})


def _leaves(value: Any, place: str = "") -> dict[str, Any]:
    """Every value of nested mappings by its dotted key."""
    if not isinstance(value, Mapping):
        return {place: value}
    return {k: v for key, one in value.items() for k, v in _leaves(one, f"{place}.{key}" if place else key).items()}


def check_episode(spec: DatasetSpec, episode: SimEpisode) -> None:
    """Refuse an episode whose arrays do not fit the spec or hold what is not a number.

    Raises:
        DatasetError: names the episode, the array and the frame.
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
            raise DatasetError(f"{where}: {name} has shape {values.shape}; the dataset wants (T, {shape[1]}), T ≥ 1.")
        if not np.isfinite(values).all():
            frame = int(np.argwhere(~np.isfinite(values))[0][0])
            raise DatasetError(f"{where}: {name} is not finite at frame {frame}. Mark the episode invalid instead.")
    if len(episode.next_success) != length:
        raise DatasetError(f"{where}: next_success has {len(episode.next_success)} values for {length} frames.")
    if episode.states.size and (len(episode.commands) != length or len(episode.states) != length + 1):
        raise DatasetError(
            f"{where}: {len(episode.states)} states and {len(episode.commands)} commands for {length} frames; "
            "T frames have T commands and T+1 states."
        )
