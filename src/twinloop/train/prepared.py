"""What a training run is made of before its first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.policies.settings import read_settings
from twinloop.train.adapt_base import on_base
from twinloop.train.config import TrainConfig
from twinloop.train.data import Data, Ints, load
from twinloop.train.holdout import split
from twinloop.train.mixture import shares
from twinloop.train.recipes import Recipe, recipe
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
    """The configuration with what the kind's recipe says filled in, and the policy's settings checked and complete.

    Only the size of a batch is left open where nobody said it: it depends on what the policy sees.

    Raises:
        InputError: a setting is wrong, or is not as the policy to go on from has it.
    """
    if config.adapt is not None:
        return on_base(config, config.adapt)
    usual = recipe(config.policy)
    settings = read_settings(config.policy, _with_recipe(usual, config.settings), where="settings")
    said = {"steps": config.steps or usual.steps, "lr": config.lr or usual.lr}
    return config.model_copy(update={**said, "settings": settings.model_dump(mode="json", exclude={"kind"})})


def _with_recipe(usual: Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's settings with those given; pieces of a chunk are no longer than a chunk that was asked for."""
    made = {**usual.settings, **given}
    if "n_action_steps" not in given and isinstance(given.get("chunk_size"), int) and "n_action_steps" in made:
        made["n_action_steps"] = min(made["n_action_steps"], given["chunk_size"])
    return made


def prepare(config: TrainConfig, workspace: Path | None = None) -> Prepared:
    """Read the data of a resolved configuration and divide it; raises as `train.run.train`."""
    sources = open_sources(config.sources, workspace=workspace, keep_failures=config.keep_failures)
    data = load(sources, inputs=config.inputs, task=config.task, keep_failures=config.keep_failures)
    training, held_out = split(data, config.holdout, config.seed)
    frames = np.bincount(
        data.source_of[training], weights=(data.last - data.first + 1)[training], minlength=len(sources)
    )
    share = shares(data, config.sim_fraction, frames=frames)
    if not config.batch:
        usual = recipe(config.policy)
        config = config.model_copy(update={"batch": usual.batch_pictures if data.contract.cameras else usual.batch})
    return Prepared(config=config, data=data, training=training, held_out=held_out, share=share)
