"""What a dataset folder's own metadata tells of its origin, counted for the card."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from twinloop.core.documents import DocumentError, parse_json
from twinloop.dataset.parquet import open_parquet
from twinloop.stats import clopper_pearson

_RAND = "provenance/rand."
_COUNTED = {
    "source": "provenance/source",
    "twin": "provenance/twin",
    "policy": "provenance/expert",
    "simulator": "provenance/sim_version",
}
_TEXTS = ("provenance/parent_episode_ids", "provenance/transforms")
_MOST = 12  # parameters that a card names; our choice
_LEAST_SPREAD = 1e-12


@dataclass(frozen=True, kw_only=True)
class Range:
    """One drawn parameter over the episodes: name, smallest, median and largest value in SI, and how many have it."""

    name: str
    low: float
    middle: float
    high: float
    episodes: int


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the episodes of a folder come from, as far as it says.

    ``counts`` are episodes by value, by kind of origin; ``ranges`` are some of the drawn parameters of every kind,
    those that vary most for their size. ``succeeded`` of ``judged`` episodes succeeded.
    """

    episodes: int
    counts: Mapping[str, Mapping[str, int]]
    ranges: tuple[Range, ...]
    parameters: int
    judged: int
    succeeded: int
    invalid: int
    parents: int
    transforms: Mapping[str, int]
    ids: int

    @property
    def success(self) -> str:
        """The success rate with its exact 95 % interval, in words; empty where no episode was judged."""
        if not self.judged:
            return ""
        interval = clopper_pearson(self.succeeded, self.judged)
        return (
            f"{self.succeeded} of {self.judged} episodes succeeded: {100 * self.succeeded / self.judged:.1f} % "
            f"(95 % Clopper–Pearson interval {100 * interval.low:.1f} to {100 * interval.high:.1f} %)."
        )


def read_origin(folder: Path) -> Origin:
    """Count what the episode table of a v3.0 folder says.

    Raises:
        DatasetError: a file of the episode table is damaged.
    """
    table = _provenance(folder)
    names = set(table.column_names)
    success = table["provenance/success"].drop_null().to_pylist() if "provenance/success" in names else []
    valid = table["provenance/valid"].to_pylist() if "provenance/valid" in names else []
    ranges = [_range(table, name) for name in table.column_names if name.startswith(_RAND)]
    drawn = [row for row in ranges if row is not None]
    return Origin(
        episodes=table.num_rows,
        counts={kind: _counts(table, column) for kind, column in _COUNTED.items() if column in names},
        ranges=_some(drawn),
        parameters=len(drawn),
        judged=len(success),
        succeeded=sum(map(bool, success)),
        invalid=sum(value is False for value in valid),
        parents=sum(text not in (None, "", "[]") for text in _texts(table, _TEXTS[0])),
        transforms=Counter(name for text in _texts(table, _TEXTS[1]) for name in _steps(text)),
        ids=len({text for text in _texts(table, "provenance/episode_id") if text}),
    )


def _provenance(folder: Path) -> pa.Table:
    tables = []
    for path in sorted((folder / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
        with open_parquet(path) as file:
            wanted = {"episode_index", *_COUNTED.values(), *_TEXTS, "provenance/episode_id"}
            wanted |= {"provenance/twin_hash", "provenance/success", "provenance/valid"}
            names = [n for n in file.schema_arrow.names if n in wanted or n.startswith(_RAND)]
            tables.append(file.read(columns=names))
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({"episode_index": []})


def _counts(table: pa.Table, column: str) -> dict[str, int]:
    """Episodes by value, the most frequent first; a twin with the beginning of its hash."""
    values = [str(value or "") for value in table[column].to_pylist()]
    if column == "provenance/twin" and "provenance/twin_hash" in table.column_names:
        hashes = [str(value or "")[:12] for value in table["provenance/twin_hash"].to_pylist()]
        values = [f"{twin} ({digest})" if twin else "" for twin, digest in zip(values, hashes, strict=True)]
    counted = Counter(value for value in values if value)
    return dict(sorted(counted.items(), key=lambda pair: (-pair[1], pair[0])))


def _range(table: pa.Table, column: str) -> Range | None:
    if not pa.types.is_floating(table[column].type):
        return None
    values = table[column].drop_null().to_numpy()
    if not len(values):
        return None
    low, middle, high = (float(value) for value in np.quantile(values, (0.0, 0.5, 1.0)))
    return Range(name=column.removeprefix(_RAND), low=low, middle=middle, high=high, episodes=len(values))


def _some(rows: Sequence[Range]) -> tuple[Range, ...]:
    """Some parameters of every kind (object, joint, camera, …) in turn, of each those that vary most."""
    kinds: dict[str, list[Range]] = {}
    for row in sorted(rows, key=_by_spread):
        kinds.setdefault(row.name.partition(".")[0], []).append(row)
    turns = itertools.zip_longest(*(kinds[kind] for kind in sorted(kinds)))
    return tuple(itertools.islice((row for turn in turns for row in turn if row is not None), _MOST))


def _by_spread(row: Range) -> tuple[float, str]:
    """Widest for its size first; names decide where ranges are alike."""
    size = max(abs(row.low), abs(row.high), _LEAST_SPREAD)
    return (-round((row.high - row.low) / size, 6), row.name)


def _texts(table: pa.Table, column: str) -> Sequence[Any]:
    return table[column].to_pylist() if column in table.column_names else []


def _steps(text: Any) -> list[str]:
    """Names of an episode's transforms out of their JSON; none where it cannot be read."""
    try:
        steps = parse_json(text, where="transforms") if text else []
    except (TypeError, AttributeError, DocumentError):
        return []
    return [str(step.get("name", step)) if isinstance(step, Mapping) else str(step) for step in steps]
