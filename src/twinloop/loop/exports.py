"""Datasets out of the house: write, and compare with the source on request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from twinloop.core.errors import InputError
from twinloop.dataset.exporters.formats import exporter
from twinloop.dataset.exporters.played import PlayedFolder
from twinloop.dataset.exporters.protocol import ExportOptions
from twinloop.dataset.exporters.source import open_source
from twinloop.dataset.exporters.verify import verify_export
from twinloop.loop.exports_truth import with_truth


def run_export(
    name: str,
    dataset: Path,
    output: Path,
    *,
    episodes: str | None = None,
    settings: Sequence[str] = (),
    verify: bool = False,
) -> dict[str, Any]:
    """Export a dataset folder; returns the figures, with the comparison under ``verification`` where it was asked for.

    Raises:
        InputError: see the message.
    """
    chosen = with_truth(exporter(name), dataset)
    options = ExportOptions(episodes=episode_list(episodes), settings=parsed_settings(settings))
    done = chosen.export(dataset, output, options)
    figures: dict[str, Any] = {
        "schema": 1,
        "verb": "export",
        "format": name,
        "dataset": str(dataset),
        **done.to_json(),
        "lost": chosen.lost,
    }
    if verify:
        pictures = options.settings.get("pictures") != "none"
        order = {episode: place for place, episode in enumerate(open_source(dataset, pictures=pictures).episodes)}
        places = [order[episode] for episode in done.episodes]
        found = verify_export(PlayedFolder(dataset, pictures=pictures), chosen.play(output), places)
        figures["verification"] = {**found.to_json(), "text": str(found)}
    return figures


def episode_list(text: str | None) -> tuple[int, ...] | None:
    """Episodes from ``0,2-5,9``; None means all.

    Raises:
        InputError: not of that form.
    """
    if text is None:
        return None
    found: list[int] = []
    for word in text.split(","):
        low, dash, high = word.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise InputError(f"--episodes {text}: give numbers and spans, such as 0,2-5,9.")
        found += range(int(low), int(high) + 1) if dash else [int(low)]
    return tuple(found)


def parsed_settings(words: Sequence[str]) -> dict[str, str]:
    """Settings from words ``NAME=VALUE``.

    Raises:
        InputError: not of that form.
    """
    pairs = [word.partition("=") for word in words]
    for name, sign, value in pairs:
        if not (name and sign):
            raise InputError(f"--set {name}{sign}{value}: write NAME=VALUE.")
    return {name: value for name, _, value in pairs}
