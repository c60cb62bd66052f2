"""Define flow matching: a learned velocity field, conditioned on the observation, transforms noise to commands."""

from __future__ import annotations

import math

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import Contract
from twinloop.policies.network import Network, NetworkInputs, VectorEncoder, draw_normal, make_perceptron, masked_mean
from twinloop.policies.settings import FlowSettings
from twinloop.policies.statistics import action_size

_TIME_SIZE = 32  # sines and cosines of the time
_FASTEST = 1000.0  # ratio of the longest to the shortest period, as usual for times in [0, 1]


class VelocityBlock(nn.Module):
    """Residual layer whose scale and shift depend on a condition vector (Perez et al., "FiLM", AAAI 2018).

    Args:
        width: number of features of the layer.
        condition: number of elements of the condition vector.
        dropout: dropout probability.
    """

    def __init__(self, width: int, condition: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Linear(condition, 2 * width)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, width))

    def forward(self, hidden: Tensor, condition: Tensor) -> Tensor:
        """Return the layer's output ``(n, width)`` for n samples.

        Args:
            hidden: input of the layer, ``(n, width)``.
            condition: condition vectors, ``(n, condition)``.
        """
        scale, shift = self.modulation(condition).chunk(2, dim=-1)
        return hidden + self.layers(self.norm(hidden) * (1 + scale) + shift)


class VelocityField(nn.Module):
    """Network for the velocity at a point of a path from noise to a chunk of commands.

    Args:
        size: number of elements of a point, ``chunk_size`` times the number of commands per step.
        features: number of features of the observation.
        settings: settings of the policy.
    """

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
        """Return the velocity of n samples, ``(n, size)``.

        Args:
            point: points on the paths, ``(n, size)``.
            time: times on the paths, ``(n,)``, from 0 (noise) to 1 (commands).
            features: features of the observations, ``(n, features)``.
        """
        condition = self.condition(torch.cat([self.time(_time_encodings(time)), features], dim=-1))
        hidden = self.first(point)
        for block in self.blocks:
            hidden = block(hidden, condition)
        return self.last(self.norm(hidden))


class FlowNetwork(Network):
    """Network that samples one of the possible command chunks for an observation by flow matching.

    The network learns the velocity with which noise moves to an action on the straight path x_t = (1 - t) · noise +
    t · action, for t from 0 to 1. This velocity is action - noise. To sample, the learned velocity is integrated from
    the noise at t = 0 to t = 1, so the noise selects the chunk. The velocity field with the least mean squared error
    transforms the distribution of the noise to the distribution of the actions (Lipman et al. 2023, theorem 2).
    """

    def __init__(self, contract: Contract, settings: FlowSettings) -> None:
        super().__init__()
        self.settings = settings
        self.noise_size = settings.chunk_size * action_size(contract)
        self.encoder = VectorEncoder(contract, settings)
        self.trunk = make_perceptron(self.encoder.size, settings.features, 2, settings.dropout)
        self.head = VelocityField(self.noise_size, settings.features, settings)

    def sample(self, inputs: NetworkInputs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Integrate the velocity field from the noise; return command chunks and features of the observations.

        Args:
            inputs: normalized observations of n samples.
            noise: standard normal numbers, ``(n, noise_size)``.

        Returns:
            Chunks of normalized commands, ``(n, chunk_size, k)`` for k commands per step, and features of the
            observations, ``(n, d)`` with d numbers per sample.
        """
        features = self.trunk(self.encoder(inputs))
        point, step = noise, 1.0 / self.settings.steps
        for number in range(self.settings.steps):
            time = point.new_full(point.shape[:1], number * step)
            velocity = self.head(point, time, features)
            if self.settings.solver == "midpoint":
                velocity = self.head(point + step / 2 * velocity, time + step / 2, features)
            point = point + step * velocity
        return point.unflatten(-1, (self.settings.chunk_size, -1)), features

    def compute_losses(
        self, inputs: NetworkInputs, action: Tensor, is_pad: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each sample ``(n,)``, and a dictionary with the same values as ``velocity``.

        The loss is the mean squared error of the velocity at one random time on each path.

        Args:
            inputs: normalized observations of n samples.
            action: demonstrated normalized commands, ``(n, chunk_size, k)`` for k commands per step.
            is_pad: mask ``(n, chunk_size)``, true for steps after the end of the episode, which do not count.
            generator: source of the random noise and times; None for torch's default.
        """
        features = self.trunk(self.encoder(inputs))
        target = action.flatten(1)
        noise = draw_normal(target, generator)
        time = torch.rand(len(target), generator=generator, dtype=target.dtype, device=target.device)
        point = torch.lerp(noise, target, time[:, None])
        difference = self.head(point, time, features) - (target - noise)
        error = masked_mean(difference.square().reshape(action.shape), is_pad)
        return error, {"velocity": error}


def _time_encodings(time: Tensor) -> Tensor:
    """Return cosines and sines of times at 16 geometrically spaced frequencies, ``(n, 32)``: 16 cosines, then 16 sines.

    Args:
        time: times in [0, 1], ``(n,)``.
    """
    half = _TIME_SIZE // 2
    exponents = torch.arange(half, dtype=time.dtype, device=time.device) / (half - 1)
    angles = 2 * math.pi * time[:, None] * _FASTEST**exponents / _FASTEST**0.5
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
