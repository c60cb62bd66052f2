"""Export datasets for NVIDIA Isaac-GR00T: LeRobot v2.1 with ``modality.json`` and the statistics that its loader reads.

GR00T's loader (Isaac-GR00T, ``gr00t/data/dataset/lerobot_episode_loader.py``) reads info, episodes, tasks, modality and
``meta/stats.json`` with mean, std, min, max, q01 and q99 of every float feature. This module does not write
``relative_stats.json``, because it depends on the embodiment's action horizon, which only the training configuration
has. GR00T's own ``stats.py`` writes that file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twinloop.core.errors import InputError
from twinloop.core.files import dumps
from twinloop.dataset.export.lerobot_parts import NumericFeatures, build_modality
from twinloop.dataset.export.lerobot_v21 import DATA_PATH, episode_path, write_v21
from twinloop.dataset.export.protocol import (
    Exporter,
    ExportOptions,
    ExportResult,
    create_output_folder,
    select_episodes,
)
from twinloop.dataset.export.source import open_source
from twinloop.dataset.export.verification import FolderReader
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import read_table
from twinloop.dataset.lerobot.statistics import Moments
from twinloop.dataset.spec import STATE
from twinloop.dataset.storage.snapshot import replace_bytes

_STATS = ("mean", "std", "min", "max", "q01", "q99")
_SPANS = ("grouped", "each", "keep")


def write(path: Path, output: Path, options: ExportOptions) -> ExportResult:
    """Export a LeRobot folder of version 2 or 3 for GR00T; implements `Exporter.write`.

    Raises:
        InputError: If the dataset has no ``observation.state`` or no ``action``, if a setting is invalid, or if an
            episode does not exist.
    """
    source = open_source(path)
    episodes = select_episodes(options, source.episodes, where=path)
    chosen = options.settings.get("spans", "grouped")
    if chosen not in _SPANS:
        raise InputError(f"The setting spans is {chosen!r}. Give one of {', '.join(_SPANS)}.")
    if STATE not in source.features or "action" not in source.features:
        raise InputError(f"{path} lacks {STATE} or action, and GR00T needs both. Rename its features first.")
    kept = source.path / layout.MODALITY
    if chosen == "keep" and not kept.is_file():
        raise InputError(f"The setting spans=keep needs {kept}, which does not exist. Give grouped or each instead.")
    with create_output_folder(output) as stage:
        exported = write_v21(source, episodes, stage)
        files = [stage / episode_path(DATA_PATH, number) for number in range(len(episodes))]
        _write_json(stage / layout.STATS, _statistics(source.features, files))
        if chosen != "keep":
            _write_json(stage / layout.MODALITY, build_modality(source.features, grouped=chosen == "grouped"))
    left = [f"{key} are images in the table, which GR00T does not read" for key in source.image_keys]
    return ExportResult(output=output, episodes=episodes, frames=exported.frames, notes=(*exported.notes, *left))


def _statistics(features: Mapping[str, Any], files: Sequence[Path]) -> dict[str, Any]:
    """Return the content of ``stats.json`` for all float features, computed exactly over all frames.

    Args:
        features: The features of ``info.json``.
        files: Written data files, one per episode.
    """
    numeric = NumericFeatures.of({key: feature for key, feature in features.items() if "float" in feature["dtype"]})
    columns = list(numeric.widths)
    moments = [Moments.of(numeric.matrix(read_table(file, columns), where=str(file))) for file in files]
    stats = numeric.dataset_stats(moments, files)
    return {key: {name: row[name] for name in _STATS} for key, row in stats.items()}


def _write_json(path: Path, value: Any) -> None:
    replace_bytes(path, (dumps(value, indent=4) + "\n").encode())


EXPORTER = Exporter(
    name="groot",
    description="NVIDIA Isaac-GR00T: LeRobot v2.1 with modality.json and stats.json",
    unsupported="states, logs and side tables of twinloop/; relative_stats.json is made by GR00T's own stats.py",
    write=write,
    open_reader=FolderReader,
    settings={"spans": "grouped (arm, gripper, hands: the default), each (one per joint) or keep (the dataset's own)"},
)
