"""Validate a LeRobotDataset v3.0 folder: metadata and files, and with the programs lerobot-doctor and robovet.

Metadata must have values that a dataset can have, and files must be readable. Frames are not read; `twinloop curate`
finds errors in frames.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from twinloop.core.errors import DatasetError, MissingDependencyError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import open_parquet, read_table, require_columns
from twinloop.dataset.media.video import open_video

# Values beyond these bounds are mistakes or attacks, not data: the largest public set of robot data (Open
# X-Embodiment, arXiv 2310.08864) has some 2.4 million episodes, and LeRobot keeps all of them in one table.
MOST_EPISODES = 50_000_000
MOST_FRAMES = 50_000_000_000
MOST_FPS = 100_000.0
MOST_NUMBERS = 100_000_000  # of one feature in one frame: more than any image has
_DTYPES = re.compile(r"(u?int(8|16|32|64)|float(16|32|64)|bool|string|video|image|language)")


def require_valid_info(info: Mapping[str, Any], folder: Path) -> None:
    """Check that ``info.json`` has possible counts, rates, shapes and types, and only paths inside the folder.

    Args:
        info: Content of ``info.json``.
        folder: Folder of the dataset.

    Raises:
        DatasetError: If a value is impossible; the message names the key.
    """
    where = folder / layout.INFO
    _check_counts(info, where)
    _check_paths(info, folder, where)
    _check_features(info.get("features"), where)


def require_whole_numbers(table: pa.Table, names: Sequence[str], *, where: str) -> None:
    """Check that the columns ``names`` of an episode table have whole numbers of at least 0, without empty values.

    Raises:
        DatasetError: If a column has other values.
    """
    for name in names:
        column = table[name]
        whole = pa.types.is_integer(column.type) and not column.null_count
        if not whole or (pc.min(column).as_py() or 0) < 0:
            raise DatasetError(
                f"{where}: {name} of the episode table (meta/episodes) is not a whole number from 0 everywhere "
                f"({column.type}). Copy or export the dataset again."
            )


def require_frames_within(table: pa.Table, frames: int, *, where: str) -> None:
    """Check that all episodes end within the dataset's frames, before memory is allocated for them.

    Args:
        table: The episode table.
        frames: Number of frames of the dataset.
        where: Path of the dataset for messages.

    Raises:
        DatasetError: If an episode ends later; the message names the episode with the largest end.
    """
    ends = table["length"].to_numpy().astype(np.float64)
    if "dataset_from_index" in table.column_names:
        ends = ends + table["dataset_from_index"].to_numpy()
    if len(ends) and ends.max() > frames:
        raise DatasetError(
            f"{where}: episode {table['episode_index'][int(ends.argmax())].as_py()} ends at frame {ends.max():.0f} by "
            f"the episode table, but {layout.INFO} has {frames} frames in total. Copy or export the dataset again."
        )


def _check_counts(info: Mapping[str, Any], where: Path) -> None:
    for key, most in (("total_episodes", MOST_EPISODES), ("total_frames", MOST_FRAMES)):
        value = info.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise _impossible_value(where, key, value, f"a whole number from 0 to {most}")
    fps = info.get("fps")
    if not isinstance(fps, int | float) or isinstance(fps, bool) or not math.isfinite(fps) or not 0 < fps <= MOST_FPS:
        raise _impossible_value(where, "fps", fps, f"a number above 0, up to {MOST_FPS:.0f}")


def _check_paths(info: Mapping[str, Any], folder: Path, where: Path) -> None:
    for key in ("data_path", "video_path"):
        template = info.get(key)
        if key == "video_path" and template is None:
            continue
        if not isinstance(template, str):
            raise _impossible_value(where, key, template, f"a path such as {layout.DATA_PATH}")
        layout.resolve_inside(folder, template, {"chunk_index": 0, "file_index": 0, "video_key": "camera"})


def _check_features(features: Any, where: Path) -> None:
    if not isinstance(features, Mapping) or not features:
        raise _impossible_value(where, "features", features, "a table of features by name")
    for name, entry in features.items():
        dtype = entry.get("dtype") if isinstance(entry, Mapping) else None
        if "/" in name or not name:
            raise DatasetError(
                f"{where}: {name!r} cannot name a feature; LeRobot allows no '/' in names. Export it again."
            )
        if not isinstance(dtype, str) or not _DTYPES.fullmatch(dtype):
            raise DatasetError(
                f"{where}: feature {name} has dtype {dtype!r}, which is not a LeRobot type. Export it again."
            )
        shape = entry.get("shape", [1])
        shape = shape if isinstance(shape, list) else [shape]
        sides = [side if isinstance(side, int) and side >= 0 else MOST_NUMBERS + 1 for side in shape]
        if math.prod(max(side, 1) for side in sides) > MOST_NUMBERS:
            raise DatasetError(
                f"{where}: feature {name} has shape {str(shape)[:80]}; a shape is a list of whole numbers, up to "
                f"{MOST_NUMBERS} in total."
            )


def _impossible_value(where: Path, key: str, value: Any, wanted: str) -> DatasetError:
    return DatasetError(
        f"{where}: {key} is {str(value)[:80] if not isinstance(value, str) else repr(value[:80])}; it "
        f"must be {wanted}. Correct it, or export the dataset again."
    )


_NO_NUMBERS = ("video", "image", "string", "language")  # dtypes of features
_HEAD, _LARGE = 8, 16  # bytes of an MP4 box before its content, and of one whose size takes 64 bits


def find_unreadable_files(folder: Path, info: Mapping[str, Any], tables: Sequence[str]) -> list[str]:
    """Return one sentence for each data file, video or column that cannot be read.

    Args:
        folder: Folder of a LeRobotDataset v3.0.
        info: Content of its ``info.json``.
        tables: Files of its episode table, as paths relative to the folder. Files to which they refer are checked.
    """
    found = list[str]()
    for name in tables:
        with open_parquet(folder / name) as file:
            present = file.schema_arrow.names
        found += _find_broken_tables(folder, info, folder / name)
        keys = [key for key, entry in info["features"].items() if entry["dtype"] == "video"]
        for key in keys:
            columns = [f"videos/{key}/chunk_index", f"videos/{key}/file_index"]
            try:
                require_columns(columns, present, where=str(folder / name))
                found += _find_broken_videos(folder, info, key, folder / name)
            except DatasetError as error:
                found.append(str(error))
    return list(dict.fromkeys(found))


def _frames_by_file(table: Path, columns: Sequence[str]) -> Counter[tuple[int, int]]:
    """Return the number of frames in each file according to the episode table, by chunk and file index.

    Args:
        table: Path of a file of the episode table.
        columns: Names of the columns with the chunk index and the file index.
    """
    rows = read_table(table, ["length", *columns])
    frames = Counter[tuple[int, int]]()
    for length, chunk, file in zip(*(rows[name].to_pylist() for name in ("length", *columns)), strict=True):
        if chunk is not None and file is not None:
            frames[chunk, file] += length or 0
    return frames


def _find_broken_tables(folder: Path, info: Mapping[str, Any], table: Path) -> Iterator[str]:
    features = {key: entry for key, entry in info["features"].items() if entry["dtype"] not in _NO_NUMBERS}
    for (chunk, number), frames in _frames_by_file(table, ("data/chunk_index", "data/file_index")).items():
        try:
            path = layout.resolve_inside(folder, info["data_path"], {"chunk_index": chunk, "file_index": number})
            with open_parquet(path) as file:
                yield from (f"{path} {what}." for what in _find_wrong_columns(file, features, frames))
        except DatasetError as error:
            yield str(error)


def _find_wrong_columns(file: pq.ParquetFile, features: Mapping[str, Any], frames: int) -> Iterator[str]:
    meta, schema = file.metadata, file.schema_arrow
    if meta.num_rows < frames:
        yield f"has {meta.num_rows} rows; the episode table needs {frames}"
    for key, entry in features.items():
        if key not in schema.names:
            yield f"has no column {key}, which is a feature in {layout.INFO}"
            continue
        kind = schema.field(key).type
        while pa.types.is_nested(kind) and kind.num_fields == 1:
            kind = kind.field(0).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            yield f"holds {kind} in {key}, not numbers"
            continue
        empty, values = _count_values(meta, key)
        wanted = meta.num_rows * int(np.prod(entry["shape"]))
        if empty:
            yield f"has {empty} empty values in {key}"
        elif values != wanted:
            yield f"has {values} values in {key}; {layout.INFO} needs {wanted}"


def _count_values(meta: pq.FileMetaData, key: str) -> tuple[int, int]:
    """Return the number of empty values and the number of all values of a column, from the file's metadata."""
    empty = values = 0
    for group in range(meta.num_row_groups):
        for place in range(meta.num_columns):
            column = meta.row_group(group).column(place)
            if column.path_in_schema == key or column.path_in_schema.startswith(f"{key}.list."):
                values += column.num_values
                statistics = column.statistics
                empty += (statistics.null_count or 0) if statistics is not None and statistics.has_null_count else 0
    return empty, values


def _find_broken_videos(folder: Path, info: Mapping[str, Any], key: str, table: Path) -> Iterator[str]:
    places = _frames_by_file(table, (f"videos/{key}/chunk_index", f"videos/{key}/file_index"))
    for (chunk, number), frames in places.items():
        values = {"chunk_index": chunk, "file_index": number, "video_key": key}
        try:
            path = layout.resolve_inside(folder, info["video_path"], values)
            _require_complete_file(path)
            _require_length(path, frames)
        except DatasetError as error:
            yield str(error)


def _require_complete_file(path: Path) -> None:
    """Check that an MP4 file exists, is not cut off, and has its index and its frames.

    Raises:
        DatasetError: If the file is missing or incomplete.
    """
    if not path.is_file():
        raise DatasetError(f"{path} is missing, although the dataset's metadata names it. Restore the file.")
    size, at, kinds = path.stat().st_size, 0, list[bytes]()
    with path.open("rb") as file:
        while at + _HEAD <= size:
            file.seek(at)
            head = file.read(_LARGE)
            length, kind = int.from_bytes(head[:4], "big"), head[4:8]
            length = int.from_bytes(head[8:16], "big") if length == 1 else length or size - at
            if not kinds and kind != b"ftyp":
                return  # another format than MP4
            kinds.append(kind)
            if length < _HEAD or at + length > size:
                name = kind.decode("ascii", "replace")
                raise DatasetError(f"{path} is cut off: its box {name} should have {length} bytes and has {size - at}.")
            at += length
    missing = [name for name, kind in (("index", b"moov"), ("content", b"mdat")) if kind not in kinds]
    if missing:
        raise DatasetError(f"{path} is cut off or empty: it has {size} bytes and no {missing[0]} of frames.")


def _require_length(path: Path, frames: int) -> None:
    import av

    try:
        with open_video(path) as container:
            found = container.streams.video[0].frames
    except (av.error.FFmpegError, IndexError) as error:
        raise DatasetError(f"{path} cannot be read as a video ({error}). Write it again or restore it.") from error
    if found and found < frames:
        raise DatasetError(f"{path} has {found} frames; the episode table needs {frames}.")


_REMEDY = "pip install 'twinloop[verify]'"
_TIMEOUT_S = 1800


@dataclass(frozen=True, kw_only=True)
class ValidationResult:
    """Result of one validator.

    Attributes:
        validator: Name of the validator.
        accepted: True if no check failed.
        passed: Number of checks that passed.
        warned: Number of checks that gave a warning.
        failed: Number of checks that failed.
        failures: Texts of the failures.
        warnings: Texts of the warnings.
    """

    validator: str
    accepted: bool
    passed: int
    warned: int
    failed: int
    failures: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "validator": self.validator,
            "accepted": self.accepted,
            "passed": self.passed,
            "warned": self.warned,
            "failed": self.failed,
            "failures": list(self.failures),
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        verdict = "accepts" if self.accepted else "rejects"
        counts = f"{self.passed} passed, {self.warned} warned, {self.failed} failed"
        return "; ".join([f"{self.validator} {verdict} it ({counts})", *self.failures])


def validate(path: Path | str) -> tuple[ValidationResult, ...]:
    """Run the public validators ``lerobot-doctor`` and ``robovet`` on a dataset folder, and return both results.

    Raises:
        MissingDependencyError: If a validator is not installed; the message has the command that installs it.
        DatasetError: If a validator ended without a result; the message quotes its output.
    """
    path = Path(path)
    return run_lerobot_doctor(path), run_robovet(path)


def run_lerobot_doctor(path: Path) -> ValidationResult:
    """Run ``lerobot-doctor check --ci`` on a dataset folder; the dataset is accepted if no check fails."""
    done = _run_validator("lerobot-doctor", ["check", "--ci", str(path)])
    report = _parse_report("lerobot-doctor", done.stdout, done)
    counts = report["summary"]
    return ValidationResult(
        validator="lerobot-doctor",
        accepted=done.returncode == 0,
        passed=counts["PASS"],
        warned=counts["WARN"],
        failed=counts["FAIL"],
        failures=_select_messages(report, "FAIL"),
        warnings=_select_messages(report, "WARN"),
    )


def run_robovet(path: Path) -> ValidationResult:
    """Run ``robovet doctor`` on a dataset folder; the dataset is accepted if no check fails."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "robovet.json"
        done = _run_validator("robovet", ["doctor", str(path), "--json", str(target)])
        report = _parse_report("robovet", target.read_text() if target.exists() else "", done)
    found = {level: [r for r in report["results"] if r["severity"] == level] for level in ("FAIL", "WARN")}
    return ValidationResult(
        validator="robovet",
        accepted=done.returncode == 0,
        passed=report["counts"]["PASS"],
        warned=report["counts"]["WARN"],
        failed=report["counts"]["FAIL"],
        failures=tuple(r["summary"] for r in found["FAIL"]),
        warnings=tuple(r["summary"] for r in found["WARN"]),
    )


def _run_validator(program: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a validator that is installed in the environment of this Python interpreter.

    Raises:
        MissingDependencyError: If it is not installed.
    """
    places = (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent)
    found = next((place / program for place in places if (place / program).is_file()), None)
    if found is None:
        raise MissingDependencyError(f"The validator {program} is not installed.", remedy=_REMEDY)
    command = [str(found), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603 - a fixed program and a path


def _parse_report(program: str, text: str, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        last_line = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["nothing"]
        raise DatasetError(
            f"{program} ended with exit code {done.returncode} and no result. Its last output: {last_line[0]}"
        ) from None


def _select_messages(report: dict[str, Any], level: str) -> tuple[str, ...]:
    return tuple(
        message["message"]
        for check in report["checks"]
        for message in check["messages"]
        if message["severity"] == level
    )
