"""The command line of ``lerobot-train``, and what it logs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from twinloop.core.errors import InputError
from twinloop.train.config import TrainConfig

PREFIX = "lerobot:"
DATASET, RUN = "dataset", "run"
STEPS = 100_000  # lerobot-train's own
_CHECKPOINTS = 5  # as lerobot-train has with its own steps and save_freq
_POINTS = 100  # of the loss curve

# lerobot-train logs "step:1K smpl:8K ep:3 epch:0.12 loss:2.345 grdn:…" every log_freq steps, large numbers shortened.
_LINE = re.compile(r"step:\S+ .*?loss:([-+.\deE]+|nan|inf)")

# What of a configuration lerobot-train has no place for.
_NOT_THERE = ("curriculum", "domain_token", "adapt", "align", "pixels", "ema", "lr", "patience")


def train_words(config: TrainConfig, kind: str, output: Path) -> list[str]:
    """The arguments of ``lerobot-train`` for a new run of the policy in ``output``."""
    settings = {"device": config.device, "push_to_hub": False, **config.settings}
    path = settings.pop("path", None)
    steps, work = config.steps or STEPS, work_folder(output)
    words = {
        "dataset.repo_id": f"local/{output.name or 'mixture'}",
        "dataset.root": str((work / DATASET).resolve()),
        **({"policy.type": kind} if path is None else {"policy.path": path}),
        **{f"policy.{name}": value for name, value in settings.items()},
        "output_dir": str((work / RUN).resolve()),
        "job_name": output.name or "twinloop",
        "steps": steps,
        **({"batch_size": config.batch} if config.batch else {}),
        "seed": config.seed,
        **({"num_workers": config.threads} if config.threads else {}),
        "save_freq": max(1, steps // _CHECKPOINTS),
        "log_freq": every(config),
        "wandb.enable": False,
    }
    return [f"--{name}={_plain(value)}" for name, value in words.items()]


def resume_words(work: Path, config: TrainConfig) -> list[str]:
    """The arguments of ``lerobot-train`` that go on from the last checkpoint; the rest stands in its own file.

    Raises:
        InputError: there is none.
    """
    file = work / RUN / "checkpoints" / "last" / "pretrained_model" / "train_config.json"
    if not file.is_file():
        raise InputError(f"{work} holds no checkpoint of LeRobot to resume: {file} is missing. Train without --resume.")
    return [f"--config_path={file.resolve()}", "--resume=true", f"--steps={config.steps or STEPS}"]


def parsed(line: str) -> float | None:
    """The loss of a line that ``lerobot-train`` logs, None of any other."""
    found = _LINE.search(line)
    return None if found is None else float(found[1])


def checked_kind(config: TrainConfig) -> str:
    """The policy's type as LeRobot calls it."""
    kind = config.policy.removeprefix(PREFIX)
    if not re.fullmatch(r"[a-z0-9_]+", kind):
        raise InputError(f"--policy {config.policy}: write lerobot:TYPE with LeRobot's name, such as lerobot:act.")
    plain = TrainConfig(sources=config.sources)
    said = [name for name in _NOT_THERE if getattr(config, name) != getattr(plain, name)]
    if said:
        extra = " Say the rate with --set optimizer_lr=…" if "lr" in said else ""
        raise InputError(f"lerobot-train has no {', '.join(said)}. Leave it out, or train mlp, act or flow.{extra}")
    return kind


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def every(config: TrainConfig) -> int:
    """Steps between two lines of its log."""
    return max(1, (config.steps or STEPS) // _POINTS)


def work_folder(output: Path) -> Path:
    """Where the mixture and LeRobot's own run of a policy's folder lie."""
    return output.with_name(f"{output.name}.lerobot")
