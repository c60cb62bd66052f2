"""Map real and simulated clips in two dimensions, with the holes of the coverage that was measured last."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.curate.neighbours import ClipIndex, open_clip_index
from twinloop.studio.data import StudioData
from twinloop.studio.episode_list import LABELLED, OUTCOME, describe_episodes

_ENCODERS = (
    "SELECT encoder_hash, any_value(encoder) AS encoder, count(*) AS clips FROM embeddings GROUP BY 1 ORDER BY 3 DESC"
)
_NEAREST = 6
KINDS = ("simulated", "simulated, failed", "real", "real, failed")


def describe_map(data: StudioData, encoder_hash: str) -> dict[str, Any]:
    """Return the encoders with clips, how many clips of each kind the map has, and the holes that were found last.

    Args:
        data: the workspace.
        encoder_hash: the encoder; empty for the one with the most clips.

    Raises:
        UnknownNameError: If no clip has an embedding by this encoder.
    """
    encoders = data.rows(_ENCODERS)
    measured = next(
        (
            {"run_id": row["run_id"], "started": row["started"], **result}
            for row, result in data.results("coverage")
            if result.get("holes") is not None
        ),
        None,
    )
    if not encoders:
        return {"encoders": [], "measured": None}
    chosen = _choose(encoders, encoder_hash)
    counts = np.bincount(_open_map(data, chosen)[1], minlength=len(KINDS))
    shown = ("run_id", "started", "metrics", "holes", "findings", "real", "sim", "notes")
    return {
        "encoders": encoders,
        "encoder_hash": chosen,
        "kinds": [{"kind": kind, "clips": int(n)} for kind, n in zip(KINDS, counts, strict=True)],
        "measured": None if measured is None else {name: measured.get(name) for name in shown},
        "hole_rows": [] if measured is None else _find_rows(_open_index(data, chosen), measured["holes"]),
    }


def read_points(data: StudioData, encoder_hash: str) -> bytes:
    """Return the map as float32 ``(nclip, 3)``: two principal components of the features, and the number of the kind.

    The coordinates are scaled so that 99 % of them are between -1 and 1; the others are moved to the edge.
    """
    points, kinds = _open_map(data, encoder_hash)
    return np.column_stack([points, kinds.astype(np.float32)]).astype("<f4").tobytes()


def describe_clip(data: StudioData, encoder_hash: str, row: int) -> dict[str, Any]:
    """Return the episode and the frames of a clip of the map, and the nearest clips of other episodes.

    Raises:
        UnknownNameError: If the map has no such clip.
    """
    index = _open_index(data, encoder_hash)
    if not 0 <= row < len(index):
        raise UnknownNameError("clip", str(row), ["0", str(len(index) - 1)], where="the map")
    own = (index.names[index.episode[row]].decode(), int(index.first[row]), int(index.last[row]), 0.0)
    near = [
        (one.episode_id, one.first_frame, one.last_frame, one.distance) for one in index.find_nearest(row, _NEAREST)
    ]
    rows = {
        one["episode_id"]: one for one in describe_episodes(data, list(dict.fromkeys(one[0] for one in [own, *near])))
    }
    shown = [
        {"first_frame": first, "last_frame": last, "distance": float(distance), **rows[name]}
        for name, first, last, distance in [own, *near]
        if name in rows
    ]
    return {"clips": shown}


def _choose(encoders: list[dict[str, Any]], encoder_hash: str) -> str:
    known = [one["encoder_hash"] for one in encoders]
    if encoder_hash and encoder_hash not in known:
        raise UnknownNameError("encoder", encoder_hash, known, where="the embeddings")
    return encoder_hash or known[0]


def _open_index(data: StudioData, encoder_hash: str) -> ClipIndex:
    with data.reading() as workspace:
        return open_clip_index(workspace, encoder_hash)


def _open_map(data: StudioData, encoder_hash: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    return _build_map(data, encoder_hash, data.moment)


@functools.lru_cache(maxsize=2)
def _build_map(
    data: StudioData, encoder_hash: str, _moment: tuple[int, int]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the points ``(nclip, 2)`` and the kinds ``(nclip,)`` of all clips, until the next commit."""
    index = _open_index(data, encoder_hash)
    # Whitened features are principal components divided by their standard deviations, the largest first.
    points = np.asarray(index.rows[:, :2], dtype=np.float32)
    if points.shape[1] < 2:
        points = np.column_stack([points[:, 0], np.zeros(len(points), dtype=np.float32)])
    low, high = np.quantile(points, [0.005, 0.995], axis=0)
    scaled = np.clip(2 * (points - low) / np.maximum(high - low, 1e-12) - 1, -1.05, 1.05)
    kind = {row["episode_id"]: int(row["kind"]) for row in data.table(_KINDS).to_pylist()}
    of_episode = np.array([kind.get(name.decode(), 0) for name in index.names], dtype=np.int64)
    return scaled.astype(np.float32), of_episode[index.episode]


_KINDS = (
    f"SELECT e.episode_id, if(e.source = 'sim', 0, 2) + if({OUTCOME} = 'no', 1, 0) AS kind "  # noqa: S608 - ours
    f"FROM episodes e LEFT JOIN {LABELLED} USING (episode_id)"
)


def _find_rows(index: ClipIndex, holes: list[dict[str, Any]]) -> list[list[int]]:
    """Return the rows of the clips of each hole on the map, without those of removed episodes."""
    found = list[list[int]]()
    for hole in holes:
        rows = list[int]()
        for place in hole.get("places", []):
            try:
                rows.append(index.find_row(str(place["episode"]), int(place["first_frame"])))
            except InputError:
                continue
        found.append(rows)
    return found
