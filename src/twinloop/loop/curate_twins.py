"""Which twin an episode is held against: the one that made it, or the one that is named."""

from __future__ import annotations

import functools
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
