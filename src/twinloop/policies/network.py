"""Define the base class of networks, shared encoders, and the multilayer perceptron.

An encoder converts observations to one row of numbers: vectors unchanged, images as keypoints, domains as tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import Contract
from twinloop.policies.settings import ImageEncoderSettings, MlpSettings, Settings
from twinloop.policies.statistics import LAST_COMMAND, action_size, vector_sizes


@dataclass(frozen=True, kw_only=True)
class NetworkInputs:
    """Normalized inputs of a network for n samples.

    ``vectors`` by key ``(n, d)``, with flattened histories, oldest first; ``pictures``: images by camera
    ``(n, t, 3, h, w)`` in [-1, 1]; ``domain`` ``(n,)`` is the index of each sample's domain token, 0 if unknown.
    """

    vectors: Mapping[str, Tensor]
    pictures: Mapping[str, Tensor] = field(default_factory=dict)
    domain: Tensor | None = None


class Network(nn.Module, ABC):
    """Network from observations to chunks of commands, all normalized.

    Its parameters are grouped as ``encoder`` (from observations), ``trunk`` and ``head`` (to commands); parameters that
    only training needs have other names. ``noise_size`` numbers per sample select one of the possible commands; it is 0
    if there is only one.
    """

    noise_size: int = 0

    @abstractmethod
    def sample(self, inputs: NetworkInputs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return chunks ``(n, chunk, k)`` and features ``(n, d)`` before the head, for noise ``(n, noise_size)``."""

    @abstractmethod
    def terms(
        self, inputs: NetworkInputs, action: Tensor, is_pad: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each sample ``(n,)`` and its parts, ``(n,)`` each.

        ``action`` is ``(n, chunk, k)``; where ``is_pad`` ``(n, chunk)`` is true, the episode has ended and the loss
        is 0.
        """


def masked_mean(errors: Tensor, is_pad: Tensor) -> Tensor:
    """Return the mean error of each sample ``(n,)`` over the steps of its chunk ``(n, chunk, k)`` without padding."""
    kept = (~is_pad).to(errors.dtype)
    return (errors.mean(dim=-1) * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1)


def draw_normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return standard normal numbers with a tensor's shape, on its device."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def make_perceptron(size: int, width: int, depth: int, dropout: float) -> nn.Sequential:
    """Return ``depth`` layers of ``width`` units, each normalized."""
    layers: list[nn.Module] = []
    for number in range(depth):
        layers += [nn.Linear(width if number else size, width), nn.LayerNorm(width), nn.GELU()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers)


_DOMAIN_SIZE = 8  # numbers of a domain's token: our choice
_GROUP = 8  # channels that are normalized together


class Convolutions(nn.Module):
    """Strided convolutions with group normalization, independent of the batch: ``(n, 3, h, w)`` to ``(n, c, h', w')``.

    Chi et al. ("Diffusion policy", RSS 2023) replace batch by group normalization for the same reason.
    """

    def __init__(self, settings: ImageEncoderSettings) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for number, channels in enumerate(settings.channels):
            size = 5 if number == 0 else 3
            groups = channels // _GROUP if channels % _GROUP == 0 else 1
            layers += [nn.Conv2d(before, channels, size, stride=2, padding=size // 2)]
            layers += [nn.GroupNorm(groups, channels), nn.ReLU()]
            before = channels
        self.layers = nn.Sequential(*layers[:-1])  # the next module decides how to treat negative numbers
        self.channels = before

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the last layer before its activation."""
        return self.layers(pictures)


class SpatialSoftmax(nn.Module):
    """Keypoint of each channel: expected column and row in [-1, 1], ``(n, c, h, w)`` to ``(n, 2c)``.

    Finn et al., "Deep spatial autoencoders for visuomotor learning", ICRA 2016; temperature 1.
    """

    def forward(self, cells: Tensor) -> Tensor:
        """Return the columns of all channels, then their rows."""
        n, channels, height, width = cells.shape
        share = cells.reshape(n, channels, height * width).softmax(dim=-1).reshape(n, channels, height, width)
        columns = torch.linspace(-1, 1, width, dtype=cells.dtype, device=cells.device)
        rows = torch.linspace(-1, 1, height, dtype=cells.dtype, device=cells.device)
        return torch.cat([(share.sum(dim=2) * columns).sum(dim=-1), (share.sum(dim=3) * rows).sum(dim=-1)], dim=-1)


class RowEncoder(nn.Module):
    """Encoder of an observation as one row: vectors, then keypoints camera by camera, then the domain's token.

    ``size`` is the length of the row. Cameras are in the order of their names and share their convolutions.
    """

    def __init__(self, contract: Contract, settings: Settings) -> None:
        super().__init__()
        sizes = vector_sizes(contract, last_command=settings.last_command)
        self.keys = tuple(sizes)
        self.cameras = tuple(sorted(contract.cameras))
        steps = settings.n_obs_steps
        self.size = sum(size * (1 if key == LAST_COMMAND else steps) for key, size in sizes.items())
        if self.cameras:
            self.pictures = nn.Sequential(Convolutions(settings.pictures), SpatialSoftmax())
            self.size += len(self.cameras) * steps * 2 * settings.pictures.channels[-1]
        if settings.domains:
            self.domain = nn.Embedding(1 + len(settings.domains), _DOMAIN_SIZE)
            self.size += _DOMAIN_SIZE

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return the row of each sample, ``(n, size)``."""
        parts = [inputs.vectors[key] for key in self.keys]
        for name in self.cameras:
            pictures = inputs.pictures[name]
            parts.append(self.pictures(pictures.flatten(0, 1)).reshape(len(pictures), -1))
        if inputs.domain is not None:
            parts.append(self.domain(inputs.domain))
        return torch.cat(parts, dim=-1)


class MlpNetwork(Network):
    """Network with one answer per observation: the mean of the demonstrations (``mse``) or their median (``l1``)."""

    def __init__(self, contract: Contract, settings: MlpSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = RowEncoder(contract, settings)
        self.trunk = make_perceptron(self.encoder.size, settings.width, settings.depth, settings.dropout)
        self.head = nn.Linear(settings.width, settings.chunk_size * action_size(contract))

    def sample(self, inputs: NetworkInputs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return chunks and features; the noise is not used."""
        del noise
        features = self.trunk(self.encoder(inputs))
        return self.head(features).unflatten(-1, (self.settings.chunk_size, -1)), features

    def terms(
        self, inputs: NetworkInputs, action: Tensor, is_pad: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared (``mse``) or absolute (``l1``) error of each sample, and it again as the only part."""
        del generator
        chunk, _ = self.sample(inputs, action.new_empty(len(action), 0))
        difference = chunk - action
        error = masked_mean(difference.square() if self.settings.loss == "mse" else difference.abs(), is_pad)
        return error, {self.settings.loss: error}
