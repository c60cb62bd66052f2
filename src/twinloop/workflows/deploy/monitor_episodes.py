"""Read the episodes of a dataset that a monitor is to be shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import ACTION, ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.core.errors import InputError
from twinloop.curate.recording import RecordedEpisode, open_recordings
from twinloop.release.monitor.recorded import RecordedEpisodes
from twinloop.twin import Twin

_NOBODY = ("", "recorded")  # actors of episodes of which nobody said who acted


def read_recorded(folder: Path, *, cameras: tuple[str, ...] = ()) -> RecordedEpisodes:
    """Every episode of a LeRobot v3.0 folder.

    Raises:
        InputError: it has no joint readings or commands, or no such camera; names the feature.
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
    columns = {key: _padded([one.reader.array(one.index, key) for one in recordings]) for key in keys}
    for name in cameras:
        columns[IMAGES + name] = _padded([one.pictures(name) for one in recordings])
    return RecordedEpisodes(
        commands=columns.pop(ACTION),
        observation=columns,
        lengths=np.array([one.frames for one in recordings]),
        success=np.array([_known(one) for one in recordings]),
        names=tuple(f"{one.batch}:{one.index}" for one in recordings),
        source=str(folder),
    )


def require_actor(folder: Path, policy: str, policy_hash: str) -> None:
    """Refuse episodes that say of themselves that another than this policy acted; what says nothing is taken as it is.

    Args:
        folder: of the episodes.
        policy, policy_hash: whose they should be; an empty hash is nobody's.

    Raises:
        InputError: names an episode, who acted in it and the policy that was given.
    """
    for one in open_recordings(folder) if policy_hash else []:
        record = one.provenance
        if record is None or record.actor in _NOBODY:
            continue
        acted = str(record.extra.get("run", {}).get("policy_hash", ""))
        if policy_hash not in (acted, *record.actor.replace(",", " ").split()):
            who = f"{record.actor} ({acted[:12]})" if acted else record.actor
            raise InputError(
                f"In {one.batch}:{one.index} of {folder} {who} acted, not the policy {policy} ({policy_hash[:12]}): "
                "what is usual for one is not for another. Give episodes of this policy, or with --policy the one that "
                "acted; without --policy only robot and scene are watched."
            )


def contract_of(folder: Path, twin: Twin) -> Contract:
    """What a dataset's columns are, where no policy says it."""
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


def _known(recording: RecordedEpisode) -> float:
    return np.nan if recording.success is None else float(recording.success)


def _padded(series: list[NDArray[Any]]) -> NDArray[Any]:
    """Series of unlike length ``(T, …)`` as one array ``(m, T, …)``, their ends repeated."""
    longest = max(len(one) for one in series)
    return np.stack([one[np.minimum(np.arange(longest), len(one) - 1)] for one in series])
