"""Logs as commands name them: a path, or the name of a public set; always labelled with where they come from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from twinloop.core.errors import InputError
from twinloop.core.files import sha256_tree
from twinloop.core.records import Episode
from twinloop.dataset import registry
from twinloop.dataset.importers.raw import RawEpisode
from twinloop.dataset.log_checks.mending import Mending
from twinloop.dataset.logs import read_raw
from twinloop.dataset.recorded import write_log_dataset


@dataclass(frozen=True, kw_only=True)
class Log:
    """Episodes and where they come from. ``label`` is printed beside every figure made from them."""

    name: str
    label: str
    hash: str
    episodes: tuple[Episode, ...]
    licence: str = ""

    def describe(self) -> dict[str, Any]:
        """A plain form for results."""
        return {
            "name": self.name,
            "label": self.label,
            "hash": self.hash,
            "episodes": len(self.episodes),
            "source": self.episodes[0].source,
            "origin": self.episodes[0].origin,
        }


@dataclass(frozen=True, kw_only=True)
class RawLog:
    """A `Log` whose episodes are as their files have them, whatever their defects."""

    name: str
    label: str
    hash: str
    episodes: tuple[RawEpisode, ...]
    licence: str = ""

    def checked(self, mending: Mending | None = None) -> Log:
        """The log that other rooms work with, mended on request.

        Raises:
            LogError: what is wrong with an episode.
        """
        episodes = (mending or Mending()).episodes(self.episodes)
        return Log(name=self.name, label=self.label, hash=self.hash, episodes=tuple(episodes), licence=self.licence)


def open_log(
    reference: str,
    *,
    units: str | None = None,
    joints: str | None = None,
    calibration: Path | None = None,
    task: str = "",
) -> Log:
    """The log that ``reference`` names: a path first, else a public set of the registry.

    Raises:
        UnknownNameError, LogError, UnitsError, DatasetError: see the message.
    """
    return open_raw(reference, units=units, joints=joints, calibration=calibration, task=task).checked()


def open_raw(
    reference: str,
    *,
    units: str | None = None,
    joints: str | None = None,
    calibration: Path | None = None,
    task: str = "",
) -> RawLog:
    """As `open_log`, with whatever is wrong left as it is.

    Raises:
        UnknownNameError, UnitsError, DatasetError: see the message.
    """
    path = Path(reference)
    if path.exists():
        return _from_path(path, units=units, joints=joints, calibration=calibration, task=task)
    if "/" in reference or path.suffix:
        raise InputError(f"{reference} does not exist. Check the path, or name one of: {', '.join(registry.SETS)}.")
    if units or joints or calibration:
        raise InputError(f"{reference} is a public set, whose units are known. Leave --units, --joints, --calibration.")
    log = _public(reference)
    return log if not task else replace(log, episodes=tuple(replace(episode, task=task) for episode in log.episodes))


def open_public(name: str) -> Log:
    """A public set by name.

    Raises:
        UnknownNameError: no such set.
        RealDataUnavailableError: it is neither in the data folder nor to be downloaded.
    """
    return _public(name).checked()


def _public(name: str) -> RawLog:
    episodes, located = registry.load_raw(name)
    checked = "SHA-256 verified" if located.verified else "hash recorded, not verified"
    return RawLog(
        name=name,
        label=f"real log {name}, {located.origin} ({checked})",
        hash=located.hash,
        episodes=tuple(episodes),
        licence=located.entry.licence,
    )


def _from_path(path: Path, *, units: str | None, joints: str | None, calibration: Path | None, task: str) -> RawLog:
    unit_list = units.split(",") if units and "," in units else units
    episodes = read_raw(
        path, units=unit_list, joints=joints.split(",") if joints else None, calibration=calibration, task=task
    )
    kind = {"real": "real log", "sim": "simulated log"}.get(episodes[0].source, f"{episodes[0].source} log")
    return RawLog(name=path.stem, label=f"{kind} {path}", hash=sha256_tree(path), episodes=tuple(episodes))


def import_log(
    reference: str,
    output: Path,
    *,
    units: str | None,
    joints: str | None,
    calibration: Path | None,
    task: str,
    mending: Mending | None = None,
) -> dict[str, Any]:
    """Write a log as a LeRobot v3.0 dataset, mended on request; returns its figures."""
    log = open_raw(reference, units=units, joints=joints, calibration=calibration, task=task)
    return import_episodes(log.checked(mending), output)


def import_episodes(log: Log, output: Path) -> dict[str, Any]:
    """Write the episodes of a log as a LeRobot v3.0 dataset; returns its figures."""
    write_log_dataset(log.episodes, output, data_hash=log.hash, licence=log.licence)
    first = log.episodes[0]
    rates = sorted((len(e) - 1) / (e.time[-1] - e.time[0]) for e in log.episodes if len(e) > 1)
    return {
        "schema": 1,
        "verb": "import",
        "data": log.describe(),
        "output": str(output),
        "episodes": len(log.episodes),
        "frames": sum(map(len, log.episodes)),
        "fps": round(rates[len(rates) // 2], 3) if rates else None,
        "joints": list(first.joints),
        "units": ", ".join(f"{unit} ×{n}" for unit, n in Counter(u.unit for u in first.units.joints).items()),
        "radians_known": first.units.known,
    }
