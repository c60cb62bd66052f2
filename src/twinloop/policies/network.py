"""What every kind of network offers, and the pieces they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a network sees of n samples, in normal form.

    ``vectors`` by key ``(n, d)``, histories laid flat, oldest first; ``pictures`` by camera ``(n, t, 3, h, w)`` in
    [-1, 1]; ``domain`` ``(n,)`` the index of each sample's domain token, 0 where it is unknown.
    """

    vectors: Mapping[str, Tensor]
    pictures: Mapping[str, Tensor] = field(default_factory=dict)
    domain: Tensor | None = None


class Network(nn.Module, ABC):
    """Observations to chunks of commands, all in normal form.

    Its parameters stand under ``encoder`` (from observations), ``trunk`` and ``head`` (to commands), and whatever only
    training needs under names of its own. ``noise_size`` numbers per sample decide between the commands it could
    give, none where it gives only one.
    """

    noise_size: int = 0

    @abstractmethod
    def sample(self, inputs: Inputs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Chunks ``(n, chunk, k)`` and features ``(n, d)``, the latent before the head; noise ``(n, noise_size)``."""

    @abstractmethod
    def terms(
        self, inputs: Inputs, action: Tensor, is_pad: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each sample ``(n,)`` and what it is made of, ``(n,)`` each.

        ``action`` ``(n, chunk, k)``; where ``is_pad`` ``(n, chunk)`` an episode was over and nothing is asked.
        """


def masked_mean(errors: Tensor, is_pad: Tensor) -> Tensor:
    """The mean error of each sample ``(n,)`` over the steps of its chunk ``(n, chunk, k)`` that are no padding."""
    kept = (~is_pad).to(errors.dtype)
    return (errors.mean(dim=-1) * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1)


def normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers of a tensor's shape, on its device."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def perceptron(size: int, width: int, depth: int, dropout: float) -> nn.Sequential:
    """``depth`` layers of ``width`` units, each normalized."""
    layers: list[nn.Module] = []
    for number in range(depth):
        layers += [nn.Linear(width if number else size, width), nn.LayerNorm(width), nn.GELU()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers)
