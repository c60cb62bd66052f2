"""Define flow matching: a velocity field, conditioned on the observation, transforms noise to chunks."""

from __future__ import annotations

import math

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import Contract
from twinloop.policies.network import Network, NetworkInputs, RowEncoder, draw_normal, make_perceptron, masked_mean
from twinloop.policies.settings import FlowSettings
from twinloop.policies.statistics import action_size

_TIME_SIZE = 32  # sines and cosines of the time
_FASTEST = 1000.0  # ratio of the longest to the shortest period, as usual for times in [0, 1]


class VelocityBlock(nn.Module):
    """A residual layer whose scale and shift depend on the condition (Perez et al., "FiLM", AAAI 2018)."""

    def __init__(self, width: int, condition: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Linear(condition, 2 * width)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, width))

    def forward(self, hidden: Tensor, condition: Tensor) -> Tensor:
        """Return the layer's output, ``(n, width)``."""
        scale, shift = self.modulation(condition).chunk(2, dim=-1)
        return hidden + self.layers(self.norm(hidden) * (1 + scale) + shift)


class VelocityField(nn.Module):
    """Velocity ``(n, size)`` at a point ``(n, size)`` and a time ``(n,)``, given features ``(n, d)``."""

    def __init__(self, size: int, features: int, settings: FlowSettings) -> None:
        super().__init__()
        width = settings.width
        self.time = nn.Sequential(nn.Linear(_TIME_SIZE, width), nn.GELU())
        self.condition = nn.Sequential(nn.Linear(width + features, width), nn.GELU())
        self.first = nn.Linear(size, width)
        self.blocks = nn.ModuleList(VelocityBlock(width, width, settings.dropout) for _ in range(settings.depth))
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, size)

    def forward(self, point: Tensor, time: Tensor, features: Tensor) -> Tensor:
        """Return the velocity, ``(n, size)``."""
        condition = self.condition(torch.cat([self.time(_time_encodings(time)), features], dim=-1))
        hidden = self.first(point)
        for block in self.blocks:
            hidden = block(hidden, condition)
        return self.last(self.norm(hidden))


class FlowNetwork(Network):
    """Network that samples one of the demonstrated answers to an observation; the noise selects it.

    On the straight path x_t = (1 - t) · noise + t · action the velocity is action - noise. The field that is
    nearest to it in the mean transforms the noise distribution to that of the actions (Lipman et al. 2023, theorem 2).
    """

    def __init__(self, contract: Contract, settings: FlowSettings) -> None:
        super().__init__()
        self.settings = settings
        self.noise_size = settings.chunk_size * action_size(contract)
        self.encoder = RowEncoder(contract, settings)
        self.trunk = make_perceptron(self.encoder.size, settings.features, 2, settings.dropout)
        self.head = VelocityField(self.noise_size, settings.features, settings)

    def sample(self, inputs: NetworkInputs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return chunks, integrated from the noise along the velocity field, and features."""
        features = self.trunk(self.encoder(inputs))
        point, step = noise, 1.0 / self.settings.steps
        for number in range(self.settings.steps):
            time = point.new_full((len(point),), number * step)
            velocity = self.head(point, time, features)
            if self.settings.solver == "midpoint":
                velocity = self.head(point + step / 2 * velocity, time + step / 2, features)
            point = point + step * velocity
        return point.unflatten(-1, (self.settings.chunk_size, -1)), features

    def terms(
        self, inputs: NetworkInputs, action: Tensor, is_pad: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared error of the velocity at a random time on each path, and it again as the only part."""
        features = self.trunk(self.encoder(inputs))
        target = action.flatten(1)
        noise = draw_normal(target, generator)
        time = torch.rand(len(target), generator=generator, dtype=target.dtype, device=target.device)
        point = torch.lerp(noise, target, time[:, None])
        difference = self.head(point, time, features) - (target - noise)
        error = masked_mean(difference.square().reshape(action.shape), is_pad)
        return error, {"velocity": error}


def _time_encodings(time: Tensor) -> Tensor:
    """Return cosines and sines of a time in [0, 1] at geometric rates, ``(n, _TIME_SIZE)``."""
    half = _TIME_SIZE // 2
    exponents = torch.arange(half, dtype=time.dtype, device=time.device) / (half - 1)
    angles = 2 * math.pi * time[:, None] * _FASTEST**exponents / _FASTEST**0.5
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
