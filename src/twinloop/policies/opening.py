"""Make policies and open saved ones; nothing of this package needs torch before that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from twinloop.core.contract import ACTION, ENVIRONMENT, STATE, Contract
from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.registry import Registry
from twinloop.policies.folder import CONFIG, WEIGHTS, read_config
from twinloop.policies.settings import KINDS, ActSettings, FlowSettings, MlpSettings, Settings, read_settings
from twinloop.policies.statistics import Statistics

if TYPE_CHECKING:
    from twinloop.policies.network import Network
    from twinloop.policies.policy import Policy


def require_torch() -> ModuleType:
    """The package ``torch``, once it and safetensors are known to be there.

    Raises:
        MissingDependencyError: one of them is not installed.
    """
    try:
        import safetensors.torch  # noqa: F401  # pyright: ignore[reportMissingImports]
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        what = f"Policies are torch networks in safetensors files, and {error.name} is not installed."
        raise MissingDependencyError(what, remedy="pip install 'twinloop[train]'") from error
    return torch


# Openers of saved policies of other kinds. A policy's folder names its kind, so that a user's file cannot be one.
OTHER_KINDS: Registry[Callable[[Path], Any]] = Registry(
    "policy kind", {}, group="twinloop.policies", shown=lambda: KINDS
)


def new_policy(
    kind: str,
    contract: Contract,
    settings: Mapping[str, Any] | Settings | None,
    statistics: Statistics,
    *,
    seed: int = 0,
) -> Policy:
    """A policy that knows nothing yet, its weights drawn by ``seed``; the caller's random state stays as it is.

    Args:
        kind: ``mlp``, ``act`` or ``flow``.
        contract: what it will see and command.
        settings: of that kind, in plain values or checked; what is not given is the default.
        statistics: of every column it reads and of what it predicts.
        seed: of the first weights.

    Raises:
        UnknownNameError: no such kind, or a statistic is missing.
        InputError: settings or contract make no policy; says why.
        MissingDependencyError: torch is not installed.
    """
    chosen = read_settings(kind, settings)
    _check_contract(contract, chosen)
    torch = require_torch()
    from twinloop.policies.policy import Policy

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Policy(contract, chosen, statistics, _network(contract, chosen))


def open_policy(folder: str | Path) -> Policy:
    """The policy saved in a folder, on the CPU, its content compared with its hash.

    Kinds that are not of this room come by the entry points ``twinloop.policies``: a kind's name, and a function from
    the folder to something that predicts (`Predicts`) and has a ``hash``. LeRobot's policies are such a kind.

    Raises:
        InputError: what of the folder is missing, damaged, newer or no safetensors; names it.
        UnknownNameError: a kind that nothing installed here knows.
        MissingDependencyError: torch, or what another kind needs, is not installed.
    """
    folder = Path(folder)
    config = read_config(folder)
    if config["kind"] not in KINDS:
        return OTHER_KINDS.find(str(config["kind"]), where=str(folder / CONFIG))(folder)
    require_torch()
    from twinloop.policies.weights import read_weights, require_fitting

    contract, settings, statistics = _described(config, where=str(folder / CONFIG))
    tensors = read_weights(folder)
    policy = new_policy(settings.kind, contract, settings, statistics)
    require_fitting(tensors, policy.state_dict(), where=str(folder / WEIGHTS))
    policy.load_state_dict(tensors)
    if policy.hash != config["hash"]:
        raise InputError(
            f"{folder} says its hash is {config['hash']}, and its content has {policy.hash}: weights, settings or "
            "contract were changed after it was saved. Restore it from its origin, or save what it is now as a policy "
            "of its own."
        )
    return policy


def _network(contract: Contract, settings: Settings) -> Network:
    from twinloop.policies.act import ActNetwork
    from twinloop.policies.flow import FlowNetwork
    from twinloop.policies.network import MlpNetwork

    match settings:
        case MlpSettings():
            return MlpNetwork(contract, settings)
        case ActSettings():
            return ActNetwork(contract, settings)
        case FlowSettings():
            return FlowNetwork(contract, settings)


def _check_contract(contract: Contract, settings: Settings) -> None:
    if contract.state is None and not contract.environment and not contract.cameras:
        raise InputError(
            f"A policy needs something to see, and this contract has neither {STATE}, nor {ENVIRONMENT}, nor cameras."
        )
    if settings.action_space == "delta_to_state":
        read = () if contract.state is None else contract.state.names
        if read != contract.action.names:
            raise InputError(
                f"delta_to_state predicts {ACTION} relative to {STATE}, so both need the same joints: {ACTION} has "
                f"{', '.join(contract.action.names)}, {STATE} has {', '.join(read) or 'none'}. Choose absolute."
            )
    smallest = 2 ** len(settings.pictures.channels)
    for name, size in contract.cameras.items():
        if min(size) < smallest:
            raise InputError(
                f"Camera {name} gives {size[1]}x{size[0]} pixels; {len(settings.pictures.channels)} layers that halve "
                f"a picture need at least {smallest}. Give fewer channels, or larger pictures."
            )


def _described(config: Mapping[str, Any], *, where: str) -> tuple[Contract, Settings, Statistics]:
    try:
        contract = Contract.from_json(config["contract"])
        statistics = Statistics.from_json(config["statistics"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{where} is damaged: its contract or statistics cannot be read ({type(error).__name__}: {error}). Restore "
            "the folder from its origin."
        ) from error
    return contract, read_settings(str(config["kind"]), config["settings"], where=where), statistics
