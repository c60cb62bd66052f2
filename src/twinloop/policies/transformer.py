"""A plain transformer whose every matrix is an ``nn.Linear``, so that adapters find all of them."""

from __future__ import annotations

import math

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]


class Attention(nn.Module):
    """Scaled dot-product attention with several heads (Vaswani et al., "Attention is all you need", 2017)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, tokens: Tensor, memory: Tensor, is_pad: Tensor | None = None) -> Tensor:
        """What tokens ``(n, a, width)`` find in a memory ``(n, b, width)``, blind to where ``is_pad`` ``(n, b)``."""
        query, key, value = (self._split(x) for x in (self.query(tokens), self.key(memory), self.value(memory)))
        mask = None if is_pad is None else ~is_pad[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return self.out(found.transpose(1, 2).flatten(2))

    def _split(self, tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """Attention to oneself, with ``crosses`` also to a memory, and a perceptron, each normalized beforehand.

    Normalizing before rather than after, as the paper's code can too, trains without a warm-up (Xiong et al., "On layer
    normalization in the transformer architecture", ICML 2020).
    """

    def __init__(self, width: int, heads: int, feed_forward: int, dropout: float, *, crosses: bool = False) -> None:
        super().__init__()
        self.norm_self, self.norm_last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.self_attention = Attention(width, heads, dropout)
        if crosses:
            self.norm_cross, self.cross_attention = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.feed = nn.Sequential(
            nn.Linear(width, feed_forward), nn.ReLU(), nn.Dropout(dropout), nn.Linear(feed_forward, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, memory: Tensor | None = None, is_pad: Tensor | None = None) -> Tensor:
        """Tokens ``(n, a, width)``; ``is_pad`` ``(n, a)`` says which of them nobody may see."""
        seen = self.norm_self(tokens)
        tokens = tokens + self.dropout(self.self_attention(seen, seen, is_pad))
        if memory is not None:
            tokens = tokens + self.dropout(self.cross_attention(self.norm_cross(tokens), memory))
        return tokens + self.dropout(self.feed(self.norm_last(tokens)))


class Encoder(nn.Module):
    """Layers that attend to themselves, normalized at the end."""

    def __init__(self, layers: int, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads, feed_forward, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, is_pad: Tensor | None = None) -> Tensor:
        """Tokens ``(n, a, width)``."""
        for layer in self.layers:
            tokens = layer(tokens, None, is_pad)
        return self.norm(tokens)


class Decoder(nn.Module):
    """Layers that attend to themselves and to a memory, normalized at the end."""

    def __init__(self, layers: int, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        made = (Layer(width, heads, feed_forward, dropout, crosses=True) for _ in range(layers))
        self.layers = nn.ModuleList(made)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, memory: Tensor) -> Tensor:
        """Tokens ``(n, a, width)`` that look at a memory ``(n, b, width)``."""
        for layer in self.layers:
            tokens = layer(tokens, memory)
        return self.norm(tokens)


def places(count: int, width: int) -> Tensor:
    """Sinusoidal places ``(count, width)`` (Vaswani et al. 2017, section 3.5)."""
    rates = torch.exp(-math.log(10_000.0) * torch.arange(0, width, 2) / width)
    angles = torch.arange(count)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def places_in_picture(height: int, width: int, size: int) -> Tensor:
    """Sinusoidal places of cells, row by row, ``(height · width, size)``: half says the row, half the column."""
    rows, columns = places(height, size // 2), places(width, size // 2)
    shape = (height, width, size // 2)
    return torch.cat([rows[:, None].expand(shape), columns[None].expand(shape)], dim=-1).flatten(0, 1)
