"""Public sets of real measurements by name: where they come from, what they are, and how to get them.

A folder named by ``TWINLOOP_DATA`` is looked in first, and what lies there is used as it is. Else the files are
downloaded from their public address at a fixed commit and checked against the SHA-256 in ``manifests/NAME.json``,
which were taken from copies of the public files. A file whose public hash is not known (null there) is not verified,
only remembered: `Located.verified` says so.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from twinloop.core.errors import DatasetError, MissingDependencyError, UnknownNameError
from twinloop.core.files import read_json, sha256_file, sha256_tree, write_json
from twinloop.core.records import Episode
from twinloop.core.units import NORMALIZED, PERCENT, RADIANS
from twinloop.dataset.logs import load_log

DATA_VARIABLE = "TWINLOOP_DATA"
_TIMEOUT_S = 15
_SEEN = "first_download.json"
_G1_ARM = ("ShoulderPitch", "ShoulderRoll", "ShoulderYaw", "Elbow", "WristRoll", "WristPitch", "WristYaw")


class RealDataUnavailableError(MissingDependencyError):
    """A public set is neither in the data folder nor can it be downloaded; virtual robots can stand in."""


@dataclass(frozen=True, kw_only=True)
class RealSet:
    """One public set of real measurements.

    ``reader`` is ``"log"`` where `load` turns it into episodes (with ``joints`` and ``units``, which the files do not
    say), else ``"files"``: the rooms that use it read its files. ``note`` says what a user must know.
    """

    name: str
    repository: str
    commit: str
    licence: str
    citation: str
    reader: str
    joints: tuple[str, ...] | None = None
    units: tuple[str, ...] | str | None = None
    robot_type: str = ""
    note: str = ""
    host: str = "https://raw.githubusercontent.com"

    @property
    def address(self) -> str:
        """The public address of its files, at a fixed commit."""
        return f"{self.host}/{self.repository}/{self.commit}/"

    def manifest(self) -> dict[str, tuple[str, str | None]]:
        """Path in the repository and SHA-256 (None: not known) of each file, by its path in the set's folder."""
        text = (resources.files("twinloop.dataset") / "manifests" / f"{self.name}.json").read_text()
        return {path: (upstream, digest) for path, (upstream, digest) in json.loads(text).items()}


@dataclass(frozen=True, kw_only=True)
class Located:
    """A set that is at hand: its folder, the hash of what is there, and where that came from.

    ``origin`` is ``"TWINLOOP_DATA"`` or the public address. ``verified`` says that every file that the registry names
    is there with the SHA-256 that it gives; false for part of a set, and where the registry knows no hash.
    """

    entry: RealSet
    path: Path
    hash: str
    origin: str
    verified: bool

    def to_json(self) -> dict[str, Any]:
        """A plain form for results; without the path, which is this machine's."""
        return {
            "name": self.entry.name,
            "hash": self.hash,
            "origin": self.origin,
            "verified": self.verified,
            "repository": self.entry.repository,
            "commit": self.entry.commit,
            "licence": self.entry.licence,
            "citation": self.entry.citation,
        }


SETS: dict[str, RealSet] = {
    entry.name: entry
    for entry in (
        RealSet(
            name="so101_pick_place_tape",
            repository="Sachin-2007/oc_models",
            commit="c1babeaeb447e8dbb7dbb7beee072422583fb79e",
            licence="repository Apache-2.0; the data set's own field is empty: use it, do not redistribute it",
            citation="aadarshram/pick_place_tape (Hugging Face), cached in github.com/Sachin-2007/oc_models",
            reader="log",
            joints=("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper"),
            units=(*(NORMALIZED,) * 5, PERCENT),
            robot_type="so101_follower",
            note="SO-101 leader commands and follower positions, 30 Hz, 50 episodes upstream. The hash of the public "
            "Arrow file is not pinned: a first download is remembered, not verified.",
        ),
        RealSet(
            name="g1_inspire_lerobot",
            repository="YifanTian07/G1-policy-train",
            commit="d1d3bb45f16a99eb3220c88b4f84f6c92d306f88",
            licence="MIT",
            citation="github.com/YifanTian07/G1-policy-train",
            reader="log",
            # The arms are in rad. The Inspire hands log an opening from 0 to 1, which has no radians: left out.
            joints=tuple(f"k{side}{joint}" for side in ("Left", "Right") for joint in _G1_ARM),
            units=RADIANS,
            robot_type="Unitree_G1_Inspire",
            note="LeRobot v2.1, 30 Hz; the manifest names 12 of 100 episodes, one with video.",
        ),
        RealSet(
            name="dfki_double_pendulum",
            repository="dfki-ric-underactuated-lab/double_pendulum",
            commit="1e8544e67f3da72a51ee52fbbb278e131ce2a43f",
            licence="BSD-3-Clause",
            citation="github.com/dfki-ric-underactuated-lab/double_pendulum",
            reader="files",
            note="CSV: time s, positions rad, velocities rad/s, torques N·m; commands are torques, not positions. "
            "The manifest names 5 identification runs of design C.1 and 20 rollouts of two controllers.",
        ),
        RealSet(
            name="contactnets_cube_tosses",
            repository="DAIRLab/contact-nets",
            commit="c3dc21c94577ff4ed99123f0b00bfe57bb2d1d90",
            licence="BSD-3-Clause",
            citation="Pfrommer, Halm, Posa, ContactNets, CoRL 2020 (arXiv 2009.11193)",
            reader="files",
            note="Tosses 0 to 369 of 570, 148 Hz, legacy torch files; positions and velocities are divided by the "
            "cube's half width, 0.0524 m.",
        ),
    )
}


def fetch(name: str) -> Located:
    """A set's folder on this machine, downloaded if need be.

    Raises:
        UnknownNameError: no such set.
        RealDataUnavailableError: it is not in the data folder and cannot be downloaded; one line says so.
        DatasetError: a downloaded file is not the one that the registry names.
    """
    if name not in SETS:
        raise UnknownNameError("public data set", name, SETS)
    entry = SETS[name]
    folder = os.environ.get(DATA_VARIABLE)
    if folder and (path := Path(folder) / name).exists():
        return Located(
            entry=entry, path=path, hash=sha256_tree(path), origin=DATA_VARIABLE, verified=_matches(entry, path)
        )
    return download(entry)


def load(name: str) -> tuple[list[Episode], Located]:
    """The episodes of a set that is a log, and where they came from.

    Raises:
        DatasetError: the set is not a log; its files have a reader of their own.
        TwinloopError: as `fetch` and `load_log`.
    """
    located = fetch(name)
    entry = located.entry
    if entry.reader != "log":
        raise DatasetError(f"The set {name} is not a log of joint commands and positions. {entry.note}")
    origin = f"{name} ({located.origin})"
    episodes = load_log(
        located.path, joints=entry.joints, units=entry.units, robot_type=entry.robot_type, origin=origin
    )
    return episodes, located


def _matches(entry: RealSet, path: Path) -> bool:
    """Whether a folder holds the files that the registry names, each with the hash that it gives."""
    return all(
        digest is not None and (path / file).is_file() and sha256_file(path / file) == digest
        for file, (_, digest) in entry.manifest().items()
    )


def download(entry: RealSet) -> Located:
    """A set's files from its public address, kept in the user's cache and checked on every use.

    Raises:
        RealDataUnavailableError: it cannot be reached.
        DatasetError: a file is not the one that the registry names, or changed since its first download.
    """
    import pooch

    folder = Path(pooch.os_cache("twinloop")) / entry.name / entry.commit
    manifest = entry.manifest()
    downloader: Any = pooch.HTTPDownloader(timeout=_TIMEOUT_S)
    with _quiet_pooch():
        for file, (upstream, digest) in manifest.items():
            target = folder / file
            try:
                pooch.retrieve(
                    entry.address + upstream,
                    known_hash=None if digest is None else f"sha256:{digest}",
                    fname=target.name,
                    path=target.parent,
                    downloader=downloader,
                )
            except OSError as error:  # what requests raises, and a folder that cannot be written
                raise RealDataUnavailableError(
                    f"The real data {entry.name} lies in no folder that {DATA_VARIABLE} names, and cannot be "
                    f"downloaded ({type(error).__name__}).",
                    remedy=f"set {DATA_VARIABLE} to a folder that holds {entry.name}/, or connect to the internet",
                ) from error
            except ValueError as error:  # what pooch raises when the hash differs
                raise DatasetError(
                    f"{entry.address}{upstream} is not the file that the registry names: its SHA-256 differs. "
                    "It was not used."
                ) from error
    unpinned = [file for file, (_, digest) in manifest.items() if digest is None]
    if unpinned:
        _remember(folder.parent / f"{entry.commit}.{_SEEN}", folder, unpinned)
    return Located(entry=entry, path=folder, hash=sha256_tree(folder), origin=entry.address, verified=not unpinned)


def _remember(record: Path, folder: Path, files: list[str]) -> None:
    """Keep the hashes of unpinned files from their first download, and refuse them when they have changed since."""
    found = {file: sha256_file(folder / file) for file in files}
    if not record.exists():
        write_json(record, found)
    elif (seen := read_json(record)) != found:
        changed = sorted(file for file in found if seen.get(file) != found[file])
        raise DatasetError(f"{folder}: {', '.join(changed)} changed since the first download. Delete the folder.")


@contextlib.contextmanager
def _quiet_pooch() -> Iterator[None]:
    """Keep pooch's own progress lines off standard error."""
    import pooch

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
