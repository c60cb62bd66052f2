"""Agreement of those who label a workspace: figures, tables, and the episodes to look at again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.catalog import Workspace
from twinloop.catalog.naming import select
from twinloop.label.agreement import Agreement, Pair, agreement
from twinloop.label.boundaries import BoundaryPair, boundary_agreement
from twinloop.stats import Interval

_SHOWN = 10


def run_agreement(
    ws: Workspace, kind: str, *, where: str | None, tolerance_s: float, console: Console
) -> dict[str, Any]:
    """Measure and print.

    Raises:
        InputError: fewer than two who speak of the kind, or of the same episodes.
        UnknownNameError: agreement is not measured of that kind.
    """
    rows = ws.query(
        "SELECT l.*, e.fps FROM labels l JOIN episodes e ON e.episode_id = l.episode_id WHERE l.kind = ? ORDER BY seq",
        [kind],
    ).to_pylist()
    if where is not None:
        chosen = set(select(ws, where))
        rows = [row for row in rows if row["episode_id"] in chosen]
    if kind == "subtask":
        fps = {row["episode_id"]: row["fps"] for row in rows}
        pairs, worst = boundary_agreement(rows, fps, tolerance_s=tolerance_s)
        _print_boundaries(pairs, worst, console)
        figures: dict[str, Any] = {"pairs": [pair.to_json() for pair in pairs], "disagreements": worst}
    else:
        found = agreement(rows, kind)
        _print(found, console)
        figures = found.to_json()
    return {"schema": 1, "verb": "label agreement", **figures, "kind": kind}


def _print(found: Agreement, console: Console) -> None:
    console.print(
        f"{found.kind}: {len(found.observers)} observers, {found.episodes} episodes with two or more. "
        f"Krippendorff's alpha {_said(found.alpha)}"
        + ("" if math.isnan(found.alpha.estimate) else f", {found.alpha.method}")
    )
    table = Table("first", "second", "episodes", "same", "kappa", box=None, header_style="bold", pad_edge=False)
    for pair in found.pairs:
        beyond = "" if pair.kappa is None else _said(pair.kappa)
        beyond = f"median {pair.apart:+.3g} apart" if pair.apart is not None else beyond
        table.add_row(pair.first, pair.second, str(pair.episodes), _said(pair.raw, share=True), beyond)
    console.print(table)
    for pair in found.pairs:
        if pair.confusion:
            console.print(_confusion(pair))
    for row in found.disagreements[:_SHOWN]:
        said = ", ".join(f"{who}={value}" for who, value in row["said"].items())
        console.print(f"  {row['episode_id'][:12]}  {said}")
    if len(found.disagreements) > _SHOWN:
        console.print(f"  … {len(found.disagreements) - _SHOWN} more episodes with unlike answers")


def _confusion(pair: Pair) -> Table:
    words = sorted({word for key in pair.confusion for word in key})
    table = Table(f"{pair.first} \\ {pair.second}", *words, box=None, header_style="bold", pad_edge=False)
    for one in words:
        table.add_row(one, *(str(pair.confusion.get((one, other), 0)) for other in words))
    return table


def _print_boundaries(pairs: Sequence[BoundaryPair], worst: Sequence[dict[str, Any]], console: Console) -> None:
    table = Table(
        "first", "second", "episodes", f"F1 within {pairs[0].tolerance_s:g} s", "second is later", "frames alike",
        box=None, header_style="bold", pad_edge=False,
    )  # fmt: skip
    for pair in pairs:
        table.add_row(
            pair.first,
            pair.second,
            str(pair.episodes),
            _said(pair.f1),
            f"{pair.offset_s:+.3f} s",
            _said(pair.alike, share=True),
        )
    console.print(table)
    for row in worst[:_SHOWN]:
        console.print(f"  {row['episode_id'][:12]}  F1 {row['f1']:.2f} between {' and '.join(row['between'])}")


def _said(interval: Interval, *, share: bool = False) -> str:
    ends = [float(part) for part in (interval.estimate, interval.low, interval.high)]
    if math.isnan(ends[0]):
        return f"undefined, as {interval.method}"
    if share:
        return "{:.0%} ({:.0%} to {:.0%})".format(*ends)
    return "{:.2f} ({:.2f} to {:.2f})".format(*ends)
