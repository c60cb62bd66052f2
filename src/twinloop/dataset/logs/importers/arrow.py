"""Import Arrow tables of Hugging Face's `datasets` library: a folder of splits, one split, or one ``.arrow`` file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from twinloop.core.documents import read_json
from twinloop.core.errors import DatasetError, LogError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import require_columns
from twinloop.dataset.logs.importers.columns import EpisodeBuilder
from twinloop.dataset.logs.importers.protocol import Importer, LogOptions, RawEpisode


def recognizes(path: Path) -> bool:
    """Return whether a path is an ``.arrow`` file, or a folder that the `datasets` library saved."""
    if path.is_file():
        return path.suffix == ".arrow"
    return (path / "state.json").is_file() or bool(_splits(path))


def read(path: Path, options: LogOptions) -> list[RawEpisode]:
    """Return the episodes of all splits, in the order of the files.

    These tables have neither joint names nor units, so ``options`` must give them.

    Raises:
        LogError: If there are no rows, the joints have no names, or a value is invalid.
        UnitsError: If the units are not given.
        DatasetError: If a file is missing or truncated, or a path leads out of the folder.
    """
    table = pa.concat_tables([_read_stream(file) for file in _files(path)])
    if not table.num_rows:
        raise LogError(f"{path} is empty: it has no rows.")
    require_columns(["episode_index"], table.column_names, where=str(path))
    builder = EpisodeBuilder(str(path), options, present=table.column_names)
    require_columns(builder.columns, table.column_names, where=str(path))
    owner = table["episode_index"].to_numpy()
    starts = np.flatnonzero(np.diff(owner, prepend=owner[0] - 1))
    if len(np.unique(owner)) != len(starts):
        raise LogError(f"{path}: the rows of an episode are not contiguous. Sort by episode_index and frame_index.")
    stops = [*starts[1:], len(owner)]
    chosen = table.select(builder.columns)
    return [
        builder.build(int(owner[start]), chosen.slice(int(start), int(stop - start)))
        for start, stop in zip(starts, stops, strict=True)
    ]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not (path / "state.json").is_file():
        return [file for split in _splits(path) for file in _files(split)]
    entries = read_json(path / "state.json")["_data_files"]
    return [layout.resolve_inside(path, "{name}", {"name": entry["filename"]}) for entry in entries]


def _splits(path: Path) -> list[Path]:
    """Return the folders of the splits, in the order of ``dataset_dict.json`` or, if it is missing, by name."""
    listed = path / "dataset_dict.json"
    if listed.is_file():
        return [layout.resolve_inside(path, "{split}", {"split": split}) for split in read_json(listed)["splits"]]
    return sorted(state.parent for state in path.glob("*/state.json"))


def _read_stream(path: Path) -> pa.Table:
    try:
        with pa.memory_map(str(path)) as source:
            return _open(source).read_all()
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing: the folder's state.json names it. Restore the file.") from None
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(
            f"{path} is truncated or not an Arrow table ({str(error).splitlines()[0]}). Copy it again."
        ) from error


def _open(source: pa.MemoryMappedFile) -> pa.ipc.RecordBatchStreamReader | pa.ipc.RecordBatchFileReader:
    """Open an Arrow table in the streaming format, as `datasets` writes it, or in the file format."""
    if source.read(6) == b"ARROW1":
        source.seek(0)
        return pa.ipc.open_file(source)
    source.seek(0)
    return pa.ipc.open_stream(source)


IMPORTER = Importer(name="arrow", recognizes=recognizes, read=read)
