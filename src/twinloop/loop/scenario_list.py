"""What scenarios there are, and all that is known of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.loop import scenario_places as places
from twinloop.rollout.pinned import PinnedWorld
from twinloop.rollout.pinned_files import read_pinned, stored


def run_list(scenarios: Path | None, console: Console) -> dict[str, Any]:
    """Every scenario with where it comes from and how often it failed when it was stored."""
    found = [read_pinned(folder) for folder in stored(places.home(scenarios))]
    table = Table("scenario", "from", "twin", "failed", "why")
    for pinned in found:
        table.add_row(
            pinned.name, pinned.origin.source, pinned.twin, _failed(pinned), pinned.meaning or pinned.reason or "–"
        )
    console.print(table if found else f"{places.home(scenarios)} holds no scenario.")
    return {"verb": "scenario", "kind": "list", "scenarios": [_plain(pinned) for pinned in found]}


def run_show(name: str, scenarios: Path | None, console: Console) -> dict[str, Any]:
    """One scenario: where it comes from, its own parameters, and what was measured of it."""
    folder, pinned = places.opened(name, scenarios)
    console.print(f"{pinned.name} ({folder})", soft_wrap=True)
    for line in filter(None, (pinned.meaning, pinned.reason)):
        console.print(line, soft_wrap=True, markup=False)
    origin = pinned.origin
    console.print(
        f"{origin.source}, episode {origin.episode} of {origin.place or 'nowhere'}, {origin.actor or 'nobody'} acted; "
        f"{pinned.nstep} steps of {pinned.task} on {pinned.twin} {pinned.twin_hash[:12]}.",
        soft_wrap=True,
        markup=False,
    )
    console.print(f"Failed under who acts: {_failed(pinned)}; parameters: {pinned.evidence.get('parameters', '–')}.")
    table = Table("own parameter", "value")
    for key, value in pinned.departures.items():
        table.add_row(key, f"{value:.5g}")
    console.print(table)
    return {"verb": "scenario", "kind": "show", **_plain(pinned)}


def _plain(pinned: PinnedWorld) -> dict[str, Any]:
    return {
        "scenario": pinned.name,
        "hash": pinned.hash,
        "twin": pinned.twin,
        "twin_hash": pinned.twin_hash,
        "task": pinned.task,
        "origin": vars(pinned.origin),
        "reason": pinned.reason,
        "meaning": pinned.meaning,
        "parameters": pinned.departures,
        "evidence": dict(pinned.evidence),
    }


def _failed(pinned: PinnedWorld) -> str:
    kept = pinned.evidence.get("expected")
    if not isinstance(kept, dict) or "failures" not in kept:
        return "–"
    return f"{kept['failures']}/{kept['trials']}"
