"""Read any LeRobotDataset v3.0 folder, written by twinloop or by another program; episodes are read when needed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.assignment import list_sources
from twinloop.core.documents import open_regular, parse_json, read_json
from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.core.records import Episode, Provenance
from twinloop.core.units import UnitMap
from twinloop.dataset.annotations import CameraAnnotations
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import column_to_floats, open_parquet, read_rows, require_columns
from twinloop.dataset.lerobot.validation import require_frames_within, require_valid_info, require_whole_numbers
from twinloop.dataset.media.depth import DepthCoding, decode_codes, is_depth
from twinloop.dataset.media.video import decode
from twinloop.dataset.side_tables import open_side_table, read_side_rows, side_table_names
from twinloop.dataset.spec import DatasetSpec

if TYPE_CHECKING:
    import pyarrow.dataset as pad


_PLACE = ("episode_index", "length", "data/chunk_index", "data/file_index", "dataset_from_index")
_ATTEMPTS = 3
_IMAGES = "observation.images."
# Long texts of the episode table; `provenance` reads them from another file when needed. For 100,000 episodes they
# would take hundreds of megabytes.
_TEXTS = ("provenance/units", "provenance/versions", "provenance/randomization")


class DatasetReader:
    """Reader of one LeRobotDataset v3.0 folder.

    Episodes are addressed by their ``episode_index``, 0 to N − 1. Datasets that twinloop wrote (see
    `written_by_twinloop`) also have simulator states, commands, provenance and unrounded logs.

    Args:
        path: Folder of the dataset.

    Raises:
        DatasetError: If the folder is not a LeRobotDataset v3.0, or its metadata is inconsistent.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not (self.path / layout.INFO).is_file():
            raise DatasetError(f"{self.path} is not a LeRobot dataset: {_explain_missing(self.path)}.")
        self.info, self._episodes = self._read_consistently()

    def __len__(self) -> int:
        return len(self._episodes)

    @property
    def fps(self) -> float:
        """Frames per second."""
        return float(self.info["fps"])

    @property
    def written_by_twinloop(self) -> bool:
        """Whether twinloop wrote this dataset."""
        return (self.path / layout.SPEC).is_file()

    @functools.cached_property
    def spec(self) -> DatasetSpec:
        """Specification of the dataset; only for datasets that twinloop wrote.

        Raises:
            InputError: If another program wrote the dataset, or its file is damaged.
        """
        where = self.path / layout.SPEC
        spec = DatasetSpec.from_json(read_json(where), where=str(where))
        return replace(spec, sources=list_sources(self.path / layout.OWN))

    @property
    def units(self) -> UnitMap | None:
        """Unit map that converts the joint values to SI; None if the dataset has none.

        Raises:
            DatasetError: If its file is damaged.
        """
        path = self.path / layout.UNIT_MAP
        if not path.is_file():
            return None
        with layout.wrap_parse_errors(str(path)):
            return UnitMap.from_json(read_json(path))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of frames of each episode, shape ``(nepisode,)``."""
        return self._episodes["length"].to_numpy().astype(np.int64)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Number of each episode in the run that made it, shape ``(nepisode,)``.

        A run numbers all its attempts, also those that gave no episode. The number is the episode index if another
        program wrote the dataset, and -1 for an episode that another program appended to a twinloop dataset.
        """
        name = "provenance/number" if "provenance/number" in self._episodes.column_names else "episode_index"
        values = self._episodes[name].to_numpy().astype(np.float64)  # empty becomes NaN
        return np.nan_to_num(values, nan=-1.0).astype(np.int64)

    @property
    def episode_ids(self) -> list[str]:
        """Content hash of each episode, see `tables.content_hash`; only for datasets that twinloop wrote.

        Raises:
            DatasetError: If another program wrote the dataset.
        """
        if "provenance/episode_id" not in self._episodes.column_names:
            raise DatasetError(f"{self.path} was not written by twinloop: its episodes have no provenance.")
        return [str(name or "") for name in self._episodes["provenance/episode_id"].to_pylist()]

    def feature_names(self, feature: str) -> list[str]:
        """Return the names of the components of a vector feature; empty if the metadata has none.

        Raises:
            UnknownNameError: If the dataset has no such feature.
        """
        features = self.info["features"]
        if feature not in features:
            raise UnknownNameError("feature", feature, features, where=str(self.path / layout.INFO))
        return flat_names(features[feature].get("names"))

    @property
    def cameras(self) -> list[str]:
        """Names of the cameras whose colour images are stored as video."""
        return self._list_videos(depth=False)

    @property
    def depth_cameras(self) -> list[str]:
        """Names of the depth features that are stored as video, such as ``front_depth``."""
        return self._list_videos(depth=True)

    def _list_videos(self, *, depth: bool) -> list[str]:
        features = self.info["features"].items()
        keys = [key for key, entry in features if entry["dtype"] == "video" and is_depth(entry) == depth]
        return [key.removeprefix(_IMAGES) for key in keys]

    def row(self, index: int) -> dict[str, Any]:
        """Return an episode's row of the episode table, by column name.

        Raises:
            InputError: If there is no such episode.
        """
        if not 0 <= index < len(self):
            raise InputError(f"{self.path} has no episode {index}; it has 0 to {len(self) - 1}.")
        return self._episodes.slice(index, 1).to_pylist()[0]

    def frames_table(self, index: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the frames of one episode, one row per frame; only the row groups that contain them are read.

        Args:
            index: Index of the episode.
            columns: Names of the columns to read; None reads all.

        Raises:
            DatasetError: If the data file is missing or damaged, or the rows belong to another episode.
        """
        row = self.row(index)
        where = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
        path = layout.resolve_inside(self.path, self.info["data_path"], where)
        start = row["dataset_from_index"] - self._file_start(where["chunk_index"], where["file_index"])
        wanted = None if columns is None else [*dict.fromkeys(["episode_index", *columns])]
        table = read_rows(path, start, start + row["length"], wanted)
        found = np.unique(table["episode_index"].to_numpy())
        if found.tolist() != [index]:
            raise DatasetError(
                f"{path}: rows {start} to {start + row['length']} should be episode {index} and are {found.tolist()}. "
                "The episode table and the data disagree; export the dataset again."
            )
        return table

    def array(self, index: int, feature: str) -> NDArray[np.float64]:
        """Return one numeric feature of an episode as float64.

        Returns:
            Shape ``(nframe, n)`` for a vector of n components, ``(nframe,)`` for a scalar.
        """
        self.feature_names(feature)
        table = self.frames_table(index, [feature])
        return column_to_floats(table[feature], where=f"{self.path}: {feature} of episode {index}")

    def images(self, index: int, camera: str, frames: Sequence[int] | None = None) -> NDArray[np.uint8]:
        """Decode images of one episode and camera, shape ``(n, height, width, 3)``, 8-bit sRGB.

        Args:
            index: Index of the episode.
            camera: Name of the camera.
            frames: Frame numbers in ascending order; None decodes all frames.
        """
        path, times = self._frame_times(index, camera, frames)
        return decode(path, times, tolerance_s=0.25 / self.fps)

    def depth(self, index: int, camera: str, frames: Sequence[int] | None = None) -> NDArray[np.float32]:
        """Decode depth images of one episode in m, shape ``(n, height, width)``; see `media.depth` for unknown depth.

        Args:
            index: Index of the episode.
            camera: Name of the depth feature, such as ``front_depth``.
            frames: Frame numbers in ascending order; None decodes all frames.
        """
        if camera not in self.depth_cameras:
            raise UnknownNameError("depth camera", camera, self.depth_cameras, where=str(self.path))
        coding = DepthCoding.of(self.info["features"][f"{_IMAGES}{camera}"], where=str(self.path / layout.INFO))
        path, times = self._frame_times(index, camera, frames)
        return coding.decode(decode_codes(path, times, tolerance_s=0.25 / self.fps))

    def _frame_times(self, index: int, camera: str, frames: Sequence[int] | None) -> tuple[Path, list[float]]:
        """Return a camera's video file, and the times in it of an episode's frames in s."""
        path, start = self.video_location(index, camera)
        chosen = range(self.row(index)["length"]) if frames is None else frames
        return path, [start + frame / self.fps for frame in chosen]

    def video_location(self, index: int, camera: str) -> tuple[Path, float]:
        """Return the video file of an episode's camera, and the time in seconds at which the episode starts in it.

        Raises:
            UnknownNameError: If the dataset has no such camera.
            DatasetError: If the episode table does not give the file or the start time.
        """
        key, existing = f"{_IMAGES}{camera}", [*self.cameras, *self.depth_cameras]
        if camera not in existing:
            raise UnknownNameError("camera", camera, existing, where=str(self.path))
        row = self.row(index)
        values = {name: row.get(f"videos/{key}/{name}") for name in ("chunk_index", "file_index", "from_timestamp")}
        missing = [name for name, value in values.items() if value is None]
        if missing:
            raise DatasetError(
                f"{self.path}: the episode table has no videos/{key}/{missing[0]} of episode {index}. Export it again."
            )
        start = float(values.pop("from_timestamp") or 0.0)
        return layout.resolve_inside(self.path, self.info["video_path"], {**values, "video_key": key}), start

    def states(self, index: int) -> NDArray[np.float64]:
        """Return the unrounded simulator states of a simulated episode of T frames, shape ``(T+1, nstate)``.

        Only datasets that twinloop wrote have them.
        """
        return self._read_exact_array(layout.STATES_PATH, index, "states", "state_width")

    def commands(self, index: int) -> NDArray[np.float64]:
        """Return the unrounded commands in SI of a simulated episode, shape ``(T, nu)`` for T frames and nu actuators.

        Only datasets that twinloop wrote have them.
        """
        return self._read_exact_array(layout.STATES_PATH, index, "commands", "command_width")

    def provenance(self, index: int) -> Provenance:
        """Return the provenance of an episode that twinloop wrote.

        Raises:
            DatasetError: If another program wrote the dataset or appended this episode, or the file is damaged.
        """
        block, position = self._block_position(index)
        path = self._twinloop_path(layout.PROVENANCE_PATH, block)
        try:
            with open_regular(path) as file:
                value = parse_json(next(itertools.islice(file, position, None)), where=f"Line {position + 1} of {path}")
        except (StopIteration, InputError) as error:
            raise DatasetError(f"{path} has no readable line {position + 1} ({error}).") from error
        with layout.wrap_parse_errors(f"Line {position + 1} of {path}"):
            del value["episode_index"]
            return Provenance.from_json(value)

    @property
    def side_tables(self) -> list[str]:
        """Names of the side tables (further Parquet tables under ``twinloop/``, see `dataset.side_tables`)."""
        return side_table_names(self.path)

    def side_table(self, name: str) -> pad.Dataset:
        """Open a side table (additional Parquet table in ``twinloop/NAME/``) of all episodes without reading its rows.

        The method ``.to_table(filter=…, columns=…)`` of the result reads only the rows it needs.

        Raises:
            UnknownNameError: If the dataset has no table of that name.
            DatasetError: If a file is damaged, is outside the folder, or was written by a newer version.
        """
        return open_side_table(self.path, name)

    def side_rows(self, name: str, index: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read one episode's rows of a side table (additional Parquet table in ``twinloop/NAME/``).

        Args:
            name: Name of the table.
            index: Index of the episode.
            columns: Names of the columns to read; None reads all.

        Raises:
            UnknownNameError: If the dataset has no table of that name.
            DatasetError: If a column is missing or a file is damaged, is outside the folder, or was written by a newer
                version.
        """
        return read_side_rows(self.path, name, self._block_position(index)[0], index, columns)

    def annotations(self, index: int, camera: str) -> CameraAnnotations:
        """Open the annotations of one episode and camera, such as depth; each is decoded at first use.

        Raises:
            UnknownNameError: If the dataset has no annotations of that camera.
            DatasetError: If the dataset has no annotations.
        """
        return CameraAnnotations.read(self, index, camera)

    def is_appended(self, index: int) -> bool:
        """Return whether another program appended this episode to a twinloop dataset.

        Such an episode has only LeRobot's files, without states, provenance and log.
        """
        return self.written_by_twinloop and bool(self.numbers[index] < 0)

    def has_log(self, index: int) -> bool:
        """Return whether the episode was recorded on a robot and its unrounded log is stored."""
        if not self.written_by_twinloop or self.is_appended(index):
            return False
        return self._twinloop_path(layout.LOGS_PATH, self._block_position(index)[0]).is_file()

    def log_episode(self, index: int, *, units: UnitMap | None = None) -> Episode:
        """Return a recorded episode with the unrounded values and true times of its log.

        Args:
            index: Index of the episode.
            units: Unit map to use instead of the stored one.
        """
        row = self._read_exact_row(layout.LOGS_PATH, index)
        map_ = units or self.spec.units
        width = len(map_.joints)
        record = self.provenance(index)
        return Episode(
            index=row["number"],
            time=np.array(row["time"]),
            action=np.array(row["action"]).reshape(-1, width),
            state=np.array(row["state"]).reshape(-1, width),
            units=map_,
            task=record.task,
            source=record.source,
            origin=row["origin"],
            robot_type=str(self.info.get("robot_type") or ""),
        )

    def _read_exact_array(self, template: str, index: int, column: str, width: str) -> NDArray[np.float64]:
        row = self._read_exact_row(template, index)
        return np.array(row[column], dtype=np.float64).reshape(-1, row[width])

    def _read_exact_row(self, template: str, index: int) -> dict[str, Any]:
        block, position = self._block_position(index)
        path = self._twinloop_path(template, block)
        if not path.is_file():
            raise DatasetError(
                f"Episode {index} of {self.path} has no {path.relative_to(self.path)}: {_explain_absence(template)}"
            )
        row = read_rows(path, position, position + 1).to_pylist()[0]
        if row["episode_index"] != index:
            raise DatasetError(f"{path} holds episode {row['episode_index']} where episode {index} should be.")
        return row

    def _twinloop_path(self, template: str, block: int) -> Path:
        return layout.resolve_inside(self.path, template, layout.chunk_and_file(block))

    def _block_position(self, index: int) -> tuple[int, int]:
        """Return the number of an episode's block (files of one commit), and the episode's position in that block."""
        if not self.written_by_twinloop:
            raise DatasetError(f"{self.path} was not written by twinloop: it has LeRobot's files only.")
        row = self.row(index)
        if self.is_appended(index):
            raise DatasetError(
                f"{self.path}: episode {index} was appended by another program and has no provenance, states or log. "
                "Its frames can be read; leave it out of a replay."
            )
        block = row["data/chunk_index"] * layout.FILES_PER_CHUNK + row["data/file_index"]
        return block, int((self._file_ids[:index] == block).sum())

    @functools.cached_property
    def _file_ids(self) -> NDArray[np.int64]:
        chunk, file = self._episodes["data/chunk_index"].to_numpy(), self._episodes["data/file_index"].to_numpy()
        return (chunk * layout.FILES_PER_CHUNK + file).astype(np.int64)

    def _file_start(self, chunk: int, file: int) -> int:
        """Return the index in the whole dataset of the first frame in a data file."""
        same = self._file_ids == chunk * layout.FILES_PER_CHUNK + file
        return int(self._episodes["dataset_from_index"].to_numpy()[same].min())

    def _read_consistently(self) -> tuple[dict[str, Any], pa.Table]:
        """Read ``info.json`` and the episode table of the same commit; try again if a writer replaces them."""
        for _ in range(_ATTEMPTS):
            info = read_json(self.path / layout.INFO)
            if not isinstance(info, dict):
                raise DatasetError(
                    f"{self.path / layout.INFO} holds a {type(info).__name__}, not a JSON object. Export it again."
                )
            version = str(info.get("codebase_version"))
            if not version.startswith("v3."):
                raise DatasetError(
                    f"{self.path} has LeRobot's format {version}; only v3.0 can be opened. Import it as a log."
                )
            require_valid_info({"total_frames": 0, **info}, self.path)
            table = _episode_rows(self.path)
            info.setdefault("total_frames", int(table["length"].to_numpy().sum()))  # some programs leave it out
            if table.num_rows == info["total_episodes"]:
                require_frames_within(table, info["total_frames"], where=str(self.path))
                return info, table
        raise DatasetError(
            f"{self.path / layout.INFO} and meta/episodes disagree on the number of episodes. "
            "The dataset is incomplete: copy or export it again."
        )


def flat_names(names: Any) -> list[str]:
    """Return feature names as a flat list, from any form that LeRobot versions write: nested lists or dictionaries."""
    if isinstance(names, dict):
        names = list(names.values())
    if not isinstance(names, list):
        return []
    return [inner for item in names for inner in (flat_names(item) if isinstance(item, list | dict) else [str(item)])]


def _episode_rows(root: Path) -> pa.Table:
    paths = sorted((root / "meta" / "episodes").glob("chunk-*/file-*.parquet"))
    if not paths:
        return pa.table({name: pa.array([], pa.int64()) for name in _PLACE})
    tables = [_read_short_columns(path) for path in paths]
    table = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    require_whole_numbers(table, _PLACE, where=str(root))
    indices = table["episode_index"].to_numpy()
    order = np.argsort(indices, kind="stable")
    if not np.array_equal(indices[order], np.arange(len(order))):
        raise DatasetError(f"{root}: episode_index does not run from 0 to {len(order) - 1} without gaps.")
    return table if np.array_equal(order, np.arange(len(order))) else table.take(pa.array(order))


def _read_short_columns(path: Path) -> pa.Table:
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        require_columns(_PLACE, names, where=str(path))
        return file.read(columns=[name for name in names if not name.startswith("stats/") and name not in _TEXTS])


def _explain_absence(template: str) -> str:
    if template == layout.STATES_PATH:
        return "it is a recorded episode, and only simulated ones have states."
    return "it is a simulated episode, and only recorded ones have a log."


def _explain_missing(path: Path) -> str:
    """Return the reason why a path is not a dataset, and the path that the user should give instead."""
    if not path.exists():
        return "there is no such folder. Check the path"
    if not path.is_dir():
        return "it is a file. Give the folder that holds meta/, data/ and twinloop/"
    return f"{layout.INFO} is missing. Give the folder that `twinloop generate`, `render` or `import` wrote"
