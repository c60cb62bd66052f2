"""What of a policy moves when it is fine-tuned: all of it, the head, or a low-rank change of every matrix."""

from __future__ import annotations

import math

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]
from torch.nn.utils import parametrize  # pyright: ignore[reportMissingImports]

from twinloop.core.seeds import stream_key
from twinloop.policies.policy import Policy
from twinloop.train.additions import Batch


class LowRank(nn.Module):
    """W + up · down instead of a matrix W ``(out, in)`` that stays, with ``up`` ``(out, r)`` and ``down`` ``(r, in)``.

    Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022: ``up`` begins at zero, so that the
    policy begins as it was. The product is not scaled further (their α equals r).
    """

    def __init__(self, weight: Tensor, rank: int, chance: torch.Generator) -> None:
        super().__init__()
        out, into = weight.shape
        rank = min(rank, out, into)
        drawn = torch.randn(rank, into, generator=chance) / math.sqrt(into)
        self.down = nn.Parameter(drawn.to(weight))
        self.up = nn.Parameter(weight.new_zeros(out, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """The changed matrix."""
        return weight + self.up @ self.down


class L2Start(nn.Module):
    """The term ½ · ``weight`` · ‖w - w₀‖² of the weights that move, w₀ being those at the start.

    L2-SP of Li, Grandvalet & Davoine, ICML 2018. Of a matrix with a low-rank change that change is meant. Checkpoints
    need not hold w₀: a resumed run begins with the same policy.
    """

    def __init__(self, policy: Policy, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self._start = {name: p.detach().clone() for name, p in policy.named_parameters() if p.requires_grad}

    def forward(self, policy: Policy, batch: Batch) -> Tensor:
        """The term; it asks nothing of the batch."""
        del batch
        changes = [module.up @ module.down for module in policy.modules() if isinstance(module, LowRank)]
        if not changes:
            changes = [p - self._start[name] for name, p in policy.named_parameters() if name in self._start]
        return 0.5 * self.weight * torch.stack([change.square().sum() for change in changes]).sum()


def choose(policy: Policy, method: str, rank: int, seed: int) -> list[nn.Parameter]:
    """Leave only what a method moves with gradients, and return it; ``low_rank`` adds its products to the policy."""
    policy.requires_grad_(False)
    if method == "low_rank":
        return _with_low_rank(policy, rank, seed)
    moving = policy.network.head if method == "head" else policy
    moving.requires_grad_(True)
    return list(moving.parameters())


def merged(policy: Policy) -> Policy:
    """The policy with low-rank changes added to its matrices, so that it is like any other again."""
    for module in list(policy.modules()):
        if isinstance(module, nn.Linear) and parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    return policy.requires_grad_(True)


def _with_low_rank(policy: Policy, rank: int, seed: int) -> list[nn.Parameter]:
    low, high = stream_key(seed, "train/low_rank")
    chance = torch.Generator().manual_seed(low | (high << 31))
    moving: list[nn.Parameter] = []
    for module in [m for m in policy.network.modules() if isinstance(m, nn.Linear)]:
        change = LowRank(module.weight, rank, chance)
        parametrize.register_parametrization(module, "weight", change)
        moving += change.parameters()
    return moving
