"""Find the clips of a workspace nearest to a clip: exact search over whitened rows in memory-mapped files.

The rows of one encoder are written once as float32, with their episode ids, into a cache folder named by a hash of
their source files; later searches map these files. A search is one matrix-vector product, limited by memory bandwidth:
200,000 rows of 128 numbers (100 MB) take some tens of milliseconds (`benchmarks/speed/coverage.py`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.catalog import Workspace
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import sha256_json
from twinloop.curate.projection import fit_whitening

_FOLDER = "cache"  # in the catalog's folder; its content can be computed again
_SCHEMA = 1
_ARRAYS = ("rows", "squares", "names", "episode", "first", "last")
_MOST = 128  # whitened components: distances are exact in them
_SHARE = 0.99


@dataclass(frozen=True, kw_only=True)
class NearestClip:
    """A clip and its distance, in standard deviations of whitened components."""

    episode_id: str
    first_frame: int
    last_frame: int
    distance: float


@dataclass(frozen=True, kw_only=True)
class ClipIndex:
    """Search index: rows ``(n, d)`` float32, their squared lengths, and their clips.

    ``names`` are the sorted episode ids, ``episode`` ``(n,)`` is the index into ``names`` of each row.
    """

    rows: NDArray[np.float32]
    squares: NDArray[np.float32]
    names: NDArray[np.bytes_]
    episode: NDArray[np.int32]
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(
        cls, rows: NDArray[np.float32], names: Sequence[str], first: NDArray[np.int64], last: NDArray[np.int64]
    ) -> ClipIndex:
        """Create an index in memory from rows ``(n, d)`` with their episode ids and frames."""
        rows = np.ascontiguousarray(rows, dtype=np.float32)
        known, episode = np.unique(np.array(names, dtype="S"), return_inverse=True)
        squares = np.einsum("nd,nd->n", rows, rows)
        return cls(rows=rows, squares=squares, names=known, episode=episode.astype(np.int32), first=first, last=last)

    def find_row(self, episode_id: str, first_frame: int) -> int:
        """Return the row of the clip that contains a frame.

        Raises:
            UnknownNameError: the episode has no clips.
            InputError: the episode has no clip at this frame.
        """
        place = int(np.searchsorted(self.names, np.bytes_(episode_id.encode())))
        if place == len(self.names) or self.names[place] != episode_id.encode():
            shown = [name.decode() for name in self.names[:3]]
            raise UnknownNameError("episode", episode_id, shown, where="its embeddings")
        mine = np.flatnonzero(self.episode == place)
        holding = mine[(self.first[mine] <= first_frame) & (first_frame <= self.last[mine])]
        if not len(holding):
            raise InputError(
                f"Episode {episode_id} has clips from frame {self.first[mine].min()} to {self.last[mine].max()}, none "
                f"at frame {first_frame}."
            )
        return int(holding[0])

    def find_nearest(self, row: int, k: int) -> list[NearestClip]:
        """Return the ``k`` nearest clips of other episodes, the nearest first."""
        query = np.array(self.rows[row])
        squares = self.squares - 2.0 * (self.rows @ query)
        squares[self.episode == self.episode[row]] = np.inf
        few = min(k, len(squares))
        chosen = np.argpartition(squares, few - 1)[:few]
        # Differences of large numbers lose digits, so the distances to return are computed again in float64.
        distance = np.linalg.norm(self.rows[chosen].astype(np.float64) - query, axis=1)
        order = np.argsort(distance, kind="stable")
        return [
            NearestClip(
                episode_id=self.names[self.episode[i]].decode(),
                first_frame=int(self.first[i]),
                last_frame=int(self.last[i]),
                distance=float(d),
            )
            for i, d in zip(chosen[order], distance[order], strict=True)
            if np.isfinite(squares[i])
        ]


def find_nearest_clips(
    workspace: Workspace, episode_id: str, first_frame: int = 0, k: int = 5, *, encoder_hash: str | None = None
) -> list[NearestClip]:
    """Return the ``k`` clips of other episodes nearest to a clip.

    Args:
        workspace: workspace with embeddings.
        episode_id: episode of the clip.
        first_frame: a frame of the clip.
        k: number of clips.
        encoder_hash: the embedding to use; by default the one with the most clips.

    Raises:
        UnknownNameError: the embedding has no such episode.
        InputError: there are no embeddings; the message explains how to make them.
    """
    if k < 1:
        raise InputError(f"{k} neighbours: give at least one.")
    index = open_clip_index(workspace, encoder_hash or choose_encoder(workspace)[0])
    return index.find_nearest(index.find_row(episode_id, first_frame), k)


def choose_encoder(workspace: Workspace, name: str | None = None) -> tuple[str, str]:
    """Return hash and name of the embedding with the most clips, optionally among those with a given name.

    Raises:
        InputError: there is none; the message explains how to make one.
    """
    rows = workspace.query(
        "SELECT encoder_hash, any_value(encoder) AS encoder, count(*) AS clips FROM embeddings "
        "GROUP BY encoder_hash ORDER BY clips DESC, encoder_hash"
    ).to_pylist()
    found = [row for row in rows if name is None or row["encoder"] == name]
    if not found:
        what = (
            "no embeddings" if not rows else f"none by {name}; it has {', '.join(sorted({r['encoder'] for r in rows}))}"
        )
        raise InputError(
            f"{workspace.root} has {what}. Make embeddings with twinloop coverage --workspace {workspace.root}."
        )
    return str(found[0]["encoder_hash"]), str(found[0]["encoder"])


_OPEN: dict[tuple[Path, str], ClipIndex] = {}


def open_clip_index(workspace: Workspace, encoder_hash: str) -> ClipIndex:
    """Return the index of one embedding, from the cache if nothing was added since it was written.

    Raises:
        InputError: there are no rows with this hash.
    """
    parts = [part.sha256 for part in workspace.parts.list_parts("embeddings")]
    key = sha256_json([_SCHEMA, encoder_hash, parts])[:32]
    there = (workspace.root, key)
    if there not in _OPEN:
        folder = workspace.root / "catalog" / _FOLDER / f"neighbours-{key}"
        if not folder.is_dir():
            write_index(folder, _build_index(workspace, encoder_hash), encoder_hash)
        for old in [known for known in _OPEN if known[0] == workspace.root]:
            del _OPEN[old]
        _OPEN[there] = open_memory_maps(folder) if folder.is_dir() else _build_index(workspace, encoder_hash)
    return _OPEN[there]


def _build_index(workspace: Workspace, encoder_hash: str) -> ClipIndex:
    table = workspace.query(
        "SELECT episode_id, first_frame, last_frame, vector FROM embeddings WHERE encoder_hash = ? "
        "ORDER BY episode_id, first_frame",
        [encoder_hash],
    )
    if table.num_rows < 2:
        raise InputError(f"{workspace.root} has {table.num_rows} clips under the embedding {encoder_hash[:12]}.")
    raw = table["vector"].combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1).astype(np.float64)
    whitened = fit_whitening(raw, fitted="all clips of the workspace", share=_SHARE, most=_MOST)(raw)
    first, last = (table[name].to_numpy() for name in ("first_frame", "last_frame"))
    return ClipIndex.of(whitened.astype(np.float32), table["episode_id"].to_pylist(), first, last)


def write_index(folder: Path, index: ClipIndex, encoder_hash: str) -> None:
    """Write the index to the cache folder, completely or not at all; do nothing if the folder is not writable."""
    try:
        folder.parent.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".neighbours-", dir=folder.parent))
    except OSError:
        return
    try:
        for name in _ARRAYS:
            np.save(made / f"{name}.npy", getattr(index, name), allow_pickle=False)
        (made / "encoder").write_text(encoder_hash)
        for old in folder.parent.glob("neighbours-*"):
            if (old / "encoder").is_file() and (old / "encoder").read_text() == encoder_hash:
                shutil.rmtree(old, ignore_errors=True)
        made.rename(folder)
    except OSError:  # a full disk, or another process was faster: the index in memory is enough
        shutil.rmtree(made, ignore_errors=True)


def open_memory_maps(folder: Path) -> ClipIndex:
    """Open the index in a folder as memory maps."""
    parts = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _ARRAYS}
    return ClipIndex(**parts)
