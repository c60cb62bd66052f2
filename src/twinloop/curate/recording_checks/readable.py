"""Whether all of an episode can be read: every file, every column, every camera. What cannot is judged by no check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from twinloop.core.errors import DatasetError, InputError
from twinloop.curate.check import READABLE, CheckScore, Measurement, MeasuringCheck
from twinloop.curate.recording import RecordedEpisode
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import numbers
from twinloop.dataset.media.video import require_frames
from twinloop.dataset.spec import INDEX_FEATURES

_NO_NUMBERS = ("video", "image", "string")  # dtypes of features
_IMAGES = "observation.images."


class Readable(MeasuringCheck):
    """Reads frames, states, commands and log of an episode; of its videos every packet, and the frames at both ends."""

    name = READABLE
    meaning = "files, columns or pictures that cannot be read"
    reads = frozenset[str]()

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return one figure: how many parts of the episode cannot be read."""
        parts: list[Callable[[RecordedEpisode], None]] = [
            _frames,
            _exact,
            *(_camera(name) for name in recording.cameras),
        ]
        reasons = [reason for part in parts if (reason := _reason(part, recording))]
        if reasons:
            return [Measurement(value=float(len(reasons)), said=" ".join(dict.fromkeys(reasons)), unreadable=True)]
        return [Measurement(value=0.0, said="Everything of it can be read.")]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """See `MeasuringCheck`."""
        for recording, (row,) in zip(recordings, measured, strict=True):
            yield self.of(recording, row, "unreadable" if row.unreadable else "good")


def _reason(part: Callable[[RecordedEpisode], None], recording: RecordedEpisode) -> str:
    try:
        part(recording)
    except DatasetError as error:
        return str(error)
    return ""


def _frames(recording: RecordedEpisode) -> None:
    """Read every column of numbers."""
    reader, index = recording.reader, recording.index
    if recording.frames < 1:
        raise DatasetError(f"{reader.path}: the episode table says that episode {index} has no frames.")
    features = {key: entry for key, entry in reader.info["features"].items() if entry["dtype"] not in _NO_NUMBERS}
    table = reader.frames_table(index, list(features))
    row = reader.row(index)
    where = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
    path = layout.inside(reader.path, reader.info["data_path"], where)
    for key, entry in features.items():
        of = f"{path}: {key} of episode {index}"
        values = numbers(table[key], where=of)
        width, declared = values.size // len(values), int(np.prod(entry["shape"]))
        if width != declared:
            raise DatasetError(f"{of} has rows of {width} values; {layout.INFO} says {declared}. Export it again.")
        _require_counted(key, values, of)


def _require_counted(key: str, values: Any, of: str) -> None:
    """Refuse a time or a number of a frame that is none."""
    wrong = np.flatnonzero(~np.isfinite(values))
    if key in INDEX_FEATURES and len(wrong):
        raise DatasetError(f"{of} is {values[wrong[0]]} at frame {wrong[0]}. Nothing tells when the frame was.")


def _exact(recording: RecordedEpisode) -> None:
    """Read provenance, states and commands, or the log, of an episode that twinloop wrote."""
    if not recording.ours:
        return
    reader, index, frames = recording.reader, recording.index, recording.frames
    source = recording.source  # reads the provenance
    if reader.has_log(index):
        reader.log_episode(index)
    elif source != "real":
        states, commands = len(reader.states(index)), len(reader.commands(index))
        if (states, commands) != (frames + 1, frames):
            raise DatasetError(
                f"{reader.path}: episode {index} has {frames} frames, {states} states and {commands} commands."
            )


def _require_pictures(cells: pa.ChunkedArray) -> None:
    """Refuse a column of pictures with an empty cell."""
    empty = sum(not (isinstance(cell, dict) and cell.get("bytes")) for cell in cells.to_pylist())
    if empty:
        raise DatasetError(f"{empty} of {len(cells)} cells hold no picture.")


def _camera(camera: str) -> Callable[[RecordedEpisode], None]:
    """Return what reads one camera: of a video the times of all frames; the first and the last picture."""

    def read(recording: RecordedEpisode) -> None:
        reader, index = recording.reader, recording.index
        last = max(recording.frames - 1, 0)
        try:
            if camera in reader.cameras:
                require_frames(*reader.video_place(index, camera), reader.fps, recording.frames)
            else:
                _require_pictures(reader.frames_table(index, [_IMAGES + camera])[_IMAGES + camera])
            for frame in sorted({0, last}):
                recording.pictures(camera, [frame])
        except (InputError, OSError, ValueError) as error:
            raise DatasetError(f"Camera {camera} of episode {index}: {error}") from error

    return read
