"""Read the settings and the model card of a saved policy without torch, and write the card as Markdown.

The model card describes the policy's inputs and outputs, its training data, and its measured performance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

from twinloop.core.assignment import Assignment
from twinloop.core.console import MarkdownCode, markdown_cell, markdown_code, markdown_text, to_single_line
from twinloop.core.contract import Contract
from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.core.files import dumps
from twinloop.core.plain import JsonRecord
from twinloop.core.units import UnitMap
from twinloop.policies.config import CONFIG, check_config

_KINDS = {
    "mlp": "A multilayer perceptron that predicts a chunk of commands.",
    "act": "Action chunking with a transformer (Zhao et al., RSS 2023).",
    "flow": "Flow matching conditioned on the observation (Lipman et al., ICLR 2023).",
    "localizer": "A network that estimates tracked values from images, with or without a policy that acts on them.",
    "adaptive": "A perceptron that estimates parameters of the robot from a history (Kumar et al., RSS 2021).",
}


@dataclass(frozen=True, kw_only=True)
class PolicyCard(JsonRecord):
    """Model card: facts about a policy for the people who use it.

    Attributes:
        name: name of the policy.
        data: one row per source of the training data (name, hash, episodes, frames, real or simulated, share).
        provenance: origin of the policy (code version, twin hash, run, base policy, seconds of training).
        metrics: measured metrics by name.
        notes: sentences for people, for example about the limits of the policy.
        assignment: twin and task of the training data; None if they are unknown.
        sources: files of this twin and task, which are copied into the policy's folder, by their path in it.
    """

    name: str = ""
    data: tuple[Mapping[str, Any], ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    assignment: Assignment | None = None
    sources: Mapping[str, Path] = field(default_factory=dict[str, Path])
    json_names: ClassVar = {"sources": None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, where: str) -> PolicyCard:
        """Create a card from its JSON value, the inverse of `to_json`; ``where`` names the file in error messages.

        Raises:
            InputError: If an entry has an unexpected type.
        """
        given = value.get("assignment")
        try:
            return cls(
                assignment=None if given is None else Assignment.from_json(given, where=where),
                name=str(value.get("name", "")),
                data=tuple(dict(row) for row in value.get("data", ())),
                provenance=dict(value.get("provenance", {})),
                metrics=dict(value.get("metrics", {})),
                notes=tuple(str(note) for note in value.get("notes", ())),
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{where}: the card is damaged ({error}). Restore the file.") from error


def render_card(card: PolicyCard, config: Mapping[str, Any]) -> str:
    """Return the text of the policy folder's ``README.md``, with metadata for the Hugging Face Hub at the top.

    Args:
        card: the model card.
        config: content of the policy's ``config.json``.
    """
    contract = Contract.from_json(config["contract"])
    parts = [
        f"# {markdown_text(card.name or 'A policy')}",
        f"{_describe_kind(config)} {config['parameters']:,} parameters, hash {markdown_code(config['hash'])}.",
        '```python\nfrom twinloop.policies import open_policy\n\npolicy = open_policy("FOLDER")\n```',
        "## Contract\n\n" + _format_table(_contract_rows(contract, config["settings"])),
        "## Data\n\n" + _format_data(card, config),
        *([f"## Provenance\n\n{_format_table(card.provenance)}"] if card.provenance else []),
        *([f"## Measured\n\n{_format_table(card.metrics)}"] if card.metrics else []),
        *(["## Notes\n\n" + "\n".join(f"- {markdown_text(note)}" for note in card.notes)] if card.notes else []),
        "## Versions\n\n" + _format_table(config["versions"]),
    ]
    return f"---\n{_front_matter(contract)}---\n\n" + "\n\n".join(parts) + "\n"


def _describe_kind(config: Mapping[str, Any]) -> str:
    """Return a sentence on the kind of policy; for kinds of other packages it has the kind and the setting ``type``."""
    kind = config["kind"]
    kinds = (kind, config["settings"].get("type", "without a type"))
    return _KINDS.get(kind) or f"A policy of kind {', '.join(map(markdown_text, kinds))}."


def _front_matter(contract: Contract) -> str:
    tags = [
        "robotics",
        "twinloop",
        *map(to_single_line, (contract.robot_type, *([contract.task] if contract.task else []))),
    ]
    return yaml.safe_dump(
        {"library_name": "twinloop", "pipeline_tag": "robotics", "tags": tags}, sort_keys=False, allow_unicode=True
    )


def _contract_rows(contract: Contract, settings: Mapping[str, Any]) -> dict[str, Any]:
    rows: dict[str, Any] = {"robot": contract.robot_type, "rate": f"{contract.control_hz:g} Hz"}
    if contract.task:
        rows["task"] = contract.task
    if contract.state is not None:
        rows[MarkdownCode("observation.state")] = _format_joints(contract.state)
    if contract.environment:
        rows[MarkdownCode("observation.environment_state")] = ", ".join(contract.environment)
    for name, (height, width) in contract.cameras.items():
        rows[MarkdownCode(f"observation.images.{name}")] = f"{width}x{height} pixels, RGB, 8 bits"
    rows[MarkdownCode("action")] = (
        f"{_format_joints(contract.action)}: {contract.command}s, predicted {settings['action_space']}"
    )
    rows["observations"] = settings["n_obs_steps"]
    rows["chunk"] = f"{settings['chunk_size']} commands, {settings['n_action_steps']} executed"
    return rows


def _format_joints(units: UnitMap) -> str:
    return ", ".join(f"{unit.joint} ({unit.unit})" for unit in units.joints)


def _format_data(card: PolicyCard, config: Mapping[str, Any]) -> str:
    how, whose = config["settings"]["normalization"], config["statistics"]["source"]
    source = f"Normalized ({markdown_text(how)}) with the statistics of {markdown_text(whose)}."
    if not card.data:
        return source
    columns = list(dict.fromkeys(key for row in card.data for key in row))
    lines = ["| " + " | ".join(map(markdown_cell, columns)) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_format_cell(row.get(key, "")) for key in columns) + " |" for row in card.data]
    return "\n".join(lines) + f"\n\n{source}"


def _format_table(rows: Mapping[str, Any]) -> str:
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {_format_cell(key)} | {_format_cell(value)} |" for key, value in rows.items())]
    )


def _format_cell(value: object) -> str:
    if isinstance(value, int | float):
        return f"{value:.6g}" if isinstance(value, float) else dumps(value)
    return markdown_cell(value if isinstance(value, str) else dumps(value))


WEIGHTS = "model.safetensors"
README = "README.md"
ONNX_SUFFIX = ".onnx"
ONNX_NAME = f"policy{ONNX_SUFFIX}"  # in a policy's folder


def find_onnx(path: Path) -> Path | None:
    """Return the ONNX file of a policy that is a file ``*.onnx``, or a folder with ``policy.onnx``; else None.

    A folder with ``config.json`` is a policy with weights, whatever else is in it.
    """
    if path.suffix == ONNX_SUFFIX and not path.is_dir():
        return path
    file = path / ONNX_NAME
    return file if file.is_file() and not (path / CONFIG).exists() else None


def is_policy_path(reference: str | Path) -> bool:
    """Return whether a reference to a policy is the path of a folder or ONNX file, not a name in the registry."""
    path = Path(reference)
    return path.is_dir() or (path.suffix == ONNX_SUFFIX and path.is_file())


def read_config(folder: Path) -> dict[str, Any]:
    """Read and check the ``config.json`` of a policy's folder, or the same content of a policy's ONNX file.

    Raises:
        InputError: If the folder does not exist or has no policy, a key is missing, or the file is of a newer version.
        MissingDependencyError: If the policy is an ONNX file, and the package onnx is not installed.
    """
    file = find_onnx(folder)
    if file is not None:
        from twinloop.policies.onnx_file import read_onnx

        return dict(read_onnx(file).config)
    path = folder / CONFIG
    if not path.is_file():
        there = "no such folder" if not folder.is_dir() else f"it has no {CONFIG}"
        raise InputError(
            f"{folder} is not a policy: {there}. A policy is a folder with {CONFIG} and {WEIGHTS}, or an ONNX file of "
            "`twinloop policies export`."
        )
    return check_config(read_json(path), where=str(path))


def read_card(folder: str | Path) -> PolicyCard:
    """Read the model card of a saved policy.

    Raises:
        InputError: If the folder has no policy, or the card is damaged.
    """
    path = Path(folder)
    return PolicyCard.from_json(read_config(path).get("card", {}), where=str(path / CONFIG))
