"""Which twin an episode is held against: the one that made it, or the one that is named."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twinloop.core.errors import InputError, TwinloopError
from twinloop.curate.recording import Recording
from twinloop.dataset.reader import DatasetReader
from twinloop.generate.config import GenerateConfig
from twinloop.generate.replay import root_config
from twinloop.twin import Twin, load_twin


@dataclass(frozen=True, kw_only=True)
class TwinsOfEpisodes:
    """The twin of an episode, see `curate.registry.Twins`.

    A simulated episode is held against the twin that its provenance names, where that can be loaded; any other against
    ``named``. ``named`` is a reference as `load_twin` takes it, "" for none.
    """

    named: str = ""

    def __call__(self, recording: Recording) -> Twin:
        """The twin; raises `InputError` where there is none."""
        if recording.provenance is not None and recording.provenance.twin_hash:
            found = _made_with(recording.reader.path)
            if found is not None and found.hash == recording.provenance.twin_hash:
                return found
        if not self.named:
            raise InputError(f"There is no twin for {recording.where}. Name one with --twin.")
        return _loaded(self.named)


def require_fit(reference: str, recordings: Sequence[Recording]) -> list[str]:
    """What a twin that a person named lacks of the joints of each batch that is held against it, a line each.

    Args:
        reference: as `load_twin` takes it.
        recordings: what is scored; the first of each batch is looked at, where no twin made it and it can be read.

    Raises:
        InputError: it has not one joint of any of them.
        UnknownNameError: no such twin.
    """
    twin, firsts = _loaded(reference), {recording.batch: recording for recording in reversed(recordings)}
    asked = {batch: joints for batch, recording in sorted(firsts.items()) if (joints := _joints_to_hold(recording))}
    known = set(twin.robot.joints)
    if asked and known.isdisjoint(*asked.values()):
        batch, joints = next(iter(asked.items()))
        raise InputError(
            f"--twin {reference} has no joint of the data's: its joints are {', '.join(twin.robot.joints)}, those of "
            f"{batch} are {', '.join(joints)}. Name the twin of that robot, or leave --twin out."
        )
    return [
        f"{reference} lacks joints of {batch}: {', '.join(lacks)}. Checks that need all of them do without the twin."
        for batch, joints in asked.items()
        if (lacks := [joint for joint in joints if joint not in known])
    ]


def _joints_to_hold(recording: Recording) -> tuple[str, ...]:
    """The joints of an episode that no twin made; none where it cannot be read, which the checks say."""
    with contextlib.suppress(TwinloopError):
        if recording.provenance is None or not recording.provenance.twin_hash:
            return recording.raw.joints
    return ()


@functools.lru_cache(maxsize=4)
def _loaded(reference: str) -> Twin:
    return load_twin(reference)


@functools.lru_cache(maxsize=4)
def _made_with(folder: Path) -> Twin | None:
    """The twin that a dataset was generated with, None where it does not say or it cannot be loaded any more."""
    try:
        config = root_config(DatasetReader(folder))
        return load_twin(GenerateConfig.model_validate(config["generate"]).twin) if "generate" in config else None
    except (TwinloopError, ValueError):
        return None
