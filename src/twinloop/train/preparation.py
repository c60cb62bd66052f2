"""Prepare a training run: read the data, compute the sources' shares, and fill in default settings.

Defaults come from a recipe per policy kind or, for fine-tuning, from the base policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import Contract
from twinloop.core.errors import InputError
from twinloop.policies.config import CONFIG, RESTORE
from twinloop.policies.folder import find_onnx, read_config
from twinloop.policies.settings import read_settings
from twinloop.train.common_features import list_objects
from twinloop.train.config import AdaptConfig, TrainConfig
from twinloop.train.data import Ints, TrainingFrames, load_frames
from twinloop.train.holdout import split
from twinloop.train.mixture import compute_shares
from twinloop.train.sources import open_sources


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """Default training settings of a policy kind.

    Attributes:
        steps: steps of the optimizer.
        batch: samples per batch.
        lr: highest learning rate.
        batch_images: samples per batch for a policy that uses images, which need a hundred times as much memory.
        settings: policy settings that differ from the policy kind's own defaults.
    """

    steps: int
    batch: int
    lr: float
    batch_images: int = 32
    settings: Mapping[str, Any] = field(default_factory=dict)


# L1 loss and many executed steps per chunk: the scripted expert sometimes waits, and a policy that replans soon cannot
# observe that it has waited. Chosen by success on one task, pick and place with the SO-101.
RECIPES: Mapping[str, TrainingRecipe] = {
    "mlp": TrainingRecipe(
        steps=5000, batch=256, lr=1e-3, settings={"loss": "l1", "chunk_size": 32, "n_action_steps": 24}
    ),
    "act": TrainingRecipe(steps=5000, batch=64, lr=1e-3),
    "flow": TrainingRecipe(steps=10_000, batch=256, lr=1e-3, settings={"n_action_steps": 16}),
}


def find_recipe(kind: str) -> TrainingRecipe:
    """Return the recipe of a policy kind; an unknown kind gets steps, batch size and learning rate of ``mlp``."""
    return RECIPES.get(kind, TrainingRecipe(steps=5000, batch=256, lr=1e-3))


# A tenth of the rate of a new policy, and few steps: with ten demonstrations, more steps increase the held-out error
# for every method (docs/guides/training.md).
_SLOWER = 0.1
_STEPS = 100


def configure_fine_tuning(config: TrainConfig, adapt: AdaptConfig) -> TrainConfig:
    """Return a training configuration in which defaults for fine-tuning are filled in.

    Kind, settings and inputs are those of the base policy. If not set, the number of steps is 100 and the learning rate
    is a tenth of the default for a new policy.

    Args:
        config: the training configuration.
        adapt: its section ``adapt``, which names the base policy.

    Raises:
        InputError: If the folder is not a policy, or the configuration contradicts the base policy.
    """
    folder = Path(adapt.base)
    described = read_config(folder)
    if find_onnx(folder):
        raise InputError(
            f"{folder} is an ONNX file, which cannot be trained. Start from the policy from which it was exported "
            f"({str(described.get('source_hash', ''))[:12]})."
        )
    try:
        kind, settings = str(described["kind"]), dict(described["settings"])
        contract = Contract.from_json(described["contract"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / CONFIG} is damaged ({type(error).__name__}: {error}). {RESTORE}") from error
    settings.pop("kind", None)
    _require_same(config, folder, kind, settings)
    if adapt.method != "low_rank" and adapt.rank != AdaptConfig.model_fields["rank"].default:
        raise InputError(
            f"adapt: rank is a setting of method low_rank, but the method is {adapt.method}. Leave it out."
        )
    if config.align is not None and adapt.method == "head":
        raise InputError(
            "align changes the features, but method head keeps them fixed. Choose full or low_rank, or leave align out."
        )
    usual = find_recipe(kind)
    return config.model_copy(
        update={
            "policy": kind,
            "settings": settings,
            "inputs": config.inputs or _input_names(contract),
            "steps": config.steps or _STEPS,
            "lr": config.lr or usual.lr * _SLOWER,
        }
    )


def _require_same(config: TrainConfig, folder: Path, kind: str, settings: Mapping[str, Any]) -> None:
    if "policy" in config.model_fields_set and config.policy != kind:
        raise InputError(
            f"{folder} is a policy of kind {kind}, not {config.policy}. Leave --policy out to start from it."
        )
    for name, value in config.settings.items():
        if name not in settings or settings[name] != value:
            there = f"{name}={settings[name]}" if name in settings else f"no {name}"
            raise InputError(
                f"{folder} has {there}, and fine-tuning keeps the settings of a policy; {name}={value} was given. "
                "Leave it out, or train a new policy."
            )
    if config.domain_token is not None:
        raise InputError(f"domain_token makes new tokens, but {folder} keeps its tokens. Leave it out.")


def _input_names(contract: Contract) -> tuple[str, ...]:
    """Return the policy's inputs, named as in `config.TrainConfig`."""
    state = ("state",) if contract.state is not None else ()
    objects = (f"environment/{name}" for name in list_objects(contract.environment))
    return (*state, *objects, *contract.cameras)


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """Data and complete configuration of a training before its first step.

    Attributes:
        config: the configuration, without unset values.
        data: all frames.
        training: indices of the training episodes in ``data.episodes``.
        held_out: indices of the held-out episodes in ``data.episodes``.
        share: share of each source in a batch, ``(S,)`` for S sources.
    """

    config: TrainConfig
    data: TrainingFrames
    training: Ints
    held_out: Ints
    share: NDArray[np.float64]

    @property
    def training_ids(self) -> list[str]:
        """Ids of the training episodes, sorted and unique."""
        return sorted({self.data.episodes[place].episode_id for place in self.training})


def resolve_config(config: TrainConfig) -> TrainConfig:
    """Return the configuration with the recipe's defaults and with checked and completed policy settings.

    Only an unset batch size stays 0, because its default depends on the policy's inputs; see `prepare`.

    Raises:
        InputError: If a setting is wrong, or differs from that of the base policy.
    """
    if config.adapt is not None:
        return configure_fine_tuning(config, config.adapt)
    usual = find_recipe(config.policy)
    settings = read_settings(config.policy, _merge_recipe(usual, config.settings), where="settings")
    defaults = {"steps": config.steps or usual.steps, "lr": config.lr or usual.lr}
    return config.model_copy(update={**defaults, "settings": settings.model_dump(mode="json", exclude={"kind"})})


def _merge_recipe(usual: TrainingRecipe, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe's settings, overridden by the given ones.

    A recipe's ``n_action_steps`` is reduced to the given ``chunk_size`` if that is smaller.
    """
    made = {**usual.settings, **given}
    if "n_action_steps" not in given and isinstance(given.get("chunk_size"), int) and "n_action_steps" in made:
        made["n_action_steps"] = min(made["n_action_steps"], given["chunk_size"])
    return made


def prepare(config: TrainConfig, workspace: Path | None = None) -> TrainingSetup:
    """Read the data of a resolved configuration, and split it into training and held-out episodes.

    An unset batch size gets the recipe's default. Errors are those of `train.run.train`.

    Args:
        config: result of `resolve_config`.
        workspace: workspace for dataset versions and queries; by default the nearest one above the current folder.
    """
    sources = open_sources(config.sources, workspace=workspace, keep_failures=config.keep_failures)
    data = load_frames(sources, inputs=config.inputs, task=config.task, keep_failures=config.keep_failures)
    training, held_out = split(data, config.holdout, config.seed)
    frames = np.bincount(
        data.source_of[training], weights=(data.last - data.first + 1)[training], minlength=len(sources)
    )
    share = compute_shares(data.sources, config.sim_fraction, frames)
    if not config.batch:
        usual = find_recipe(config.policy)
        config = config.model_copy(update={"batch": usual.batch_images if data.contract.cameras else usual.batch})
    return TrainingSetup(config=config, data=data, training=training, held_out=held_out, share=share)
