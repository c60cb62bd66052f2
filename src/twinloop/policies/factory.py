"""Create new policies and open saved ones; this module imports torch only when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from twinloop.core.contract import ACTION, ENVIRONMENT, STATE, Contract
from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.registry import Registry
from twinloop.policies.config import CONFIG, parse_config
from twinloop.policies.folder import WEIGHTS, find_onnx, read_config
from twinloop.policies.settings import (
    KINDS,
    ActSettings,
    AdaptiveSettings,
    FlowSettings,
    LocalizerSettings,
    MlpSettings,
    Settings,
    read_settings,
)
from twinloop.policies.statistics import Statistics

if TYPE_CHECKING:
    from twinloop.policies.network import Network
    from twinloop.policies.policy import Policy


def require_torch() -> ModuleType:
    """Import and return the package ``torch``, after checking that safetensors is installed too.

    Raises:
        MissingDependencyError: If torch or safetensors is not installed.
    """
    try:
        import safetensors.torch  # noqa: F401  # pyright: ignore[reportMissingImports]
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        what = f"Policies need torch and safetensors, but {error.name} is not installed."
        raise MissingDependencyError(what, remedy="pip install 'twinloop[train]'") from error
    return torch


# Functions that open other kinds of saved policies, by kind; a user's file cannot be a kind.
OTHER_KINDS: Registry[Callable[[Path], Any]] = Registry(
    "policy kind", {}, group="twinloop.policies", listed_names=lambda: KINDS
)


def new_policy(
    kind: str,
    contract: Contract,
    settings: Mapping[str, Any] | Settings | None,
    statistics: Statistics,
    *,
    seed: int = 0,
    pretrained: bool = True,
) -> Policy:
    """Create an untrained policy; torch's global random state is not changed.

    Args:
        kind: one of `settings.KINDS`.
        contract: contract of the policy's observations and commands.
        settings: settings of that kind, as a mapping or a settings object; missing values get the defaults.
        statistics: statistics of every column that the policy reads or predicts, for the normalization.
        seed: seed of the initial weights.
        pretrained: whether layers with weights from other data get these weights now.

    Raises:
        UnknownNameError: If the kind does not exist, or the statistics of an input are missing.
        InputError: If a setting is invalid, or the settings do not fit the contract.
        MissingDependencyError: If torch, or the package with weights from other data, is not installed.
    """
    chosen = read_settings(kind, settings)
    _check_contract(contract, chosen)
    torch = require_torch()
    from twinloop.policies.policy import Policy
    from twinloop.policies.pretrained import load_pretrained_layers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(chosen, LocalizerSettings):
            made = _make_localizer(contract, chosen, statistics)
        else:
            made = Policy(contract, chosen, statistics, _make_network(contract, chosen))
    if pretrained:
        load_pretrained_layers(made)
    return made


def _make_localizer(contract: Contract, settings: LocalizerSettings, statistics: Statistics) -> Policy:
    from twinloop.policies.localizer import Localizer

    control = None
    if settings.control is not None:
        where = "the control policy of a localizer"
        of, chosen, measured = parse_config(settings.control.model_dump(), where=where)
        control = new_policy(chosen.kind, of, chosen, measured, pretrained=False)
    return Localizer(contract, settings, statistics, control)


def open_policy(folder: str | Path) -> Policy:
    """Open a saved policy on the CPU, after comparing its content with the hash in its folder or file.

    An ONNX file, or a folder with ``policy.onnx`` only, gives an `onnx_policy.OnnxPolicy`, which onnxruntime runs.
    Other packages can add kinds of policies with entry points of the group ``twinloop.policies``. The name of the entry
    point is the kind. Its object is a function from the folder to a `Predictor` that also has a ``hash``. LeRobot's
    policies are such a kind.

    Raises:
        InputError: If a file of the folder is missing, damaged, of a newer version, or not safetensors.
        UnknownNameError: If no installed package has this kind.
        MissingDependencyError: If torch, or a package for another kind, is not installed.
    """
    folder = Path(folder)
    file = find_onnx(folder)
    if file is not None:
        return _open_onnx(file)
    config = read_config(folder)
    if config["kind"] not in KINDS:
        return OTHER_KINDS.find(str(config["kind"]), where=str(folder / CONFIG))(folder)
    require_torch()
    from twinloop.policies.weights import read_weights, require_matching_tensors

    contract, settings, statistics = parse_config(config, where=str(folder / CONFIG))
    tensors = read_weights(folder)
    policy = new_policy(settings.kind, contract, settings, statistics, pretrained=False)
    require_matching_tensors(tensors, policy.state_dict(), where=str(folder / WEIGHTS))
    policy.load_state_dict(tensors)
    if policy.hash != config["hash"]:
        raise InputError(
            f"{folder} was saved with the hash {config['hash']}, but its content has {policy.hash}: weights, settings "
            "or contract were changed after it was saved. Restore it from its origin, or save its present content "
            "as a new policy."
        )
    return policy


def _open_onnx(file: Path) -> Any:
    from twinloop.policies.onnx_policy import OnnxPolicy

    return OnnxPolicy.open(file)


def _make_network(contract: Contract, settings: Settings) -> Network:
    from twinloop.policies.act import ActNetwork
    from twinloop.policies.adaptive import AdaptiveNetwork
    from twinloop.policies.flow import FlowNetwork
    from twinloop.policies.network import MlpNetwork

    match settings:
        case MlpSettings():
            return MlpNetwork(contract, settings)
        case ActSettings():
            return ActNetwork(contract, settings)
        case FlowSettings():
            return FlowNetwork(contract, settings)
        case AdaptiveSettings():
            return AdaptiveNetwork(contract, settings)
        case LocalizerSettings():
            raise AssertionError("_make_localizer makes it")


def _check_contract(contract: Contract, settings: Settings) -> None:
    if contract.state is None and not contract.environment and not contract.cameras:
        raise InputError(
            f"A policy needs an observation, but this contract has neither {STATE}, nor {ENVIRONMENT}, nor cameras."
        )
    if settings.command_history and contract.state is None:
        raise InputError(f"A policy of kind {settings.kind} remembers {STATE}, which this contract does not have.")
    if settings.action_space == "delta_to_state":
        read = () if contract.state is None else contract.state.names
        if read != contract.action.names:
            raise InputError(
                f"delta_to_state predicts {ACTION} relative to {STATE}, so both need the same joints: {ACTION} has "
                f"{', '.join(contract.action.names)}, {STATE} has {', '.join(read) or 'none'}. Choose absolute."
            )
    limits, joints = settings.command_limits, contract.action.names
    if limits is not None and len(limits.low) != len(joints):
        raise InputError(
            f"command_limits are given for {len(limits.low)} joints, but {ACTION} has {len(joints)}: "
            f"{', '.join(joints)}. Give one number for each."
        )
    smallest = settings.images.smallest_image
    for name, size in contract.cameras.items():
        if min(size) < smallest:
            raise InputError(
                f"Camera {name} gives {size[1]}x{size[0]} pixels; the layers of the image encoder that halve "
                f"an image need at least {smallest}. Give fewer channels, or larger images."
            )
