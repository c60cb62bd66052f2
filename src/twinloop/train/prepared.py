"""What a training run is made of before its first step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.policies.settings import read_settings
from twinloop.train.config import TrainConfig
from twinloop.train.data import Data, Ints, load
from twinloop.train.holdout import split
from twinloop.train.mixture import shares
from twinloop.train.sources import open_sources


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a run is made of before its first step. Episodes are places in ``data.episodes``."""

    config: TrainConfig
    data: Data
    training: Ints
    held_out: Ints
    share: NDArray[np.float64]

    @property
    def training_ids(self) -> list[str]:
        """Names of the episodes that are trained on."""
        return sorted({self.data.episodes[place].episode_id for place in self.training})


def resolved(config: TrainConfig) -> TrainConfig:
    """The configuration with the policy's settings checked and their defaults filled in."""
    given = dict(config.settings)
    settings = read_settings(config.policy, given, where="settings")
    return config.model_copy(update={"settings": settings.model_dump(mode="json", exclude={"kind"})})


def prepare(config: TrainConfig, workspace: Path | None = None) -> Prepared:
    """Read the data and divide it; raises as `train.run.train`."""
    sources = open_sources(config.sources, workspace=workspace, keep_failures=config.keep_failures)
    data = load(sources, inputs=config.inputs, task=config.task, keep_failures=config.keep_failures)
    training, held_out = split(data, config.holdout, config.seed)
    frames = np.bincount(
        data.source_of[training], weights=(data.last - data.first + 1)[training], minlength=len(sources)
    )
    share = shares(data, config.sim_fraction, frames=frames)
    return Prepared(config=config, data=data, training=training, held_out=held_out, share=share)
