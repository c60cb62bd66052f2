"""Convert a recorded log to a LeRobotDataset v3.0 (float32 features) that also stores the log's unrounded values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.core.records import Episode, Provenance, SimEpisode
from twinloop.core.units import COMMANDED
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.side_tables import SideTable
from twinloop.dataset.signals import SIMULATION_TABLE as SIMULATION
from twinloop.dataset.signals import TABLE, compute_readings, find_shared_signals, signals_table, simulation_table
from twinloop.dataset.spec import CameraSpec, DatasetSpec, ReadingSpec

_COMMANDED = {**COMMANDED, "none": "nothing"}
_NO_STATES = np.empty((0, 0))


def write_log_dataset(
    episodes: Sequence[Episode],
    path: Path | str,
    *,
    name: str = "",
    data_hash: str = "",
    licence: str = "",
    block_size: int = 64,
) -> Path:
    """Write the episodes of one log as a v3.0 dataset; each episode keeps its source (``real`` or ``sim``).

    LeRobot's files get nominal timestamps at the log's median rate and float32 values. The log's original times and
    values are stored in addition, and `load_log` of the result returns them unchanged. Signals are stored exactly,
    and signals that all episodes have become features as well (see `find_shared_signals`).

    Args:
        episodes: Episodes with the same joints and units. Their position becomes their number, and their original
            index is stored in the provenance.
        path: Folder that is missing or empty.
        name: Name of the dataset; by default the folder's name.
        data_hash: Hash of the log's files, stored in the provenance.
        licence: Licence of the data, for the dataset card.
        block_size: Number of episodes per file.

    Raises:
        LogError: If there is no episode, an episode has no joint, or episodes differ in joints, units or kind of
            command.
        DatasetError: If the folder is not empty, or the disk is full.
    """
    if not episodes:
        raise LogError("There are no episodes to write.")
    path, first = Path(path), episodes[0]
    for episode in episodes:
        if episode.units != first.units:
            raise LogError(
                f"Episode {episode.index} has other joints or units than episode {first.index}. "
                "A dataset has one set of joints and units: import them separately."
            )
        if episode.command != first.command:
            raise LogError(
                f"Episode {episode.index} commands {_COMMANDED[episode.command]}, episode {first.index} "
                f"{_COMMANDED[first.command]}. A dataset's actions are of one kind: import them separately."
            )
    if not first.joints:
        raise LogError(
            f"{first.origin or 'The log'} has no joints, and a LeRobot dataset needs joint positions and actions. "
            "'twinloop identify' and 'twinloop gap' read such a log without conversion."
        )
    shared = find_shared_signals(episodes)
    spec = replace(_make_spec(episodes, shared, name=name or path.name), block_size=block_size, licence=licence)
    with DatasetWriter.open(path, spec) as writer:
        for block in range(-(-len(episodes) // block_size)):
            numbers = [number for number in writer.attempt_numbers(block) if number < len(episodes)]
            chosen = [episodes[number] for number in numbers]
            rows = [
                _to_sim_episode(number, log, data_hash, shared) for number, log in zip(numbers, chosen, strict=True)
            ]
            tables = _build_side_tables(episodes, numbers, chosen)
            writer.commit_block(block, rows, logs=chosen, outcome={"recorded": len(rows)}, tables=tables)
        writer.finish()
    return path


class LogDatasetWriter:
    """Writer of a log dataset to which one recorded episode at a time is added; each is complete on the disk.

    Args:
        path: Folder that is missing or empty; it is created with the first episode.
        cameras: Height and width in px of the images of each camera, by name.

    Raises:
        InputError: If a camera's images cannot be stored; see `CameraSpec`.
    """

    def __init__(self, path: Path, *, cameras: Mapping[str, tuple[int, int]]) -> None:
        self._path = path
        self._cameras = tuple(CameraSpec(name=name, height=size[0], width=size[1]) for name, size in cameras.items())
        self._shared: Mapping[str, ReadingSpec] = {}
        self._writer: DatasetWriter | None = None

    def add(self, episode: Episode, images: Mapping[str, NDArray[np.uint8]]) -> None:
        """Write an episode; its signals are those of the first one.

        Args:
            episode: Episode of T frames.
            images: Images of each camera, ``(T, height, width, 3)``, RGB.

        Raises:
            DatasetError: If the folder is not empty, or the disk is full.
        """
        if self._writer is None:
            self._shared = find_shared_signals([episode])
            spec = replace(_make_spec([episode], self._shared, name=self._path.name), block_size=1)
            self._writer = DatasetWriter.open(self._path, replace(spec, cameras=self._cameras))
        number = self._writer.next_block
        row = _to_sim_episode(number, episode, "", self._shared)
        self._writer.commit_block(
            number,
            [row],
            frames=[images] if self._cameras else None,
            logs=[episode],
            outcome={"recorded": 1},
            tables=_build_side_tables([episode], [number], [episode]),
        )

    def close(self) -> None:
        """Complete the statistics of the dataset, and release it."""
        if self._writer is not None:
            self._writer.finish()
            self._writer.close()


def _make_spec(episodes: Sequence[Episode], shared: Mapping[str, ReadingSpec], *, name: str) -> DatasetSpec:
    """Return the specification of a log's dataset without cameras; ``shared`` are its signals by name."""
    first = episodes[0]
    return DatasetSpec(
        name=name,
        robot_type=first.robot_type or "unknown",
        fps=_median_rate(episodes),
        joints=first.joints,
        units=first.units,
        success=False,
        readings=tuple(shared.values()),
    )


def _build_side_tables(
    episodes: Sequence[Episode], numbers: Sequence[int], chosen: Sequence[Episode]
) -> dict[str, SideTable] | None:
    """Return the side tables (signals, simulations) for the episodes of one file; None if no episode has such data.

    Args:
        episodes: All episodes of the log.
        numbers: Numbers of the episodes of the file.
        chosen: Episodes of the file.
    """
    tables: dict[str, SideTable] = {}
    if any(episode.signals for episode in episodes):
        tables[TABLE] = signals_table(numbers, chosen)
    if any(episode.simulation for episode in episodes):
        tables[SIMULATION] = simulation_table(numbers, chosen)
    return tables or None


def _median_rate(episodes: Sequence[Episode]) -> int:
    steps = np.concatenate([np.diff(episode.time) for episode in episodes])
    if not len(steps):
        raise LogError("Every episode has a single frame, so the log has no rate. Record longer episodes.")
    return max(1, round(1 / float(np.median(steps))))


def _to_sim_episode(number: int, log: Episode, data_hash: str, shared: Mapping[str, ReadingSpec]) -> SimEpisode:
    also: dict[str, Any] = {} if log.command == "position" else {"command": log.command}
    if log.conditions:
        also["conditions"] = dict(log.conditions)
    record = Provenance(
        source=log.source,
        twin="",
        twin_hash="",
        config_hash="",
        params={},
        seed_path=(0, log.index, 0),
        versions={"twinloop": version("twinloop")},
        actor="recorded",
        task=log.task or "unnamed task",
        units=log.units.to_json(),
        extra={"origin": log.origin, "log_episode": log.index, "data_hash": data_hash, **also},
    )
    return SimEpisode(
        number=number,
        commands=_NO_STATES,
        states=_NO_STATES,
        action=log.action,
        observation=log.state,
        next_success=np.zeros(len(log), dtype=np.bool_),
        provenance=record,
        readings=compute_readings(log, shared),
    )
