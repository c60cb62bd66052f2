"""Whether a dataset folder still is what the catalog was told of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from twinloop.catalog.batch_commit import key_of, write_seals
from twinloop.catalog.fingerprint import Fingerprint
from twinloop.catalog.parts import Parts
from twinloop.catalog.seals import (
    Seal,
    broken,
    is_sealed,
    of_block,
    readable,
    require_footer,
    seal,
    sealed_files,
    seals_of,
)
from twinloop.catalog.state import State
from twinloop.core.errors import DatasetError, TwinloopError
from twinloop.dataset import layout
from twinloop.dataset.content_ids import content_ids
from twinloop.dataset.parquet import read_table
from twinloop.dataset.reader import DatasetReader

Repair = Literal["find", "add", "copy", "meant"]

_ID = "provenance/episode_id"
_PLACE = ["episode_index", "length", "tasks", "data/chunk_index", "data/file_index"]


def check_batch(
    parts: Parts, row: Mapping[str, Any], note: Callable[[str], None], *, deep: bool
) -> Iterator[tuple[str, Repair]]:
    """What is wrong with a batch's folder, and what kind of repair that calls for.

    Args:
        parts: of the catalog.
        row: of the table ``batches``.
        note: takes a sentence for people about what was done meanwhile.
        deep: read every file whole, name episodes without provenance anew, and decode videos at both ends of each
            episode.
    """
    folder = parts.folder.parent / row["path"]
    if not (folder / layout.INFO).is_file():
        yield f"{folder} is gone, or is no dataset any more.", "find"
        return
    try:
        damaged = list(_files(parts, row, folder, note, deep=deep))
    except DatasetError as error:
        yield str(error), "copy"
        return
    if damaged:
        yield from damaged
        return
    if Fingerprint.of(folder).since(Fingerprint.from_text(row["files"])) == "changed":
        yield f"{folder} was written anew since it was added.", "add"
        return
    try:
        yield from _episodes(parts, row, folder, deep=deep)
    except TwinloopError as error:
        yield f"{folder}: {error}", "copy"


def _files(
    parts: Parts, row: Mapping[str, Any], folder: Path, note: Callable[[str], None], *, deep: bool
) -> Iterator[tuple[str, Repair]]:
    """Find files that are not what they were; those of a folder written anew have other names or sizes altogether."""
    batch, seals = row["batch"], seals_of(parts.state, row["batch"])
    wrong = [(item, what) for item in seals if (what := broken(folder, item, deep=deep)) is not None]
    blocks = [(item, what) for item, what in wrong if of_block(item.path)]
    if {item.path.partition("/")[0] for item, what in blocks if "other bytes" not in what} >= {"meta", "data"}:
        return  # another dataset is there: its fingerprint tells
    new = sorted(set(sealed_files(folder)) - {item.path for item in seals})
    grown = any(path.startswith("meta/episodes/") for path in new)
    for item, what in blocks if grown else wrong:  # a dataset that grew has other metadata
        yield f"{readable(folder / item.path)} {what}.", "copy" if of_block(item.path) else "meant"
    if deep:
        known = {item.path for item, _ in wrong}
        yield from _footers(folder, [item.path for item in seals if of_block(item.path) and item.path not in known])
    extra = [path for path in new if is_sealed(seals) or (seals and of_block(path))]
    if extra:
        what = f"{len(extra)} files that the catalog was not told of, such as {readable(extra[0])}"
        yield f"{readable(folder)} has {what}.", "add"
    if deep and not wrong:
        _seal_rest(parts.state, batch, folder, seals, note)


def _footers(folder: Path, paths: list[str]) -> Iterator[tuple[str, Repair]]:
    """Tables that have the bytes they had and yet cannot be read: they were added broken."""
    for path in paths:
        try:
            require_footer(folder / path)
        except DatasetError as error:
            yield f"{error} It was so when it was added.", "copy"


def _seal_rest(state: State, batch: str, folder: Path, seals: Sequence[Seal], note: Callable[[str], None]) -> None:
    """Seal what an earlier version left: videos but for their ends, and files that belong to no block."""
    fresh = [Seal.of(folder, item.path) for item in seals if not item.whole]
    if seals and not is_sealed(seals):
        fresh += [item for item in seal(folder, [item.path for item in seals]) if not of_block(item.path)]
    if fresh:
        with state.transaction() as connection:
            write_seals(connection, batch, fresh)
        note(f"{len(fresh)} files of batch {batch} were sealed just now. Changes from before cannot be noticed.")


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
