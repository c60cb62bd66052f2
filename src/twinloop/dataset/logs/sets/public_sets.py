"""List the public sets of real measurements (address, licence, reader), and download and verify their files."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from twinloop.core.documents import read_json
from twinloop.core.errors import DatasetError, MissingDependencyError
from twinloop.core.files import sha256_file, write_json
from twinloop.core.registry import Registry
from twinloop.core.units import NORMALIZED, PERCENT, RADIANS
from twinloop.dataset.logs.formats import read_raw
from twinloop.dataset.logs.importers import crazyflie
from twinloop.dataset.logs.importers.protocol import LogOptions, RawEpisode
from twinloop.dataset.logs.sets import impacts, pendulums
from twinloop.dataset.logs.sets.files import find_recordings, recording_number

Reader = Callable[[Path], list[RawEpisode]]
_G1_ARM = ("ShoulderPitch", "ShoulderRoll", "ShoulderYaw", "Elbow", "WristRoll", "WristPitch", "WristYaw")


@dataclass(frozen=True, kw_only=True)
class RealSet:
    """One public set of real measurements: recordings of one system in one type of experiment.

    Attributes:
        name: Name of the set.
        repository: GitHub repository of the files.
        commit: Commit of the repository.
        licence: Licence of the data.
        citation: Source to cite.
        read: Function that returns the episodes in any folder with the layout of the set.
        note: Remark for users.
        folder: Folder of the files in the data folder (environment variable ``TWINLOOP_DATA``). Several sets may share
            one; by default the name of the set.
        host: Beginning of the download address.
    """

    name: str
    repository: str
    commit: str
    licence: str
    citation: str
    read: Reader
    note: str
    folder: str = ""
    host: str = "https://raw.githubusercontent.com"

    @property
    def address(self) -> str:
        """Beginning of the public addresses of the files, at a fixed commit."""
        return f"{self.host}/{self.repository}/{self.commit}/"

    @property
    def folder_name(self) -> str:
        """Name of the set's folder in the data folder (environment variable ``TWINLOOP_DATA``)."""
        return self.folder or self.name

    def manifest(self) -> dict[str, tuple[str, str | None]]:
        """Return the files of the set by their path in the set's folder.

        Returns:
            For each file: its path in the repository, and its SHA-256 (None if unknown).
        """
        text = (resources.files("twinloop.dataset") / "manifests" / f"{self.name}.json").read_text()
        return {path: (upstream, digest) for path, (upstream, digest) in json.loads(text).items()}


def _read_so101(folder: Path) -> list[RawEpisode]:
    joints = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
    return read_raw(folder, joints=joints, units=(*(NORMALIZED,) * 5, PERCENT), robot_type="so101_follower")


def _read_g1(folder: Path) -> list[RawEpisode]:
    # The arms are in rad. The Inspire hands log an opening from 0 to 1, which cannot be converted to rad: left out.
    joints = tuple(f"k{side}{joint}" for side in ("Left", "Right") for joint in _G1_ARM)
    return read_raw(folder, joints=joints, units=RADIANS, robot_type="Unitree_G1_Inspire")


def _read_crazyflie(folder: Path) -> list[RawEpisode]:
    episodes: list[RawEpisode] = []
    for path in find_recordings(folder, ".", "log[0-9]*"):
        (flight,) = crazyflie.read(path, LogOptions(task="flight", origin=path.name))
        episodes.append(replace(flight, index=recording_number(path)))
    return episodes


_DOUBLE_PENDULUM = {
    "repository": "dfki-ric-underactuated-lab/double_pendulum",
    "commit": "1e8544e67f3da72a51ee52fbbb278e131ce2a43f",
    "licence": "BSD-3-Clause",
    "citation": "github.com/dfki-ric-underactuated-lab/double_pendulum",
}
_BAM = {
    "repository": "Rhoban/bam",
    "licence": "Apache-2.0",
    "citation": "Duclusaud et al., Extended Friction Models for the Physics Simulation of Servo Actuators, ICRA 2025 "
    "(arXiv 2410.08650)",
}

_SETS = {
    entry.name: entry
    for entry in (
        RealSet(
            name="so101_pick_place_tape",
            repository="Sachin-2007/oc_models",
            commit="c1babeaeb447e8dbb7dbb7beee072422583fb79e",
            licence="repository Apache-2.0; the data set's own field is empty: use it, do not redistribute it",
            citation="aadarshram/pick_place_tape (Hugging Face), cached in github.com/Sachin-2007/oc_models",
            read=_read_so101,
            note="SO-101 leader commands and follower positions, 30 Hz, 50 episodes upstream. The hash of the public "
            "Arrow file is not pinned: a first download is remembered, not verified.",
        ),
        RealSet(
            name="g1_inspire_lerobot",
            repository="YifanTian07/G1-policy-train",
            commit="d1d3bb45f16a99eb3220c88b4f84f6c92d306f88",
            licence="MIT",
            citation="github.com/YifanTian07/G1-policy-train",
            read=_read_g1,
            note="LeRobot v2.1, 30 Hz; the manifest names 12 of 100 episodes, one with video.",
        ),
        RealSet(
            name="bam_servo",
            commit="af2260462471ff45ac18af159b1327ea51d8db15",
            read=pendulums.read_xl330,
            note="Dynamixel XL330-M288 with 0.49 kg at 0.1 m, 188 to 250 Hz: 12 of 16 runs, firmware gains 100, 200 "
            "and 800 under four trajectories each. lift_and_drop switches the motor off after 2 s.",
            **_BAM,
        ),
        RealSet(
            name="bam_servo_sts3250",
            commit="b53408c590cb4d65f90abd25fe062ddd00505a93",
            read=pendulums.read_sts3250,
            folder="bam_servo",
            note="Feetech STS3250 with 1.13 kg at 0.12 m, 47 to 65 Hz: 3 of 4 runs at firmware gain 32.",
            **_BAM,
        ),
        RealSet(
            name="dfki_double_pendulum",
            read=pendulums.read_identification,
            note="5 identification runs of design C.1, 6 to 10 s at 500 Hz; commands are torques.",
            **_DOUBLE_PENDULUM,
        ),
        RealSet(
            name="dfki_double_pendulum_rollouts",
            read=pendulums.read_rollouts,
            folder="dfki_double_pendulum",
            note="20 rollouts of two pendubot controllers: mcpilco at 33 Hz, sac_lqr at 400 Hz; commands are torques.",
            **_DOUBLE_PENDULUM,
        ),
        RealSet(
            name="dfki_simple_pendulum",
            repository="dfki-ric-underactuated-lab/torque_limited_simple_pendulum",
            commit="ed17ea2d32a35ad944944ca03ef57693e2986732",
            licence="BSD-3-Clause",
            citation="github.com/dfki-ric-underactuated-lab/torque_limited_simple_pendulum",
            read=pendulums.read_simple_pendulum,
            note="Four controllers at 200 to 1000 Hz. If a controller followed a trajectory in the drive's internal "
            "loop, the commanded torque is only its feed-forward part: use the measured one.",
        ),
        RealSet(
            name="contactnets_cube_tosses",
            repository="DAIRLab/contact-nets",
            commit="c3dc21c94577ff4ed99123f0b00bfe57bb2d1d90",
            licence="BSD-3-Clause",
            citation="Pfrommer, Halm, Posa, ContactNets, CoRL 2020 (arXiv 2009.11193)",
            read=impacts.read_cube_tosses,
            note="Tosses 0 to 369 of 570, 148 Hz, filtered upstream. The cube comes to rest 1.2 mm below half its "
            "side: an offset of the recording's table.",
        ),
        RealSet(
            name="crazyflie_sysid",
            repository="arplaboratory/data-driven-system-identification",
            commit="2d267dd07b4262f579ee223d20b26a6dc9d17147",
            licence="MIT",
            citation="Eschmann, Albani, Loianno, Data-Driven System Identification of Quadrotors Subject to Motor "
            "Delays, IROS 2024",
            read=_read_crazyflie,
            note="2 of 3 flights of a Crazyflie, 1 kHz: IMU and throttles; log10 excites thrust, log15 roll and pitch.",
        ),
        RealSet(
            name="cassie_impact",
            repository="DAIRLab/cassie_impact_dataset",
            commit="fcf6423066c93e4f83e4085e3105704b7f2f9cea",
            licence="BSD-3-Clause",
            citation="Acosta, Yang, Posa, Validating Robotics Simulators on Real-World Impacts, RA-L 2022",
            read=impacts.read_cassie_landings,
            note="20 of 29 landings, 50 ms at 2 kHz. The ankle springs' positions come from inverse kinematics; their "
            "velocities are 0 in the files.",
        ),
        RealSet(
            name="planar_impacts",
            repository="DAIRLab/ImpactModeling",
            commit="f6c28898845da6d48efdd6c1c696db2fb3716edf",
            licence="BSD-3-Clause",
            citation="Nima Fazeli's planar impact data (MIT MCube), kept in github.com/DAIRLab/ImpactModeling",
            read=impacts.read_planar_drops,
            note="60 of 500 drops of a square of 0.06 m, 250 Hz, velocities filtered upstream. 2000 bounces of an "
            "ellipse have a separate reader (dataset.logs.sets.impacts.read_ellipse).",
        ),
    )
}
SETS: Registry[RealSet] = Registry("public data set", _SETS)


DATA_VARIABLE = "TWINLOOP_DATA"
_TIMEOUT_S = 15
_SEEN = "first_download.json"


class RealDataUnavailableError(MissingDependencyError):
    """Error for a public set that is not in the data folder and cannot be downloaded.

    The command ``twinloop demo`` then uses simulated robots with hidden parameters instead.
    """


def download(entry: RealSet) -> tuple[Path, bool]:
    """Download a set from its public address to the user's cache folder. The files are verified at every use.

    Returns:
        The folder, and whether every file has been verified; false if a file has no known hash.

    Raises:
        RealDataUnavailableError: If the address cannot be reached.
        DatasetError: If a file has another hash than in the registry, or changed since its first download.
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
                    entry.address + quote(upstream),
                    known_hash=None if digest is None else f"sha256:{digest}",
                    fname=target.name,
                    path=target.parent,
                    downloader=downloader,
                )
            except OSError as error:  # what requests raises, and a folder that cannot be written
                raise RealDataUnavailableError(
                    f"The real data {entry.name} is not in a folder that {DATA_VARIABLE} names, and cannot be "
                    f"downloaded ({type(error).__name__}).",
                    remedy=f"set {DATA_VARIABLE} to a folder that holds {entry.folder_name}/, or connect to the "
                    "internet",
                ) from error
            except ValueError as error:  # what pooch raises when the hash differs
                raise DatasetError(
                    f"{entry.address}{upstream} is not the file that the registry names: its SHA-256 differs. "
                    "It was not used."
                ) from error
    unpinned = [file for file, (_, digest) in manifest.items() if digest is None]
    if unpinned:
        _check_first_download(folder.parent / f"{entry.commit}.{_SEEN}", folder, unpinned)
    return folder, not unpinned


def _check_first_download(record: Path, folder: Path, files: list[str]) -> None:
    """Store the hashes of files that have no known hash at the first download, and compare them later.

    Args:
        record: JSON file of the stored hashes.
        folder: Folder of the set.
        files: Paths of the files in the folder.

    Raises:
        DatasetError: If a file has changed since the first download.
    """
    found = {file: sha256_file(folder / file) for file in files}
    if not record.exists():
        write_json(record, found)
    elif (stored := read_json(record)) != found:
        changed = sorted(file for file in found if stored.get(file) != found[file])
        raise DatasetError(
            f"{folder}: {', '.join(changed)} changed since the first download. Delete the folder to download it again."
        )


@contextlib.contextmanager
def _quiet_pooch() -> Iterator[None]:
    """Suppress the progress lines of pooch (the download library) in a with block."""
    import pooch

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
