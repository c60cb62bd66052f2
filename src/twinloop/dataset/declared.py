"""What the metadata of a LeRobot v3.0 folder may say before anything else of it is believed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twinloop.core.errors import DatasetError
from twinloop.dataset import layout

# Bounds beyond which a figure is a mistake or an attack, not data: the largest public set of robot data (Open
# X-Embodiment, arXiv 2310.08864) has some 2.4 million episodes, and LeRobot keeps all of them in one table.
MOST_EPISODES = 50_000_000
MOST_FRAMES = 50_000_000_000
MOST_FPS = 100_000.0
MOST_NUMBERS = 100_000_000  # of one feature in one frame: more than any picture has
_DTYPES = re.compile(r"(u?int(8|16|32|64)|float(16|32|64)|bool|string|video|image|language)")


def require_possible(info: Mapping[str, Any], folder: Path) -> None:
    """Refuse what ``info.json`` cannot say: counts, rates, shapes and types that do not exist, paths that lead out.

    Raises:
        DatasetError: names the key.
    """
    where = folder / layout.INFO
    _check_counts(info, where)
    _check_paths(info, folder, where)
    _check_features(info.get("features"), where)


def require_places(table: pa.Table, names: Sequence[str], *, where: str) -> None:
    """Refuse an episode table whose columns ``names`` are not whole numbers from 0.

    Raises:
        DatasetError: names the column.
    """
    for name in names:
        column = table[name]
        whole = pa.types.is_integer(column.type) and not column.null_count
        if not whole or (pc.min(column).as_py() or 0) < 0:
            raise DatasetError(
                f"{where}: {name} of the episode table (meta/episodes) is not a whole number from 0 everywhere "
                f"({column.type}). Copy or export the dataset again."
            )


def require_within(table: pa.Table, frames: int, *, where: str) -> None:
    """Refuse episodes that end beyond the dataset, before memory is taken for them.

    Raises:
        DatasetError: names the first that ends furthest.
    """
    ends = table["length"].to_numpy().astype(np.float64)
    if "dataset_from_index" in table.column_names:
        ends = ends + table["dataset_from_index"].to_numpy()
    if len(ends) and ends.max() > frames:
        raise DatasetError(
            f"{where}: episode {table['episode_index'][int(ends.argmax())].as_py()} ends at frame {ends.max():.0f} by "
            f"the episode table, and {layout.INFO} says {frames} frames in all. Copy or export the dataset again."
        )


def _check_counts(info: Mapping[str, Any], where: Path) -> None:
    for key, most in (("total_episodes", MOST_EPISODES), ("total_frames", MOST_FRAMES)):
        value = info.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise _impossible(where, key, value, f"a whole number from 0 to {most}")
    fps = info.get("fps")
    if not isinstance(fps, int | float) or isinstance(fps, bool) or not math.isfinite(fps) or not 0 < fps <= MOST_FPS:
        raise _impossible(where, "fps", fps, f"a number above 0, up to {MOST_FPS:.0f}")


def _check_paths(info: Mapping[str, Any], folder: Path, where: Path) -> None:
    for key in ("data_path", "video_path"):
        template = info.get(key)
        if key == "video_path" and template is None:
            continue
        if not isinstance(template, str):
            raise _impossible(where, key, template, f"a path such as {layout.DATA_PATH}")
        layout.inside(folder, template, {"chunk_index": 0, "file_index": 0, "video_key": "camera"})


def _check_features(features: Any, where: Path) -> None:
    if not isinstance(features, Mapping) or not features:
        raise _impossible(where, "features", features, "a table of features by name")
    for name, entry in features.items():
        dtype = entry.get("dtype") if isinstance(entry, Mapping) else None
        if "/" in name or not name:
            raise DatasetError(
                f"{where}: {name!r} cannot name a feature; LeRobot allows no '/' in names. Export it again."
            )
        if not isinstance(dtype, str) or not _DTYPES.fullmatch(dtype):
            raise DatasetError(f"{where}: feature {name} has dtype {dtype!r}, which LeRobot does not have.")
        shape = entry.get("shape", [1])
        shape = shape if isinstance(shape, list) else [shape]
        sides = [side if isinstance(side, int) and side >= 0 else MOST_NUMBERS + 1 for side in shape]
        if math.prod(max(side, 1) for side in sides) > MOST_NUMBERS:
            raise DatasetError(
                f"{where}: feature {name} has shape {str(shape)[:80]}; a shape is a list of whole numbers, up to "
                f"{MOST_NUMBERS} altogether."
            )


def _impossible(where: Path, key: str, value: Any, wanted: str) -> DatasetError:
    return DatasetError(
        f"{where}: {key} is {str(value)[:80] if not isinstance(value, str) else repr(value[:80])}; it "
        f"must be {wanted}. Correct it, or export the dataset again."
    )
