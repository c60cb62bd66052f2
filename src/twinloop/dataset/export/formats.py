"""The formats that datasets can be exported to, by name; a format's file is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from twinloop.core.errors import UnknownNameError
from twinloop.dataset.export.protocol import Exporter

ENTRY_POINTS = "twinloop.exporters"  # where an installed package offers an `Exporter` of its own

FORMATS = {
    "lerobot": "lerobot_v3",
    "lerobot-v2": "lerobot_v21",
    "groot": "groot",
    "robomimic": "robomimic",
    "mcap": "mcap",
    "rerun": "rerun",
}
"""Module of this package by format; each has an ``EXPORTER``."""


def names() -> list[str]:
    """All formats, built-in ones first."""
    return [*FORMATS, *(entry.name for entry in entry_points(group=ENTRY_POINTS))]


def exporter(name: str) -> Exporter:
    """The exporter of a format.

    Raises:
        UnknownNameError: no such format.
        MissingDependencyError: the format needs a package that is not installed.
    """
    if name in FORMATS:
        return import_module(f"twinloop.dataset.export.{FORMATS[name]}").EXPORTER
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            return entry.load()
    raise UnknownNameError("format", name, names())
