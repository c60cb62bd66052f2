"""Paths of the files in a LeRobotDataset v3.0 folder and of twinloop's additional files, and checks of such paths.

Each written block has one file per series: block ``k`` is file ``k % 1000`` of chunk ``k // 1000``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from twinloop.core.errors import DatasetError

FILES_PER_CHUNK = 1000
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
STATES_PATH = "twinloop/states/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
PROVENANCE_PATH = "twinloop/provenance/chunk-{chunk_index:03d}/file-{file_index:03d}.jsonl"
LOGS_PATH = "twinloop/log/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
SIDE = "twinloop"
SIDE_PATH = SIDE + "/{table}/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
INVALID = "twinloop/invalid"
INVALID_PATH = INVALID + "/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"

INFO = "meta/info.json"
STATS = "meta/stats.json"
TASKS = "meta/tasks.parquet"
MODALITY = "meta/modality.json"
UNIT_MAP = "twinloop/unit_map.json"
SPEC = "twinloop/dataset.json"
PROGRESS = "twinloop/progress.json"
RESULT = "twinloop/result.json"
COVERAGE = "twinloop/coverage.json"
ADAPTIVE = "twinloop/adaptive.json"
CARD = "README.md"

SCHEMA = 1

_WIDTH = re.compile(r"0?\d{0,2}d?")


def require_keys(value: Any, keys: Sequence[str], *, where: str) -> None:
    """Check that the content of a twinloop JSON file has all keys and a schema that this version reads.

    Raises:
        DatasetError: names the file and every missing key, or the newer schema.
    """
    missing = [key for key in ("schema", *keys) if not isinstance(value, Mapping) or key not in value]
    if missing:
        raise DatasetError(
            f"{where} lacks {', '.join(missing)}: it is damaged or was not written by twinloop. Restore the file, or "
            "write the dataset again."
        )
    schema: Any = value["schema"]
    if not isinstance(schema, int) or schema > SCHEMA:
        raise DatasetError(f"{where} has schema {schema}; this version reads up to {SCHEMA}. Upgrade twinloop.")


@contextlib.contextmanager
def wrap_parse_errors(where: str) -> Iterator[None]:
    """Turn errors while parsing a file's content into a `DatasetError` that names the file.

    Raises:
        DatasetError: a key is missing or a value has another type than twinloop writes.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DatasetError(
            f"{where} is damaged or was not written by twinloop ({type(error).__name__}: {error}). Restore the file, "
            "or write the dataset again."
        ) from error


def chunk_and_file(block: int) -> dict[str, int]:
    """Return the chunk and file index of a block, the arguments of the path templates."""
    return {"chunk_index": block // FILES_PER_CHUNK, "file_index": block % FILES_PER_CHUNK}


def block_path(template: str, block: int, **keys: str) -> str:
    """Return the relative path of a block's file."""
    return template.format(**chunk_and_file(block), **keys)


def resolve_inside(root: Path, template: str, values: Mapping[str, Any]) -> Path:
    """Return the path that a template of the metadata gives; refuse a path outside the dataset's folder.

    Symbolic links are resolved before the comparison, so a link to a place outside is refused too.

    Raises:
        DatasetError: the template cannot be filled, or the path is outside ``root``.
    """
    try:
        _check_fields(template)
        relative = template.format(**values)
    except (KeyError, IndexError, ValueError) as error:
        raise DatasetError(f"{root / INFO}: the path template {template!r} cannot be filled ({error!r}).") from error
    path = root / relative
    if not path.resolve().is_relative_to(root.resolve()):
        raise DatasetError(
            f"{root / INFO} names the path {relative!r}, which leaves the dataset's folder. "
            "Nothing outside it is read; correct data_path or video_path."
        )
    return path


def _check_fields(template: str) -> None:
    """Refuse template fields other than a name with at most two digits of width; a large width fills the memory."""
    for _, name, spec, conversion in Formatter().parse(template):
        if name is not None and (not name.isidentifier() or conversion or not _WIDTH.fullmatch(spec or "")):
            raise ValueError(f"the field {name!r} is not a plain name with a width of at most two digits")
