"""Episodes whose content an edit changes: a new id, the old one as parent, and what was done to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

from twinloop.core.files import dumps, sha256_bytes, sha256_json
from twinloop.core.records import Provenance, SimEpisode
from twinloop.dataset.edit.item import Item
from twinloop.dataset.parquet import numbers
from twinloop.dataset.tables import content_hash

ID, PARENTS, TRANSFORMS = "provenance/episode_id", "provenance/parent_episode_ids", "provenance/transforms"
KEY = "transforms"  # in Provenance.extra
_NOTHING = np.empty((0, 0))


def transform(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of the list of what was done to an episode's parents."""
    plain = dict(parameters)
    return {
        "name": name,
        "version": version("twinloop"),
        "parameters": plain,
        "parameters_hash": sha256_json(plain),
    }


@dataclass(frozen=True, kw_only=True)
class Child:
    """What takes the place of an episode's record: the cells of the episode table, and our provenance if it had one."""

    columns: Mapping[str, Any]
    provenance: Provenance | None


def child(item: Item, record: Provenance | None, parent: str, frames: pa.Table) -> Child:
    """The record of an episode that an edit changes.

    Args:
        item: with at least one transform.
        record: the provenance of the source's episode, if it has one.
        parent: what the source's episode is called.
        frames: the source's frames.
    """
    new = [dict(one) for one in item.transforms]
    if record is None:
        name = sha256_bytes(parent.encode(), dumps(new).encode(), _content(frames))
        return Child(columns={ID: name, PARENTS: dumps([parent]), TRANSFORMS: dumps(new)}, provenance=None)
    done = [*record.extra.get(KEY, ()), *new]
    changed = replace(
        record,
        parents=(parent,),
        content_hash="",
        task=item.texts.get(record.task, record.task),
        extra={**record.extra, KEY: done},
    )
    changed = replace(changed, content_hash=content_hash(_episode(item, changed, frames)))
    columns = {
        ID: changed.content_hash,
        PARENTS: dumps([parent]),
        TRANSFORMS: dumps(done),
        "provenance/task": changed.task,
    }
    return Child(columns=columns, provenance=changed)


def _content(frames: pa.Table) -> bytes:
    """What the frames hold, but for their numbers in the dataset."""
    names = [name for name in ("action", "observation.state") if name in frames.column_names]
    return b"".join(numbers(frames[name], where=name).astype("<f8").tobytes() for name in names)


def _episode(item: Item, record: Provenance, frames: pa.Table) -> SimEpisode:
    """The episode as it is stored, for the name of its content."""
    reader = item.source.reader
    simulated = any("states" in template for template in item.source.exact(item.index))

    def column(name: str) -> np.ndarray:
        return numbers(frames[name], where=f"{item.where}: {name}")

    return SimEpisode(
        number=int(reader.numbers[item.index]),
        commands=reader.commands(item.index) if simulated else _NOTHING,
        states=reader.states(item.index) if simulated else _NOTHING,
        action=column("action"),
        observation=column("observation.state"),
        next_success=np.zeros(len(frames), dtype=np.bool_),
        provenance=record,
        readings={reading.key: column(reading.key) for reading in reader.spec.readings},
    )
