"""Train policies from data: mixture, training loop, fine-tuning for a real robot.

`train.run.train` turns a configuration into a policy folder; it imports torch when it is called. Fine-tuning methods
(``train/adapt.py``, ``train/align.py``, ``train/pixels.py``) are passed to `train.run.train` as `TrainingAdditions`.
``train/lerobot.py`` trains LeRobot's own policies.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from twinloop.policies.factory import require_torch
from twinloop.train.additions import TrainingAdditions
from twinloop.train.config import CurriculumConfig, DomainConfig, SourceConfig, TrainConfig, read_config

if TYPE_CHECKING:
    from twinloop.policies.policy import Policy
    from twinloop.train.preparation import TrainingSetup
    from twinloop.train.run import TrainingResult


def train(
    config: TrainConfig,
    output: Path | str,
    *,
    workspace: Path | None = None,
    resume: bool = False,
    prepared: TrainingSetup | None = None,
    base: Policy | None = None,
    additions: Callable[[Policy, TrainingSetup], TrainingAdditions] | None = None,
) -> TrainingResult:
    """Train a policy and write it into a folder; see `train.run.train`.

    Raises:
        MissingDependencyError: torch is not installed.
    """
    require_torch()
    from twinloop.train.run import train as run

    return run(config, output, workspace=workspace, resume=resume, prepared=prepared, base=base, additions=additions)


__all__ = [
    "CurriculumConfig",
    "DomainConfig",
    "SourceConfig",
    "TrainConfig",
    "TrainingAdditions",
    "read_config",
    "train",
]
