"""Check that every file, column and camera of an episode can be read; no other check judges an unreadable episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from twinloop.core.errors import DatasetError, InputError
from twinloop.curate.check import READABLE, CheckScore, Measurement, MeasuringCheck
from twinloop.curate.recording import RecordedEpisode
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import column_to_floats
from twinloop.dataset.media.video import require_frames
from twinloop.dataset.spec import INDEX_FEATURES

_NO_NUMBERS = ("video", "image", "string", "language")  # dtypes of features
_IMAGES = "observation.images."


class Readable(MeasuringCheck):
    """Check that all parts of an episode can be read.

    The parts are frames, states, commands, log, video packets, and first and last images.
    """

    name = READABLE
    meaning = "files, columns or images that cannot be read"
    reads = frozenset[str]()

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return one value: the number of parts of the episode (tables and cameras) that cannot be read."""
        parts: list[Callable[[RecordedEpisode], None]] = [
            _read_frames,
            _read_stored_data,
            *(_make_camera_reader(name) for name in recording.cameras),
        ]
        reasons = [reason for part in parts if (reason := _find_read_error(part, recording))]
        if reasons:
            return [Measurement(value=float(len(reasons)), text=" ".join(dict.fromkeys(reasons)), unreadable=True)]
        return [Measurement(value=0.0, text="All of its data can be read.")]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Give an episode with unreadable parts the verdict ``unreadable``, and any other episode ``good``."""
        for recording, (row,) in zip(recordings, measured, strict=True):
            yield self.make_score(recording, row, "unreadable" if row.unreadable else "good")


def _find_read_error(part: Callable[[RecordedEpisode], None], recording: RecordedEpisode) -> str:
    try:
        part(recording)
    except DatasetError as error:
        return str(error)
    return ""


def _read_frames(recording: RecordedEpisode) -> None:
    """Read every numeric column of the episode's frames.

    Raises:
        DatasetError: If a column is missing or damaged, has another width than declared, or holds a time or index that
            is not finite.
    """
    reader, index = recording.reader, recording.index
    if recording.frame_count < 1:
        raise DatasetError(f"{reader.path}: according to the episode table, episode {index} has no frames.")
    features = {key: entry for key, entry in reader.info["features"].items() if entry["dtype"] not in _NO_NUMBERS}
    table = reader.frames_table(index, list(features))
    row = reader.row(index)
    where = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
    path = layout.resolve_inside(reader.path, reader.info["data_path"], where)
    for key, entry in features.items():
        of = f"{path}: {key} of episode {index}"
        values = column_to_floats(table[key], where=of)
        width, declared = values.size // len(values), int(np.prod(entry["shape"]))
        if width != declared:
            raise DatasetError(f"{of} has rows of {width} values; {layout.INFO} declares {declared}. Export it again.")
        _require_finite_index(key, values, of)


def _require_finite_index(key: str, values: Any, where: str) -> None:
    """Raise an error if a frame's time or index is not finite.

    Args:
        key: name of the feature; other features than times and indices are not checked.
        values: values of the feature, one row per frame.
        where: file and feature, for the message.
    """
    wrong = np.flatnonzero(~np.isfinite(values))
    if key in INDEX_FEATURES and len(wrong):
        raise DatasetError(f"{where} is {values[wrong[0]]} at frame {wrong[0]}. The time of the frame is unknown.")


def _read_stored_data(recording: RecordedEpisode) -> None:
    """Read the provenance of an episode that twinloop wrote, and its log or its states and commands, as a test only.

    Raises:
        DatasetError: If they are damaged, or their numbers do not match the number of frames.
    """
    if not recording.written_by_twinloop:
        return
    reader, index, frames = recording.reader, recording.index, recording.frame_count
    source = recording.source  # reads the provenance
    if reader.has_log(index):
        reader.log_episode(index)
    elif source != "real":
        states, commands = len(reader.states(index)), len(reader.commands(index))
        if (states, commands) != (frames + 1, frames):
            raise DatasetError(
                f"{reader.path}: episode {index} has {frames} frames, {states} states and {commands} commands."
            )


def _require_images(cells: pa.ChunkedArray) -> None:
    """Raise an error if a row of a column of images is null or has no bytes.

    Raises:
        DatasetError: If there is such a row.
    """
    empty = sum(not (isinstance(cell, dict) and cell.get("bytes")) for cell in cells.to_pylist())
    if empty:
        raise DatasetError(f"{empty} of {len(cells)} cells contain no image.")


def _make_camera_reader(camera: str) -> Callable[[RecordedEpisode], None]:
    """Return a function that reads one camera of an episode as a test, and raises `DatasetError` if that fails.

    It reads the times of all frames of a video, or the cells of a column of images, and decodes the first and last
    image.
    """

    def read(recording: RecordedEpisode) -> None:
        reader, index = recording.reader, recording.index
        last = max(recording.frame_count - 1, 0)
        try:
            if camera in reader.cameras:
                require_frames(*reader.video_location(index, camera), reader.fps, recording.frame_count)
            else:
                _require_images(reader.frames_table(index, [_IMAGES + camera])[_IMAGES + camera])
            for frame in sorted({0, last}):
                recording.read_images(camera, [frame])
        except (InputError, OSError, ValueError) as error:
            raise DatasetError(f"Camera {camera} of episode {index}: {error}") from error

    return read
