"""Scores as the catalog keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from twinloop.catalog.schema import SCORES
from twinloop.curate.check import Check, Score


def scores_table(scores: Iterable[Score], checks: Sequence[Check], run_id: str) -> pa.Table:
    """Scores as rows of the catalog's table ``scores``."""
    hashes = {check.name: check.hash for check in checks}
    rows = [{**score.to_json(), "check_hash": hashes[score.check], "run_id": run_id} for score in scores]
    return pa.Table.from_pylist(rows, schema=SCORES.schema)
