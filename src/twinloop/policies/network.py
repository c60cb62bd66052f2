"""Define the base class of the policies' networks, encoders that several networks use, and the multilayer perceptron.

An encoder converts an observation to one vector: input vectors are copied, images become keypoint positions, and a
domain (source of the data) becomes a learned embedding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import Contract
from twinloop.policies.pretrained import PretrainedLayers
from twinloop.policies.settings import ImageEncoderSettings, MlpSettings, Settings
from twinloop.policies.statistics import LAST_COMMAND, action_size, vector_sizes


@dataclass(frozen=True, kw_only=True)
class NetworkInputs:
    """Normalized observations of n samples, as a network reads them.

    Attributes:
        vectors: input vectors by key, ``(n, d)`` with d numbers per sample; a history is flattened, oldest step first.
        images: images by camera, ``(n, steps, 3, height, width)`` in [-1, 1], oldest step first.
        domain: index of each sample's domain (source of the data), ``(n,)``, 0 for unknown; None for a policy without
            domains.
        parameters: normalized true values of the estimated parameters, ``(n, m)``; None if they are unknown.
    """

    vectors: Mapping[str, Tensor]
    images: Mapping[str, Tensor] = field(default_factory=dict)
    domain: Tensor | None = None
    parameters: Tensor | None = None


class Network(nn.Module, ABC):
    """Base class of networks that map normalized observations to chunks of normalized commands.

    The parameters are in three modules: ``encoder`` (of the observation), ``trunk``, and ``head`` (to commands).
    Parameters that only training needs are in modules with other names.

    Attributes:
        noise_size: how many standard normal numbers per sample select one of the possible chunks; 0 for a deterministic
            network.
    """

    noise_size: int = 0

    @abstractmethod
    def sample(self, inputs: NetworkInputs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return chunks of normalized commands, and the features from which the head computes them.

        Args:
            inputs: normalized observations of n samples.
            noise: standard normal numbers, ``(n, noise_size)``.

        Returns:
            Chunks ``(n, chunk_size, k)`` with k commands per step, and features ``(n, d)`` with d numbers per sample.
        """

    @abstractmethod
    def compute_losses(
        self, inputs: NetworkInputs, action: Tensor, is_pad: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each sample ``(n,)``, and the parts of the loss by name, ``(n,)`` each.

        Args:
            inputs: normalized observations of n samples.
            action: demonstrated normalized commands, ``(n, chunk_size, k)`` with k commands per step.
            is_pad: mask ``(n, chunk_size)``, true for steps after the end of the episode, which do not count.
            generator: source of random draws; None for torch's default.
        """


def masked_mean(errors: Tensor, is_pad: Tensor) -> Tensor:
    """Return the mean error of each sample, ``(n,)``, over the steps of its chunk that are not padding.

    Args:
        errors: errors ``(n, chunk_size, k)`` with k commands per step.
        is_pad: mask ``(n, chunk_size)``, true for padding.
    """
    weights = (~is_pad).to(errors.dtype)
    return (errors.mean(dim=-1) * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def command_error(chunk: Tensor, action: Tensor, is_pad: Tensor, loss: Literal["mse", "l1"]) -> Tensor:
    """Return the error of each sample ``(n,)``: squared (``mse``) or absolute (``l1``) differences of its commands.

    Args:
        chunk: predicted normalized commands, ``(n, chunk_size, k)``.
        action: demonstrated normalized commands, of the same shape.
        is_pad: mask ``(n, chunk_size)``, true for steps that do not count.
        loss: kind of error.
    """
    difference = chunk - action
    return masked_mean(difference.square() if loss == "mse" else difference.abs(), is_pad)


def draw_normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return standard normal numbers with the shape, type and device of the tensor ``like``."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def make_perceptron(size: int, width: int, depth: int, dropout: float) -> nn.Sequential:
    """Return a multilayer perceptron in which each layer is followed by layer normalization, GELU and dropout.

    Args:
        size: number of inputs.
        width: number of units of each layer.
        depth: number of layers.
        dropout: dropout probability.
    """
    layers: list[nn.Module] = []
    for number in range(depth):
        layers += [nn.Linear(width if number else size, width), nn.LayerNorm(width), nn.GELU()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers)


_DOMAIN_SIZE = 8  # elements of a domain's embedding: our choice
_GROUP = 8  # channels that are normalized together


class ConvolutionalEncoder(nn.Module):
    """Image encoder of convolutions with group normalization, of which the first ones halve the image size.

    It maps images ``(n, 3, h, w)`` to feature maps ``(n, c, h', w')`` with c channels. Group normalization makes the
    result of an image independent of the other images of the batch, for which reason Chi et al. ("Diffusion policy",
    RSS 2023) also use it instead of batch normalization.
    """

    def __init__(self, settings: ImageEncoderSettings) -> None:
        super().__init__()
        layers: list[nn.Module] = [PretrainedLayers()] if settings.pretrained else []
        before = PretrainedLayers.channels if settings.pretrained else 3
        halvings = len(settings.channels) if settings.halvings is None else settings.halvings
        for number, channels in enumerate(settings.channels):
            size, stride = 3 if layers else 5, 2 if number < halvings else 1
            groups = channels // _GROUP if channels % _GROUP == 0 else 1
            dilation = 2 ** max(0, number + 1 - halvings) if settings.dilated else 1
            padding = dilation * (size // 2)
            layers += [nn.Conv2d(before, channels, size, stride=stride, padding=padding, dilation=dilation)]
            layers += [nn.GroupNorm(groups, channels), nn.ReLU()]
            before = channels
        self.layers = nn.Sequential(*layers[:-1])  # no activation after the last convolution
        self.channels = before

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature maps of images ``(n, 3, h, w)`` in [-1, 1], before the activation of the last layer."""
        return self.layers(images)


class SpatialSoftmax(nn.Module):
    """Layer that returns the expected position of one keypoint per channel, in image coordinates from -1 to 1.

    It maps feature maps ``(n, c, h, w)`` to positions ``(n, 2c)``: the columns of all c channels, then their rows. The
    temperature is 1. Finn et al., "Deep spatial autoencoders for visuomotor learning", ICRA 2016.
    """

    def forward(self, cells: Tensor) -> Tensor:
        """Return the expected columns of all channels, then their expected rows, ``(n, 2c)``.

        Columns are from -1 (left) to 1 (right), rows from -1 (top) to 1 (bottom).

        Args:
            cells: feature maps, ``(n, c, h, w)``.
        """
        n, channels, height, width = cells.shape
        share = cells.reshape(n, channels, height * width).softmax(dim=-1).reshape(n, channels, height, width)
        columns = torch.linspace(-1, 1, width, dtype=cells.dtype, device=cells.device)
        rows = torch.linspace(-1, 1, height, dtype=cells.dtype, device=cells.device)
        return torch.cat([(share.sum(dim=2) * columns).sum(dim=-1), (share.sum(dim=3) * rows).sum(dim=-1)], dim=-1)


class Keypoints(nn.Module):
    """Encoder of one camera's images as positions of keypoints and their strengths, ``(n, 3c)`` for c keypoints.

    The strength of a keypoint is the hyperbolic tangent of the largest activation of its channel. Activations are
    multiplied by a constant before the spatial softmax, so that keypoints of a large feature map are sharp from the
    start of the training.
    """

    def __init__(self, settings: ImageEncoderSettings) -> None:
        super().__init__()
        self.convolutions, self.positions = ConvolutionalEncoder(settings), SpatialSoftmax()

    def forward(self, images: Tensor) -> Tensor:
        """Return columns, rows and strengths of the keypoints of images ``(n, 3, h, w)`` in [-1, 1]."""
        cells = self.convolutions(images)
        return torch.cat([self.positions(_SHARPNESS * cells), torch.tanh(cells.amax(dim=(2, 3)))], dim=-1)


_SHARPNESS = 3.0  # our choice


class VectorEncoder(nn.Module):
    """Encoder of an observation as one vector: input vectors, keypoint positions per camera, domain embedding.

    The cameras are in the alphabetical order of their names. They share one image encoder, unless the settings have
    ``images.per_camera``.

    Attributes:
        size: number of elements of the vector.
    """

    def __init__(self, contract: Contract, settings: Settings) -> None:
        super().__init__()
        sizes = vector_sizes(contract, last_command=settings.last_command)
        self.keys, self.settings = tuple(sizes), settings
        self.cameras = tuple(sorted(contract.cameras))
        steps = settings.n_obs_steps
        self.size = sum(size * (1 if key == LAST_COMMAND else steps) for key, size in sizes.items())
        if self.cameras and settings.images.per_camera:
            self.by_camera = nn.ModuleDict({name: Keypoints(settings.images) for name in self.cameras})
            self.size += len(self.cameras) * steps * 3 * settings.images.channels[-1]
        elif self.cameras:
            self.pictures = nn.Sequential(ConvolutionalEncoder(settings.images), SpatialSoftmax())
            self.size += len(self.cameras) * steps * 2 * settings.images.channels[-1]
        if settings.domains:
            self.domain = nn.Embedding(1 + len(settings.domains), _DOMAIN_SIZE)
            self.size += _DOMAIN_SIZE

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return one vector per sample, ``(n, size)``."""
        parts = [inputs.vectors[key] for key in self.keys]
        for name in self.cameras:
            images = inputs.images[name]
            encoder = self.by_camera[name] if self.settings.images.per_camera else self.pictures
            parts.append(encoder(images.flatten(0, 1)).reshape(images.shape[0], -1))
        if inputs.domain is not None:
            parts.append(self.domain(inputs.domain))
        return torch.cat(parts, dim=-1)


class MlpNetwork(Network):
    """Multilayer perceptron that predicts one chunk of commands per observation.

    If demonstrations differ, it predicts their mean (loss ``mse``) or their median (loss ``l1``).
    """

    def __init__(self, contract: Contract, settings: MlpSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = VectorEncoder(contract, settings)
        self.trunk = make_perceptron(self.encoder.size, settings.width, settings.depth, settings.dropout)
        self.head = nn.Linear(settings.width, settings.chunk_size * action_size(contract))

    def sample(self, inputs: NetworkInputs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return chunks of normalized commands ``(n, chunk_size, k)`` and features ``(n, width)``; ignore the noise."""
        del noise
        features = self.trunk(self.encoder(inputs))
        return self.head(features).unflatten(-1, (self.settings.chunk_size, -1)), features

    def compute_losses(
        self, inputs: NetworkInputs, action: Tensor, is_pad: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each sample ``(n,)``, and a dictionary with the same values under the loss's name.

        The loss is the mean squared error (``mse``) or the mean absolute error (``l1``) of the commands.

        Args:
            inputs: normalized observations of n samples.
            action: demonstrated normalized commands, ``(n, chunk_size, k)`` with k commands per step.
            is_pad: mask ``(n, chunk_size)``, true for steps after the end of the episode, which do not count.
            generator: not used.
        """
        del generator
        chunk, _ = self.sample(inputs, action.new_empty(len(action), 0))
        error = command_error(chunk, action, is_pad, self.settings.loss)
        return error, {self.settings.loss: error}
