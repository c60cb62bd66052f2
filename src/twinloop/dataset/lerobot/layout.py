"""Where everything lies in a LeRobotDataset v3.0 folder, ours included, and paths that stay inside it.

Written blocks map to files one to one: block ``k`` is file ``k % 1000`` of chunk ``k // 1000`` in every series.
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
    """Refuse the content of one of our JSON files that lacks a key or is newer than this version.

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
def understood(where: str) -> Iterator[None]:
    """Name the file whose content the block takes apart.

    Raises:
        DatasetError: a key is missing or a value has another type than we write.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DatasetError(
            f"{where} is damaged or was not written by twinloop ({type(error).__name__}: {error}). Restore the file, "
            "or write the dataset again."
        ) from error


def chunk_and_file(block: int) -> dict[str, int]:
    """The chunk and file index of one block, as the path templates want them."""
    return {"chunk_index": block // FILES_PER_CHUNK, "file_index": block % FILES_PER_CHUNK}


def of_block(template: str, block: int, **keys: str) -> str:
    """The relative path of one block's file."""
    return template.format(**chunk_and_file(block), **keys)


def inside(root: Path, template: str, values: Mapping[str, Any]) -> Path:
    """A path that metadata names, made from its template, refused when it leaves the dataset's folder.

    Symbolic links are followed before the comparison, so a link that points outside is refused too.

    Raises:
        DatasetError: the template cannot be filled, or the path lies outside ``root``.
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
    """Refuse fields that are more than a name and up to two digits of width, which could take all memory."""
    for _, name, spec, conversion in Formatter().parse(template):
        if name is not None and (not name.isidentifier() or conversion or not _WIDTH.fullmatch(spec or "")):
            raise ValueError(f"the field {name!r} is more than a name with a width of two digits")
