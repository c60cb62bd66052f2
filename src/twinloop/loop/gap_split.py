"""Which episodes of a log a gap is measured on: held-out ones, where an identify run saw the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from twinloop.core.records import Episode
from twinloop.loop.logs import Log
from twinloop.twin import Twin


@dataclass(frozen=True, kw_only=True)
class Split:
    """Which episodes are measured, and which may choose the delay of the baseline."""

    measured: Sequence[Episode]
    training: Sequence[Episode] | None
    note: str


def describe(twin: Twin) -> dict[str, str]:
    """Which twin a figure belongs to."""
    return {"name": twin.name, "hash": twin.hash}


def held_out_split(log: Log, run: dict[str, Any] | None) -> Split:
    """The held-out episodes of an identify run on the same log; else all of them."""
    if run is None or run.get("data", {}).get("hash") != log.hash:
        return Split(measured=log.episodes, training=None, note=f"all {len(log.episodes)} episodes")
    held, trained = set(run["holdout"]), set(run["training"])
    if not held:
        return Split(measured=log.episodes, training=None, note="NOTHING HELD OUT: the episodes that were fitted")
    return Split(
        measured=[e for e in log.episodes if e.index in held],
        training=[e for e in log.episodes if e.index in trained],
        note=f"{len(held)} held-out episodes of the identify run",
    )
