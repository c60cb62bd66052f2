"""Paths of the files in a LeRobotDataset v3.0 folder, including the files that twinloop adds, and checks of such paths.

Episodes are written in blocks: one commit adds one block, as one new file of each kind (data, video, episode table).
The file of block ``k`` has the index ``k % 1000`` in chunk ``k // 1000``.
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
OWN = "twinloop"  # folder of all files that LeRobot does not know
PROGRESS = "twinloop/progress.json"
RESULT = "twinloop/result.json"
COVERAGE = "twinloop/coverage.json"
ADAPTIVE = "twinloop/adaptive.json"
CARD = "README.md"

SCHEMA = 1

_WIDTH = re.compile(r"0?\d{0,2}d?")


def require_keys(value: Any, keys: Sequence[str], *, where: str) -> None:
    """Check that the content of a twinloop JSON file has all keys and a schema version that this program can read.

    Args:
        value: Parsed content of the file.
        keys: Required keys in addition to ``schema``.
        where: Path of the file for messages.

    Raises:
        DatasetError: If keys are missing, or the schema is newer.
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
    """Convert errors in parsing a file's content to a `DatasetError` with the file's name, as a context manager.

    Args:
        where: Path of the file for the message.

    Raises:
        DatasetError: If a key is missing or a value has a wrong type.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DatasetError(
            f"{where} is damaged or was not written by twinloop ({type(error).__name__}: {error}). Restore the file, "
            "or write the dataset again."
        ) from error


def chunk_and_file(block: int) -> dict[str, int]:
    """Return ``chunk_index`` and ``file_index`` of the files of a block, as arguments for the path templates.

    A block is a group of episodes that are committed together.
    """
    return {"chunk_index": block // FILES_PER_CHUNK, "file_index": block % FILES_PER_CHUNK}


def block_path(template: str, block: int, **keys: str) -> str:
    """Return the path of a file of one block (episodes that are committed together), relative to the dataset's folder.

    Args:
        template: Path template, such as `DATA_PATH`.
        block: Number of the block.
        **keys: Further fields of the template, such as ``video_key``.
    """
    return template.format(**chunk_and_file(block), **keys)


def resolve_inside(root: Path, template: str, values: Mapping[str, Any]) -> Path:
    """Fill in a path template from a dataset's metadata, and refuse a path outside the dataset's folder.

    Symbolic links are resolved first, so a link to a file outside the folder is refused too.

    Args:
        root: Folder of the dataset.
        template: Path template with fields in braces.
        values: Values of the fields.

    Raises:
        DatasetError: If a field has no value or the path is outside ``root``.
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
    """Check that each field of a path template is a plain name, with a format width of at most two digits.

    An example is ``{file_index:03d}``. With a huge width, formatting would fill the memory.

    Raises:
        ValueError: If a field has another form.
    """
    for _, name, spec, conversion in Formatter().parse(template):
        if name is not None and (not name.isidentifier() or conversion or not _WIDTH.fullmatch(spec or "")):
            raise ValueError(f"the field {name!r} is not a plain name with a width of at most two digits")
