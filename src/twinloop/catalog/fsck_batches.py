"""Whether a dataset folder still is what the catalog was told of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from twinloop.catalog.batch_commit import key_of
from twinloop.catalog.fingerprint import Fingerprint
from twinloop.catalog.parts import Parts
from twinloop.catalog.seals import Seal, broken, require_footer, sealed_files
from twinloop.core.errors import DatasetError, TwinloopError
from twinloop.dataset import layout
from twinloop.dataset.content_ids import content_ids
from twinloop.dataset.parquet import read_table
from twinloop.dataset.reader import DatasetReader

Repair = Literal["find", "add", "copy"]

_ID = "provenance/episode_id"
_PLACE = ["episode_index", "length", "tasks", "data/chunk_index", "data/file_index"]


def check_batch(parts: Parts, row: Mapping[str, Any], *, deep: bool) -> Iterator[tuple[str, Repair]]:
    """What is wrong with a batch's folder, and what kind of repair that calls for.

    Args:
        parts: of the catalog.
        row: of the table ``batches``.
        deep: read every file whole, name episodes without provenance anew, and decode videos at both ends of each
            episode.
    """
    folder = parts.folder.parent / row["path"]
    if not (folder / layout.INFO).is_file():
        yield f"{folder} is gone, or is no dataset any more.", "find"
        return
    change = Fingerprint.of(folder).since(Fingerprint.from_text(row["files"]))
    damaged = list(_files(parts, row["batch"], folder, deep=deep))
    if damaged:
        yield from damaged
        return
    if change == "changed":
        yield f"{folder} was written anew since it was added.", "add"
        return
    try:
        yield from _episodes(parts, row, folder, deep=deep)
    except TwinloopError as error:
        yield f"{folder}: {error}", "copy"


def _files(parts: Parts, batch: str, folder: Path, *, deep: bool) -> Iterator[tuple[str, Repair]]:
    """Files that are not what they were; those of a folder written anew have other names or sizes altogether."""
    rows = parts.state.rows("SELECT path, bytes, sha256, whole FROM seals WHERE batch = ? ORDER BY path", (batch,))
    seals = [Seal(path=r["path"], bytes=r["bytes"], sha256=r["sha256"], whole=bool(r["whole"])) for r in rows]
    wrong = [(seal, what) for seal in seals if (what := broken(folder, seal, deep=deep)) is not None]
    kinds = {seal.path.partition("/")[0] for seal, what in wrong if "other bytes" not in what}
    if kinds >= {"meta", "data"}:
        return  # another dataset stands there: its fingerprint says so
    for seal, what in wrong:
        yield f"{folder / seal.path} {what}.", "copy"
    if deep:
        known = {seal.path for seal, _ in wrong}
        yield from _footers(folder, [seal.path for seal in seals if seal.path not in known])
    if deep and not wrong:
        _seal_whole(parts, batch, folder, [seal for seal in seals if not seal.whole])
    extra = set(sealed_files(folder)) - {seal.path for seal in seals}
    if extra and seals:
        yield f"{folder} has {len(extra)} files that the catalog was not told of, such as {min(extra)}.", "add"


def _footers(folder: Path, paths: list[str]) -> Iterator[tuple[str, Repair]]:
    """Tables that have the bytes they had and yet cannot be read: they were added broken."""
    for path in paths:
        try:
            require_footer(folder / path)
        except DatasetError as error:
            yield f"{error} It was so when it was added.", "copy"


def _seal_whole(parts: Parts, batch: str, folder: Path, seals: list[Seal]) -> None:
    """Remember the hashes of videos, now that they are read whole."""
    fresh = [Seal.of(folder, seal.path, whole=True) for seal in seals]
    if not fresh:
        return
    with parts.state.transaction() as connection:
        connection.executemany(
            "UPDATE seals SET sha256 = ?, whole = 1 WHERE batch = ? AND path = ?",
            [(seal.sha256, batch, seal.path) for seal in fresh],
        )


def _episodes(parts: Parts, row: Mapping[str, Any], folder: Path, *, deep: bool) -> Iterator[tuple[str, Repair]]:
    reader = DatasetReader(folder)
    held = parts.state.rows("SELECT episode_id, episode_index FROM places WHERE batch = ?", (row["batch"],))
    named = {item["episode_index"]: item["episode_id"] for item in held}
    for index, name in _names(reader, row["source"], deep=deep):
        if named.get(index, key_of(name)) != key_of(name):
            yield f"Episode {index} of {folder} is {name[:16]}…; the catalog knows another there. It changed.", "add"
    if deep:
        yield from _videos(reader)


def _names(reader: DatasetReader, source: str, *, deep: bool) -> Iterator[tuple[int, str]]:
    """Names that episodes carry; deep, those of the others from their content."""
    for path in sorted((reader.path / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
        rows = read_table(path)
        carried = rows[_ID].to_pylist() if _ID in rows.column_names else [None] * len(rows)
        indices = rows["episode_index"].to_pylist()
        yield from ((index, name) for index, name in zip(indices, carried, strict=True) if name)
        nameless = [i for i, name in enumerate(carried) if not name]
        if deep and nameless:
            chosen = rows.select(_PLACE).take(nameless)
            names = content_ids(reader.path, reader.info, chosen, source)
            yield from zip(chosen["episode_index"].to_pylist(), names, strict=True)


def _videos(reader: DatasetReader) -> Iterator[tuple[str, Repair]]:
    """Whether the first and the last frame of each episode can be decoded."""
    for camera in reader.cameras:
        for index, length in enumerate(reader.lengths.tolist()):
            try:
                reader.images(index, camera, sorted({0, max(length - 1, 0)}))
            except (TwinloopError, OSError, ValueError) as error:
                yield f"{reader.path}: camera {camera} of episode {index} cannot be decoded ({error}).", "copy"
