"""The policy that adaptation goes on from: what a configuration takes over from its folder, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twinloop.core.contract import Contract
from twinloop.core.errors import InputError
from twinloop.policies.folder import CONFIG, RESTORE, read_config
from twinloop.train.config import AdaptConfig, TrainConfig
from twinloop.train.recipes import recipe

# A tenth of the rate of a new policy, and few steps: of ten demonstrations more make the held-out error grow, whatever
# moves (docs/adaptation.md).
_SLOWER = 0.1
_STEPS = 100


def on_base(config: TrainConfig, adapt: AdaptConfig) -> TrainConfig:
    """The configuration with kind, settings and inputs of the policy that it goes on from, and rates that fit it.

    Raises:
        InputError: the folder is no policy, or the configuration says something else than its policy is.
    """
    folder = Path(adapt.base)
    described = read_config(folder)
    try:
        kind, settings = str(described["kind"]), dict(described["settings"])
        contract = Contract.from_json(described["contract"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / CONFIG} is damaged ({type(error).__name__}: {error}). {RESTORE}") from error
    settings.pop("kind", None)
    _require_same(config, folder, kind, settings)
    if adapt.method != "low_rank" and adapt.rank != AdaptConfig.model_fields["rank"].default:
        raise InputError(f"adapt: rank belongs to method low_rank, and the method is {adapt.method}. Leave it out.")
    if config.align is not None and adapt.method == "head":
        raise InputError(
            "align moves the features, and with method head they stay as they are. Choose full or low_rank, or leave "
            "align out."
        )
    usual = recipe(kind)
    return config.model_copy(
        update={
            "policy": kind,
            "settings": settings,
            "inputs": config.inputs or _inputs(contract),
            "steps": config.steps or _STEPS,
            "lr": config.lr or usual.lr * _SLOWER,
        }
    )


def _require_same(config: TrainConfig, folder: Path, kind: str, settings: Mapping[str, Any]) -> None:
    if "policy" in config.model_fields_set and config.policy != kind:
        raise InputError(
            f"{folder} is a policy of kind {kind}, not {config.policy}. Leave --policy out to go on from it."
        )
    for name, value in config.settings.items():
        if name not in settings or settings[name] != value:
            there = f"{name}={settings[name]}" if name in settings else f"no {name}"
            raise InputError(
                f"{folder} has {there}, and a policy to go on from keeps its settings; {name}={value} was asked for. "
                "Leave it out, or train a new policy."
            )
    if config.domain_token is not None:
        raise InputError(f"domain_token makes new tokens, and {folder} keeps those it has. Leave it out.")


def _inputs(contract: Contract) -> tuple[str, ...]:
    """What the policy observes, as `config.TrainConfig` names it."""
    rows = (("state", contract.state is not None), ("environment", bool(contract.environment)))
    return (*(name for name, there in rows if there), *contract.cameras)
