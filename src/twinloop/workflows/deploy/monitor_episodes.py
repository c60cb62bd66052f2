"""Read the recorded episodes of a dataset for a monitor, and check that they are from the monitored policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import ACTION, ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.core.errors import InputError
from twinloop.curate.recording import RecordedEpisode, open_recordings
from twinloop.dataset.media.images import fit_images
from twinloop.policies import Predictor
from twinloop.release.monitor.recorded import RecordedEpisodes
from twinloop.twin import Twin

_NOBODY = ("", "recorded")  # actors of episodes whose actor is not recorded


def read_episodes(folder: Path, *, cameras: tuple[str, ...] = (), policy: Predictor | None = None) -> RecordedEpisodes:
    """Read every episode of a LeRobot v3.0 folder, padded to the length of the longest.

    Args:
        folder: the dataset.
        cameras: cameras whose images are also read.
        policy: policy that acted, whose images are also read, in its size.

    Raises:
        InputError: If the folder has no episodes, no joint readings, no commands, or no such camera.
    """
    recordings = open_recordings(folder)
    if not recordings:
        raise InputError(f"{folder} has no episodes.")
    reader = recordings[0].reader
    for wanted in (STATE, ACTION):
        if wanted not in reader.info["features"]:
            there = ", ".join(reader.info["features"])
            raise InputError(f"{folder} has no {wanted}, which a monitor needs. It has {there}.")
    keys = [STATE, ACTION, *(key for key in (ENVIRONMENT,) if key in reader.info["features"])]
    columns = {key: _pad_series([one.reader.array(one.index, key) for one in recordings]) for key in keys}
    seen = {} if policy is None else policy.contract.cameras
    for name in dict.fromkeys((*cameras, *seen)):
        size = None if name in cameras else seen[name]
        images = (one.read_images(name) for one in recordings)
        columns[IMAGES + name] = _pad_series([rows if size is None else fit_images(rows, size) for rows in images])
    return RecordedEpisodes(
        commands=columns.pop(ACTION),
        observation=columns,
        lengths=np.array([one.frame_count for one in recordings]),
        success=np.array([_success_value(one) for one in recordings]),
        names=tuple(f"{one.batch}:{one.index}" for one in recordings),
        source=str(folder),
    )


def require_same_policy(folder: Path, policy: str, policy_hash: str) -> None:
    """Check that recorded episodes are from a given policy; episodes without a recorded policy are accepted.

    Args:
        folder: dataset with the episodes.
        policy: name of the given policy, for the error message.
        policy_hash: hash of the given policy; if it is empty, nothing is checked.

    Raises:
        InputError: If an episode was recorded with another policy.
    """
    for one in open_recordings(folder) if policy_hash else []:
        record = one.provenance
        if record is None or record.actor in _NOBODY:
            continue
        acted = str(record.extra.get("run", {}).get("policy_hash", ""))
        if policy_hash not in (acted, *record.actor.replace(",", " ").split()):
            who = f"{record.actor} ({acted[:12]})" if acted else record.actor
            raise InputError(
                f"In {one.batch}:{one.index} of {folder} the actor was {who}, not the policy {policy} "
                f"({policy_hash[:12]}): a monitor is valid for one policy only. Give episodes of this policy, or name "
                "their policy with --policy; without --policy, only robot and scene are monitored."
            )


def build_contract(folder: Path, twin: Twin) -> Contract:
    """Return a contract with the units and columns of a dataset, for a monitor that is calibrated without a policy.

    Args:
        folder: the dataset.
        twin: twin of the robot. Its units are used if the dataset does not state units.
    """
    reader = open_recordings(folder)[0].reader
    units = reader.units or twin.units
    names = tuple(reader.feature_names(ENVIRONMENT)) if ENVIRONMENT in reader.info["features"] else ()
    return Contract(
        robot_type=twin.robot.type,
        control_hz=twin.control_hz,
        state=units,
        action=units,
        command=twin.robot.control,
        environment=names,
    )


def _success_value(recording: RecordedEpisode) -> float:
    return np.nan if recording.success is None else float(recording.success)


def _pad_series(series: list[NDArray[Any]]) -> NDArray[Any]:
    """Stack series of different lengths into one array, and repeat the last value of the shorter ones.

    Args:
        series: m arrays of shape ``(T, …)``, each with its own number T of steps.

    Returns:
        Array of shape ``(m, T, …)`` with the largest T.
    """
    longest = max(len(one) for one in series)
    return np.stack([one[np.minimum(np.arange(longest), len(one) - 1)] for one in series])
