"""How each kind of policy is trained where nobody says otherwise; measured in docs/training.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Steps, samples in each, the highest learning rate, and settings of the policy that differ from its own.

    Where the policy sees pictures, ``batch_pictures`` samples are in each: they weigh a hundred times as much.
    """

    steps: int
    batch: int
    lr: float
    batch_pictures: int = 32
    settings: Mapping[str, Any] = field(default_factory=dict)


# Absolute errors and long pieces of a chunk: the scripted expert waits at times, and a policy that soon looks again
# does not know that it has waited. Chosen by success on one task, pick and place with the SO-101.
RECIPES: Mapping[str, Recipe] = {
    "mlp": Recipe(steps=5000, batch=256, lr=1e-3, settings={"loss": "l1", "chunk_size": 32, "n_action_steps": 24}),
    "act": Recipe(steps=5000, batch=64, lr=1e-3),
    "flow": Recipe(steps=10_000, batch=256, lr=1e-3, settings={"n_action_steps": 16}),
}


def recipe(kind: str) -> Recipe:
    """The recipe of a kind; of one that is not ours, the regression's without its settings."""
    return RECIPES.get(kind, Recipe(steps=5000, batch=256, lr=1e-3))
