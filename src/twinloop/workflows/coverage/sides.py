"""Load the real and the simulated episodes of a coverage measurement, and encode their clips in the same way.

Episodes come from logs, dataset folders or a workspace. A clip is a part of an episode of fixed length.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.catalog import Workspace
from twinloop.catalog.episode_lookup import MAX_SELECTED_EPISODES
from twinloop.core.documents import read_json
from twinloop.core.errors import DatasetError, InputError, LogError
from twinloop.core.progress import track
from twinloop.core.records import Episode
from twinloop.curate.coverage import ClipRows
from twinloop.curate.recording import RecordedEpisode, open_recordings
from twinloop.dataset.lerobot import layout
from twinloop.dataset.logs.resampling import resample
from twinloop.encoders.clips import ClipBatch, ClipEncoder, space_hash
from twinloop.encoders.trajectory import cut_clips
from twinloop.gap.trajectories.match import has_even_rate, match_clips, select_channels, select_units
from twinloop.twin import Twin, load_twin
from twinloop.workflows.data.logs import open_log
from twinloop.workflows.gap.data import apply_joint_ranges
from twinloop.workflows.run.results import recorded_words

MOST_EPISODES = 20_000  # per side; of more, a random sample is used, because every pair of clips is compared


class UnreadableEpisodesError(DatasetError):
    """Error of episodes that cannot be read.

    Attributes:
        reasons: reason by episode id.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(" ".join(dict.fromkeys(reasons.values())))
        self.reasons = dict(reasons)


@contextmanager
def _name_unreadable(episode_id: str) -> Generator[None]:
    """Context manager that converts an error of an episode that cannot be read to `UnreadableEpisodesError`."""
    try:
        yield
    except (DatasetError, LogError) as error:
        raise UnreadableEpisodesError({episode_id: str(error)}) from error


@dataclass(frozen=True, kw_only=True)
class SideEpisode:
    """One real or simulated episode of a coverage measurement.

    Attributes:
        episode_id: hash of its content, or a text that locates it in its log.
        title: readable name.
        folder: folder of its dataset; None for a log of another format.
        success: outcome; None if unknown.
        params: known parameters by name, in SI units.
        load: function that reads its motion.
        recording: reader of its images and metadata; None for a log of another format.
    """

    episode_id: str
    title: str
    folder: Path | None
    success: bool | None
    params: Mapping[str, float]
    load: Callable[[], Episode]
    recording: RecordedEpisode | None = None


@dataclass(frozen=True, kw_only=True)
class EpisodeSide:
    """The real or the simulated episodes of a coverage measurement.

    Attributes:
        label: description of their origin.
        members: the episodes.
        notes: remarks on episodes that were left out.
    """

    label: str
    members: tuple[SideEpisode, ...]
    notes: tuple[str, ...] = ()

    @property
    def folders(self) -> list[Path]:
        """The dataset folders of the episodes, each once, in order."""
        return list(dict.fromkeys(member.folder for member in self.members if member.folder is not None))

    @property
    def examples(self) -> list[SideEpisode]:
        """The first episode of each dataset folder, and the first of all episodes that have no folder."""
        return list({member.folder: member for member in reversed(self.members)}.values())

    @property
    def success(self) -> np.ndarray:
        """Outcomes of the episodes, shape ``(nepisode,)``: 1 for success, 0 for failure, NaN if unknown."""
        return np.array([np.nan if m.success is None else float(m.success) for m in self.members])

    def exclude(self, reasons: Mapping[str, str]) -> EpisodeSide:
        """Return the side without some episodes, with a note that names each of them and the reason.

        Args:
            reasons: why an episode cannot be read, by its id; ids of other sides have no effect.

        Raises:
            InputError: If no episode remains.
        """
        members = tuple(member for member in self.members if member.episode_id not in reasons)
        if not members:
            why = next(reasons[member.episode_id] for member in self.members)
            raise InputError(f"No episode of {self.label} can be read. {why}")
        notes = [
            f"{member.title} was left out, because it cannot be read: {reasons[member.episode_id]}"
            for member in self.members
            if member.episode_id in reasons
        ]
        return replace(self, members=members, notes=(*self.notes, *notes))


def folder_side(references: Sequence[str], *, what: str, seed: int = 0) -> EpisodeSide:
    """Return the episodes of logs, dataset folders or public sets.

    Args:
        references: paths or names, as `open_log` accepts them.
        what: ``real`` or ``sim``, for messages.
        seed: seed of the random selection if there are too many episodes.

    Raises:
        InputError: If no reference is given, or there are no episodes.
        TwinloopError: If a log cannot be read.
    """
    if not references:
        raise InputError(f"No {what} episodes were named. Give --{what} LOG, or --workspace with --{what}-where.")
    members = [member for reference in references for member in _load_members(reference)]
    return _build_side(" and ".join(references), members, what, seed)


def workspace_side(workspace: Workspace, where: str, *, what: str, seed: int = 0) -> EpisodeSide:
    """Return the episodes of a workspace that meet a condition.

    Args:
        workspace: the workspace.
        where: an SQL condition on the view ``episodes``, such as ``source = 'real'``.
        what: ``real`` or ``sim``, for messages.
        seed: seed of the random selection if there are too many episodes.

    Raises:
        InputError: If the condition is wrong, or no episode meets it.
    """
    sql = f"SELECT episode_id, success FROM episodes WHERE {where} ORDER BY episode_id"  # noqa: S608 - user's condition, read only
    rows = workspace.query(sql, max_rows=MAX_SELECTED_EPISODES).to_pylist()
    names = [str(row["episode_id"]) for row in rows]
    success = {str(row["episode_id"]): row["success"] for row in rows if row["success"] is not None}
    members = _locate_members(workspace, names, success, _workspace_params(workspace, names))
    return _build_side(f"{workspace.root.name}, {where}", members, what, seed)


def _build_side(label: str, members: list[SideEpisode], what: str, seed: int) -> EpisodeSide:
    if not members:
        raise InputError(f"{label} has no episode for --{what}. In a workspace, `twinloop query` lists the episodes.")
    notes: tuple[str, ...] = ()
    if len(members) > MOST_EPISODES:
        chosen = np.random.default_rng(seed).permutation(len(members))[:MOST_EPISODES]
        notes = (f"Of {len(members)} {what} episodes, {MOST_EPISODES} were selected at random.",)
        members = [members[i] for i in np.sort(chosen)]
    return EpisodeSide(label=label, members=tuple(members), notes=notes)


def _load_members(reference: str) -> list[SideEpisode]:
    path = Path(reference)
    info = path / layout.INFO
    if info.is_file() and str(read_json(info).get("codebase_version", "")).startswith("v3"):
        return [_make_member(recording, path) for recording in open_recordings(path)]
    log = open_log(reference)
    return [
        SideEpisode(
            episode_id=f"{log.name}#{episode.index}",
            title=f"episode {episode.index} of {log.name}",
            folder=None,
            success=None,
            params=episode.conditions,
            load=lambda episode=episode: episode,
        )
        for episode in log.episodes
    ]


def _make_member(recording: RecordedEpisode, folder: Path, params: Mapping[str, float] | None = None) -> SideEpisode:
    def load() -> Episode:
        with _name_unreadable(recording.episode_id):
            episode = recording.episode
        recording.free_arrays()
        return episode

    return SideEpisode(
        episode_id=recording.episode_id,
        title=recording.where,
        folder=folder,
        success=recording.success,
        params=recording.params if params is None else params,
        load=load,
        recording=recording,
    )


def _locate_members(
    workspace: Workspace,
    names: Sequence[str],
    success: Mapping[str, bool],
    params: Mapping[str, Mapping[str, float]],
) -> list[SideEpisode]:
    selected = set(names)
    locations: dict[str, tuple[str, int]] = {}
    for row in workspace.query("SELECT episode_id, batch, episode_index FROM places").to_pylist():
        if row["episode_id"] in selected:
            locations.setdefault(row["episode_id"], (row["batch"], row["episode_index"]))
    readers = {batch: workspace.reader(batch) for batch in dict.fromkeys(batch for batch, _ in locations.values())}
    members = []
    for name in names:
        batch, index = locations[name]
        made = open_recordings(readers[batch], [index], batch=batch, episode_ids=[name], successes=success)
        members.append(_make_member(made[0], readers[batch].path, params[name]))
    return members


def _workspace_params(workspace: Workspace, names: Sequence[str]) -> dict[str, dict[str, float]]:
    rows = workspace.query("SELECT episode_id, name, value FROM params")
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    columns = (rows[key].to_pylist() for key in ("episode_id", "name", "value"))
    for episode_id, name, value in zip(*columns, strict=True):
        if episode_id in found:
            found[episode_id][name] = value
    return found


def find_substitute_twin(
    named: str | None, workspace: Workspace | None, examples: Sequence[SideEpisode]
) -> tuple[Twin | None, list[str]]:
    """Return the twin whose joint ranges are used for logs without calibration, and notes for the user.

    The twin is None if every log is calibrated or no suitable twin is known.

    Args:
        named: name or file of the twin from the user; None to use the twin of the workspace, if it has the joints of
            the logs.
        workspace: the workspace, if any.
        examples: one episode of every folder.

    Raises:
        TwinloopError: If an episode cannot be read, or the twin cannot be loaded.
    """
    bare = [episode for episode in (member.load() for member in examples) if not episode.units.known]
    if not bare:
        return None, []
    if named is not None:
        twin = load_twin(named)
        return twin, [f"Logs without calibration use the joint ranges of {twin.name}."]
    usual = None if workspace is None else workspace.config.get("twin")
    if not usual:
        return None, []
    twin = load_twin(str(usual))
    lacking = sorted({name for episode in bare for name in episode.joints} - set(twin.robot.joints))
    if lacking:
        note = (
            f"A log has no calibration, and {twin.name}, the workspace's twin, cannot replace it: it has no joint "
            f"{', '.join(lacking)}. Name a twin that has these joints: --ranges TWIN."
        )
        return None, [note]
    note = f"Logs without calibration use the joint ranges of {twin.name}, the workspace's twin (or give --ranges)."
    return twin, [note]


@dataclass(frozen=True, kw_only=True)
class ClipSettings:
    """How clips are cut from episodes, the same for real and simulated episodes.

    Attributes:
        clip_s: length of a clip in s.
        rate_hz: frame rate of the clips.
        channels: joints that both sides have.
        units: unit of each channel.
        command: kind of the commands, such as positions or velocities.
        si: True if positions are in rad and m; False if they are in the logs' own units.
        camera: camera whose images are encoded; None for the first of each episode.
        ranges: twin whose joint ranges replace a missing calibration; None for no replacement.
    """

    clip_s: float
    rate_hz: float
    channels: tuple[str, ...]
    units: tuple[str, ...]
    command: str
    si: bool
    camera: str | None = None
    ranges: Twin | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the settings that change the feature vectors, to compute the hash of stored vectors."""
        plain = {key: value for key, value in vars(self).items() if key not in ("ranges", "si")}
        return plain | {"ranges": "" if self.ranges is None else self.ranges.hash}


def match_clip_settings(
    real: EpisodeSide, sim: EpisodeSide, *, clip_s: float, ranges: Twin | None, camera: str | None
) -> tuple[ClipSettings, tuple[str, ...]]:
    """Return settings with which real and simulated clips are comparable, and notes on conversions of units or rate.

    Only one episode of every folder is read.

    Args:
        real: the real episodes.
        sim: the simulated episodes.
        clip_s: length of a clip in s.
        ranges: twin whose joint ranges replace a missing calibration.
        camera: camera whose images are encoded; None for the first of each episode.

    Raises:
        LogError, UnitsError: If the sides cannot be compared; the message states why.
    """
    shown = [[_apply_ranges(member.load(), ranges) for member in side.examples] for side in (real, sim)]
    matched = match_clips(shown[0], shown[1], clip_s=clip_s)
    clips = matched.real
    settings = ClipSettings(
        clip_s=clip_s,
        rate_hz=clips.rate_hz,
        channels=clips.channels,
        units=clips.units,
        command=clips.command,
        si=all(unit != "u" for unit in clips.units),
        camera=camera,
        ranges=ranges,
    )
    return settings, matched.notes


def cut_episode_clips(member: SideEpisode, settings: ClipSettings) -> ClipBatch | None:
    """Return the clips of one episode; None if it is shorter than one clip.

    Raises:
        LogError, UnitsError: If the episode lacks a channel, or cannot be converted to the units of the settings.
    """
    episode = _apply_ranges(member.load(), settings.ranges)
    missing = [name for name in settings.channels if name not in episode.joints]
    if missing:
        raise LogError(
            f"{member.title} lacks {', '.join(missing)}, which the other episodes have. Leave this episode out."
        )
    pieces = [episode] if has_even_rate(episode, settings.rate_hz) else resample(episode, settings.rate_hz)
    nframe = round(settings.clip_s * settings.rate_hz)
    chosen = [select_channels(piece, settings.channels) for piece in pieces if len(piece) >= nframe]
    if not chosen:
        return None
    maps = [select_units(piece.units, settings.channels) if settings.si else None for piece in chosen]
    motion = cut_clips(chosen, maps, rate_hz=settings.rate_hz, clip_s=settings.clip_s, names=settings.channels)
    begins = [
        piece.time[k : k + nframe : nframe - 1] for piece in chosen for k in range(0, len(piece) - nframe + 1, nframe)
    ]
    frames = np.clip(np.searchsorted(episode.time, np.array(begins) - 1e-9), 0, len(episode) - 1)
    return ClipBatch(
        motion=motion, first=frames[:, 0], last=frames[:, 1], images=_make_image_reader(member, settings.camera)
    )


def _make_image_reader(member: SideEpisode, camera: str | None) -> Any:
    recording = member.recording
    if recording is None or not recording.cameras:
        return None
    name = camera or recording.cameras[0]

    def read(frames: Sequence[int]) -> NDArray[np.uint8]:
        with _name_unreadable(member.episode_id):
            return recording.read_images(name, frames)

    return read


def encode_sides(
    real: EpisodeSide, sim: EpisodeSide, encoder: ClipEncoder, settings: ClipSettings, workspace: Workspace | None
) -> tuple[ClipRows, ClipRows, dict[str, Any]]:
    """Return the feature vectors of the clips of both sides before whitening.

    If a workspace is given, vectors that it stores are reused, and new ones are stored.

    Returns:
        Vectors of the real clips, vectors of the simulated clips, and a dictionary with the hash of encoder and
        settings and the numbers of episodes encoded now (``encoded``) and read from the workspace (``known``).

    Raises:
        InputError: If no episode of a side is as long as a clip.
        UnreadableEpisodesError: If episodes cannot be read; it names all of them.
        TwinloopError: If an episode cannot be encoded.
    """
    name = space_hash(encoder, settings.to_json())
    members = {member.episode_id: member for side in (real, sim) for member in side.members}
    known = {} if workspace is None else _load_stored_vectors(workspace, name, members)
    made, unreadable = dict[str, Encoded](), dict[str, str]()
    for key in track([key for key in members if key not in known], label="encoding episodes"):
        try:
            made[key] = _encode_episode(members[key], encoder, settings)
        except UnreadableEpisodesError as error:
            unreadable |= error.reasons
    if unreadable:
        raise UnreadableEpisodesError(unreadable)
    if workspace is not None and any(len(rows) for _, _, rows in made.values()):
        _store_vectors(workspace, encoder.name, name, made)
    rows = known | made
    sides = [_collect_clip_rows(side, rows, settings.clip_s) for side in (real, sim)]
    return sides[0], sides[1], {"hash": name, "encoded": len(made), "known": len(known)}


Encoded = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]


def _encode_episode(member: SideEpisode, encoder: ClipEncoder, settings: ClipSettings) -> Encoded:
    clips = cut_episode_clips(member, settings)
    if clips is None:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty((0, 0), dtype=np.float32)
    return clips.first, clips.last, encoder.encode(clips).astype(np.float32)


def _collect_clip_rows(side: EpisodeSide, encoded: Mapping[str, Encoded], clip_s: float) -> ClipRows:
    parts = [encoded[member.episode_id] for member in side.members]
    counts = [len(rows) for _, _, rows in parts]
    if not sum(counts):
        raise InputError(f"No episode of {side.label} is {clip_s:g} s long. Choose shorter clips with --clip.")
    return ClipRows(
        rows=np.concatenate([rows for _, _, rows in parts if len(rows)]).astype(np.float64),
        episode=np.repeat(np.arange(len(parts)), counts),
        first=np.concatenate([first for first, _, _ in parts]),
        success=side.success,
    )


def _load_stored_vectors(
    workspace: Workspace, encoder_hash: str, members: Mapping[str, SideEpisode]
) -> dict[str, Encoded]:
    table = workspace.query(
        "SELECT episode_id, first_frame, last_frame, vector FROM embeddings WHERE encoder_hash = ? "
        "ORDER BY episode_id, first_frame",
        [encoder_hash],
    )
    if not table.num_rows:
        return {}
    names = np.array(table["episode_id"].to_pylist())
    first, last = (table[key].to_numpy() for key in ("first_frame", "last_frame"))
    vectors = table["vector"].combine_chunks()
    rows = vectors.flatten().to_numpy().reshape(len(names), -1)
    starts = np.flatnonzero(np.append(True, names[1:] != names[:-1]))
    found = {}
    for begin, end in zip(starts, np.append(starts[1:], len(names)), strict=True):
        if names[begin] in members:
            found[str(names[begin])] = (first[begin:end], last[begin:end], rows[begin:end])
    return found


def _store_vectors(workspace: Workspace, name: str, encoder_hash: str, made: Mapping[str, Encoded]) -> None:
    started = datetime.now(UTC)
    kept = [(key, *part) for key, part in made.items() if len(part[2])]
    counts = [len(rows) for *_, rows in kept]
    vectors = [row for *_, rows in kept for row in rows]
    table = pa.table(
        {
            "episode_id": np.repeat([key for key, *_ in kept], counts).tolist(),
            "encoder": [name] * sum(counts),
            "encoder_hash": [encoder_hash] * sum(counts),
            "first_frame": np.concatenate([first for _, first, _, _ in kept]),
            "last_frame": np.concatenate([last for _, _, last, _ in kept]),
            "vector": pa.array(vectors, type=pa.list_(pa.float32())),
        }
    )
    result = {"encoder": name, "encoder_hash": encoder_hash, "episodes": len(kept), "clips": sum(counts)}
    run_id = workspace.record_run("embed", None, result, started, datetime.now(UTC), recorded_words())
    workspace.append("embeddings", table, run_id=run_id)


def _apply_ranges(episode: Episode, ranges: Twin | None) -> Episode:
    return episode if ranges is None else apply_joint_ranges(episode, ranges)


def make_episode_rows(points: NDArray[np.float64], success: Sequence[float] | NDArray[np.float64]) -> ClipRows:
    """Return episodes as one feature vector each, so that points of the parameter space are compared like clips.

    Args:
        points: normalized parameter values ``(nepisode, d)`` of d parameters.
        success: outcomes ``(nepisode,)``: 1 for success, 0 for failure, NaN if unknown.
    """
    count = len(points)
    return ClipRows(
        rows=points,
        episode=np.arange(count),
        first=np.zeros(count, dtype=np.int64),
        success=np.asarray(success, dtype=np.float64),
    )
