"""Train policies from data: mix several data sources, run the training loop, and fine-tune for a real robot.

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
    """Train a policy and write it into the folder ``output``; `train.run.train` describes all errors.

    Args:
        config: data, policy and training settings.
        output: folder of the new policy.
        workspace: workspace for dataset versions and queries; by default the nearest one above the current folder.
        resume: continue from the checkpoint in ``output``.
        prepared: data that `preparation.prepare` has already read for this configuration.
        base: policy to start from; it is not changed.
        additions: function that makes the additions to the training loop, instead of those in the configuration.

    Raises:
        MissingDependencyError: If torch is not installed.
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
