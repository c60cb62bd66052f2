"""Find the clips of a workspace that are most similar to a given clip, by exact nearest-neighbour search.

A clip is a short section of an episode, described by the feature vector of an encoder. The whitened feature vectors of
all clips are written once as float32 files into a cache folder, with their episode ids. The folder is named by a hash
of the source files. Later searches map these files into memory. A search is one matrix-vector product, limited by
memory bandwidth. With 200,000 vectors of 128 numbers (100 MB) it takes some tens of milliseconds
(`benchmarks/speed/coverage.py`).
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
    """A similar clip, with its Euclidean distance from the given clip in whitened features.

    The unit of the distance is the standard deviation of a whitened component.
    """

    episode_id: str
    first_frame: int
    last_frame: int
    distance: float


@dataclass(frozen=True, kw_only=True)
class ClipIndex:
    """Search index over n clips of all episodes.

    Attributes:
        rows: whitened feature vectors ``(n, d)``.
        squares: squared norms of the rows ``(n,)``.
        names: episode ids in ascending order, as bytes.
        episode: index of each clip's episode in ``names`` ``(n,)``.
        first: first frame of each clip ``(n,)``.
        last: last frame of each clip ``(n,)``.
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
        """Create an index in memory.

        Args:
            rows: whitened feature vectors ``(n, d)`` of n clips.
            names: episode id of each clip.
            first: first frame of each clip ``(n,)``.
            last: last frame of each clip ``(n,)``.
        """
        rows = np.ascontiguousarray(rows, dtype=np.float32)
        known, episode = np.unique(np.array(names, dtype="S"), return_inverse=True)
        squares = np.einsum("nd,nd->n", rows, rows)
        return cls(rows=rows, squares=squares, names=known, episode=episode.astype(np.int32), first=first, last=last)

    def find_row(self, episode_id: str, first_frame: int) -> int:
        """Return the index of the clip of this episode that contains a frame.

        Args:
            episode_id: id of the episode.
            first_frame: a frame of the clip, for example its first.

        Raises:
            UnknownNameError: If the episode has no clips.
            InputError: If no clip of the episode contains the frame.
        """
        place = int(np.searchsorted(self.names, np.bytes_(episode_id.encode())))
        if place == len(self.names) or self.names[place] != episode_id.encode():
            examples = [name.decode() for name in self.names[:3]]
            raise UnknownNameError("episode", episode_id, examples, where="its embeddings")
        own = np.flatnonzero(self.episode == place)
        containing = own[(self.first[own] <= first_frame) & (first_frame <= self.last[own])]
        if not len(containing):
            raise InputError(
                f"Episode {episode_id} has clips from frame {self.first[own].min()} to {self.last[own].max()}, none "
                f"at frame {first_frame}."
            )
        return int(containing[0])

    def find_nearest(self, row: int, k: int) -> list[NearestClip]:
        """Return the ``k`` nearest clips of other episodes, the nearest first.

        Args:
            row: index of the given clip, from `find_row`.
            k: number of clips.
        """
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
    """Find the ``k`` clips of other episodes that are most similar to a clip, the nearest first.

    Args:
        workspace: workspace with embeddings (feature vectors of clips).
        episode_id: episode of the given clip.
        first_frame: a frame of the given clip.
        k: number of clips to return.
        encoder_hash: hash of the encoder whose embeddings are searched; by default the encoder with the most clips.

    Raises:
        UnknownNameError: If the episode has no embeddings.
        InputError: If the workspace has no embeddings, or no clip contains the frame.
    """
    if k < 1:
        raise InputError(f"The number of nearest clips is {k}; it must be at least 1.")
    index = open_clip_index(workspace, encoder_hash or choose_encoder(workspace)[0])
    return index.find_nearest(index.find_row(episode_id, first_frame), k)


def choose_encoder(workspace: Workspace, name: str | None = None) -> tuple[str, str]:
    """Return the hash and the name of the encoder that has the most embedded clips in a workspace.

    Args:
        workspace: workspace with embeddings.
        name: consider only encoders with this name.

    Raises:
        InputError: If the workspace has no such embeddings.
    """
    rows = workspace.query(
        "SELECT encoder_hash, any_value(encoder) AS encoder, count(*) AS clips FROM embeddings "
        "GROUP BY encoder_hash ORDER BY clips DESC, encoder_hash"
    ).to_pylist()
    matching = [row for row in rows if name is None or row["encoder"] == name]
    if not matching:
        missing = (
            "no embeddings" if not rows else f"none by {name}; it has {', '.join(sorted({r['encoder'] for r in rows}))}"
        )
        raise InputError(
            f"{workspace.root} has {missing}. Make embeddings with twinloop coverage --workspace {workspace.root}."
        )
    return str(matching[0]["encoder_hash"]), str(matching[0]["encoder"])


_OPEN: dict[tuple[Path, str], ClipIndex] = {}


def open_clip_index(workspace: Workspace, encoder_hash: str) -> ClipIndex:
    """Open the search index of one encoder's embeddings; build it if embeddings were added since it was written.

    Raises:
        InputError: If the workspace has fewer than two embeddings with this hash.
    """
    parts = [part.sha256 for part in workspace.parts.list_parts("embeddings")]
    key = sha256_json([_SCHEMA, encoder_hash, parts])[:32]
    cache_key = (workspace.root, key)
    if cache_key not in _OPEN:
        folder = workspace.root / "catalog" / _FOLDER / f"neighbours-{key}"
        if not folder.is_dir():
            write_index(folder, _build_index(workspace, encoder_hash), encoder_hash)
        for old in [known for known in _OPEN if known[0] == workspace.root]:
            del _OPEN[old]
        _OPEN[cache_key] = open_memory_maps(folder) if folder.is_dir() else _build_index(workspace, encoder_hash)
    return _OPEN[cache_key]


def _build_index(workspace: Workspace, encoder_hash: str) -> ClipIndex:
    table = workspace.query(
        "SELECT episode_id, first_frame, last_frame, vector FROM embeddings WHERE encoder_hash = ? "
        "ORDER BY episode_id, first_frame",
        [encoder_hash],
    )
    if table.num_rows < 2:
        raise InputError(
            f"{workspace.root} has {table.num_rows} embedded clips of the encoder {encoder_hash[:12]}; a search needs "
            f"at least 2. Make embeddings with twinloop coverage --workspace {workspace.root}."
        )
    raw = table["vector"].combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1).astype(np.float64)
    whitened = fit_whitening(raw, fitted="all clips of the workspace", share=_SHARE, most=_MOST)(raw)
    first, last = (table[name].to_numpy() for name in ("first_frame", "last_frame"))
    return ClipIndex.of(whitened.astype(np.float32), table["episode_id"].to_pylist(), first, last)


def write_index(folder: Path, index: ClipIndex, encoder_hash: str) -> None:
    """Write an index to a cache folder, completely or not at all; do nothing if the folder is not writable.

    The older index of the same encoder is deleted.
    """
    try:
        folder.parent.mkdir(exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".neighbours-", dir=folder.parent))
    except OSError:
        return
    try:
        for name in _ARRAYS:
            np.save(temporary / f"{name}.npy", getattr(index, name), allow_pickle=False)
        (temporary / "encoder").write_text(encoder_hash)
        for old in folder.parent.glob("neighbours-*"):
            if (old / "encoder").is_file() and (old / "encoder").read_text() == encoder_hash:
                shutil.rmtree(old, ignore_errors=True)
        temporary.rename(folder)
    except OSError:  # a full disk, or another process was faster: the index in memory is enough
        shutil.rmtree(temporary, ignore_errors=True)


def open_memory_maps(folder: Path) -> ClipIndex:
    """Open the index in a folder as memory-mapped arrays."""
    parts = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _ARRAYS}
    return ClipIndex(**parts)
