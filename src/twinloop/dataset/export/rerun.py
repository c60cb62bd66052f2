"""Export datasets to Rerun recordings with a viewer layout: images and scene on the left, plots and texts on the right.

An output ``NAME.rrd`` contains one episode; any other output is a folder with one file per episode. Frame data are on
the timelines ``time`` (episode time in s) and ``frame``; samples between frames are on ``time`` only. Video packets are
copied. Rerun adds time stamps to its chunks, so two exports of the same content differ in their bytes.
"""

from __future__ import annotations

import functools
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.documents import parse_json
from twinloop.core.errors import DatasetError, InputError, MissingDependencyError
from twinloop.core.files import atomic_open
from twinloop.dataset.export import rerun_entities as entities
from twinloop.dataset.export.protocol import (
    Exporter,
    ExportOptions,
    ExportResult,
    create_output_folder,
    select_episodes,
)
from twinloop.dataset.export.rerun_entities import log_episode
from twinloop.dataset.export.streams import (
    IMAGES,
    NO_GROUND_TRUTH,
    STREAM_SETTINGS,
    EpisodeStreams,
    ExportSelection,
    GroundTruth,
    open_reader,
    read_selection,
    require_absent,
)


def build_blueprint(streams: EpisodeStreams, cameras: Sequence[str]) -> Any:
    """Return the Rerun blueprint (layout of the viewer) for one episode; ``cameras`` are names of exported cameras."""
    import rerun.blueprint as rrb  # pyright: ignore[reportMissingImports]

    camera_views = [
        rrb.Spatial2DView(origin=f"{entities.CAMERAS}/{entities.escape_name(name)}", name=name) for name in cameras
    ]
    left = rrb.Vertical(
        *camera_views,
        *([rrb.Spatial3DView(origin=entities.WORLD, name="scene")] if streams.written_by_twinloop else []),
    )
    known = any(True for _ in streams.joints_si())
    joints = rrb.TimeSeriesView(
        origin="/", contents=[f"/{entities.JOINTS}/**"] if known else [f"/{entities.DATASET}/**"], name="joints"
    )
    signal_views = [
        rrb.TimeSeriesView(origin=f"{entities.SIGNALS}/{entities.escape_name(channel.name)}", name=channel.name)
        for channel in streams.signals()
    ]
    text_views = rrb.Tabs(
        rrb.TextDocumentView(origin=entities.ABOUT, name="about"), rrb.TextLogView(origin=entities.LOG, name="log")
    )
    right = rrb.Vertical(joints, *([rrb.Tabs(*signal_views)] if signal_views else []), text_views)
    whole = rrb.Horizontal(left, right) if cameras or streams.written_by_twinloop else right
    return rrb.Blueprint(whole, rrb.TimePanel(timeline="time"), collapse_panels=True)


APPLICATION = "twinloop"


class RerunReader:
    """Reader of Rerun recordings that twinloop exported; implements `ExportReader`.

    Args:
        path: One recording, or a folder with one recording per episode.

    Raises:
        DatasetError: If there is no recording, or twinloop did not export it.
    """

    def __init__(self, path: Path) -> None:
        files = sorted(path.glob("*.rrd")) if path.is_dir() else [path]
        if not files:
            raise DatasetError(f"{path} contains no .rrd file.")
        self._recordings = [_Recording(file) for file in files]

    @property
    def lengths(self) -> Sequence[int]:
        """Number of frames of each episode."""
        return [int(recording.facts["frames"]) for recording in self._recordings]

    @property
    def cameras(self) -> Sequence[str]:
        """Feature keys of the exported cameras."""
        first = self._recordings[0]
        keys = [key for key in first.facts["features"] if key.startswith(IMAGES)]
        return [key for key in keys if first.has_entity(_camera_entity(key))]

    def read_numeric_features(self, episode: int, frame: int) -> Mapping[str, NDArray[Any]]:
        """Return all numeric features of one frame by feature key, as 1-D arrays."""
        recording, found = self._recordings[episode], {}
        for key, entry in recording.facts["features"].items():
            if recording.has_entity(entity := f"/dataset/{_escape_name(key)}"):
                found[key] = np.array(recording.read_scalars(entity)[frame], dtype=np.float64).astype(entry["dtype"])
        return found

    def read_image(self, episode: int, camera: str, frame: int) -> NDArray[np.uint8]:
        """Return one image ``(height, width, 3)`` of a camera."""
        return self._recordings[episode].decode_images(_camera_entity(camera))[frame]


class _Recording:
    """One recording file; its data are read once into memory.

    An entity is a named data stream of Rerun.

    Args:
        path: The recording file.

    Attributes:
        facts: The dataset's features and the number of frames.

    Raises:
        DatasetError: If twinloop did not export the file.
    """

    def __init__(self, path: Path) -> None:
        self._batches: dict[str, list[pa.RecordBatch]] = {}
        for entity, batch in _read_chunks(path):
            self._batches.setdefault(entity, []).append(batch)
        if "/features" not in self._batches:
            raise DatasetError(f"{path} was not exported by twinloop: it has no features.")
        self.facts: dict[str, Any] = parse_json(
            self._read_cells("/features", "TextDocument:text")[0][0], where=f"{path}: features"
        )

    def has_entity(self, entity: str) -> bool:
        """Return whether the recording has data of an entity."""
        return entity in self._batches

    def read_scalars(self, entity: str) -> list[list[float]]:
        """Return the rows of numbers of an entity, in order of time."""
        return self._read_cells(entity, "Scalars:scalars")

    @functools.lru_cache(maxsize=2)  # noqa: B019 - the object lives as long as a comparison
    def decode_images(self, entity: str) -> list[NDArray[np.uint8]]:
        """Return the images ``(height, width, 3)`` of an entity (data stream of Rerun), in order of time."""
        if encoded := self._read_cells(entity, "EncodedImage:blob"):
            from PIL import Image

            return [np.asarray(Image.open(io.BytesIO(bytes(cell[0]))).convert("RGB")) for cell in encoded]
        shown = [cell[0] for cell in self._read_cells(entity, "VideoFrameReference:timestamp")]
        return _decode_images_at(bytes(self._read_cells(entity, "AssetVideo:blob")[0][0]), shown)

    def _read_cells(self, entity: str, component: str) -> list[Any]:
        """Return the non-empty values of one component of an entity, in order of time."""
        rows: list[tuple[Any, Any]] = []
        for batch in self._batches[entity]:
            if component in batch.schema.names:
                cells = batch[component].to_pylist()
                times = (
                    batch["time"].to_numpy(zero_copy_only=False) if "time" in batch.schema.names else [0] * len(cells)
                )
                rows += [(time, cell) for time, cell in zip(times, cells, strict=True) if cell]
        return [cell for _, cell in sorted(rows, key=lambda row: row[0])]


def _decode_images_at(video: bytes, timestamps: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Decode the images of an MP4 video that are nearest to the given times in ns."""
    import av

    with av.open(io.BytesIO(video)) as container:
        stream = container.streams.video[0]
        frames: dict[int, NDArray[np.uint8]] = {
            round(float((frame.pts or 0) * (stream.time_base or 1)) * 1e6): np.asarray(
                frame.to_ndarray(format="rgb24"), dtype=np.uint8
            )
            for frame in container.decode(stream)
        }
    at = np.array(sorted(frames))
    return [frames[int(at[np.argmin(np.abs(at - when / 1e3))])] for when in timestamps]


def _read_chunks(path: Path) -> Iterator[tuple[str, pa.RecordBatch]]:
    try:
        from rerun.chunk import RrdReader  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            "Rerun recordings are read by rerun-sdk 0.41 or newer, which is not installed.",
            remedy="pip install 'twinloop[rerun]'",
        ) from error
    for chunk in RrdReader(str(path)).stream():
        yield str(chunk.entity_path), chunk.to_record_batch()


def _escape_name(name: str) -> str:
    import rerun  # pyright: ignore[reportMissingImports]

    return str(rerun.escape_entity_path_part(name))


def _camera_entity(key: str) -> str:
    return f"/cameras/{_escape_name(key.removeprefix(IMAGES))}"


def open_export(path: Path) -> RerunReader:
    """Open an exported recording, or a folder of recordings, for reading.

    Raises:
        DatasetError: If there is no recording, or twinloop did not export it.
        MissingDependencyError: If rerun-sdk is not installed.
    """
    return RerunReader(path)


def export_rerun(
    source: Path, output: Path, options: ExportOptions, *, truth: GroundTruth = NO_GROUND_TRUTH
) -> ExportResult:
    """Export episodes of a LeRobot v3.0 folder as Rerun recordings; implements `Exporter.write`.

    Args:
        source: The dataset folder.
        output: A new ``.rrd`` file for one episode, or a missing or empty folder.
        options: Episodes and settings of the format.
        truth: Data that the dataset does not have. Its ``bodies`` are shown in the scene, its ``events`` are added to
            the log.

    Raises:
        MissingDependencyError: If rerun-sdk is not installed.
        InputError: If an episode or camera does not exist, a setting is invalid, the output exists, or several episodes
            are selected for one file.
        DatasetError: If the source is damaged, or the disk is full. Nothing is left at ``output`` then.
    """
    rerun = _import_rerun()
    reader = open_reader(source)
    episodes = select_episodes(options, range(len(reader)), where=source)
    selection = read_selection(reader, options, truth, name="rerun")
    notes = dict.fromkeys(truth.notes)
    if output.suffix == ".rrd":
        _require_one(output, episodes)
        require_absent(output)
        notes.update(dict.fromkeys(_write_atomically(rerun, output, selection, episodes[0])))
    else:
        episodes = tuple(sorted(episodes))  # as their files are
        with create_output_folder(output) as stage:
            for index in episodes:
                notes.update(dict.fromkeys(_write(rerun, stage / f"episode_{index:06d}.rrd", selection, index)))
    frames = int(sum(reader.lengths[list(episodes)]))
    return ExportResult(output=output, episodes=episodes, frames=frames, notes=tuple(notes))


def _import_rerun() -> Any:
    try:
        import rerun  # pyright: ignore[reportMissingImports]
        import rerun.chunk  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            "Rerun recordings are written by the package rerun-sdk (0.41 or newer), which is not installed.",
            remedy="pip install 'twinloop[rerun]'",
        ) from error
    return rerun


def _require_one(output: Path, episodes: Sequence[int]) -> None:
    if len(episodes) > 1:
        raise InputError(
            f"{output} is one recording, but {len(episodes)} episodes are selected. Give --episodes {episodes[0]}, "
            f"or a folder: --output {output.with_suffix('')}."
        )


def _write_atomically(rerun: Any, output: Path, selection: ExportSelection, index: int) -> list[str]:
    """Write one recording to a temporary file and copy it atomically to ``output``; return notes.

    The temporary file is necessary because Rerun opens its files itself.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episode.rrd"
        notes = _write(rerun, path, selection, index)
        with atomic_open(output) as file, path.open("rb") as made:
            while part := made.read(1 << 20):
                file.write(part)
    return notes


def _write(rerun: Any, path: Path, selection: ExportSelection, index: int) -> list[str]:
    streams = EpisodeStreams(selection.reader, index)
    recording = rerun.RecordingStream(APPLICATION, recording_id=streams.name)
    recording.save(str(path), default_blueprint=build_blueprint(streams, selection.cameras))
    recording.send_recording_name(f"{selection.reader.path.resolve().name} {index}")
    notes = log_episode(recording, streams, selection.truth, selection.cameras, copy_packets=selection.copy_packets)
    recording.flush()
    recording.disconnect()
    return notes


EXPORTER = Exporter(
    name="rerun",
    description="Rerun recordings with a layout of images, plots and scene (.rrd or a folder)",
    unsupported="statistics and the exact simulator states",
    write=export_rerun,
    open_reader=open_export,
    settings=STREAM_SETTINGS,
)
