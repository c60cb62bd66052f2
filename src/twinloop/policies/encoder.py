"""From observations to one row of numbers: vectors as they are, pictures as keypoints, domains as tokens."""

from __future__ import annotations

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import Contract
from twinloop.policies.network import Inputs
from twinloop.policies.settings import PictureSettings, Settings
from twinloop.policies.statistics import LAST_COMMAND, vector_sizes

_DOMAIN_SIZE = 8  # numbers of a domain's token: our choice
_GROUP = 8  # channels that are normalized together


class Convolutions(nn.Module):
    """Strided convolutions with group normalization, which knows no batch: ``(n, 3, h, w)`` to ``(n, c, h', w')``.

    Chi et al. ("Diffusion policy", RSS 2023) replace batch by group normalization for the same reason.
    """

    def __init__(self, settings: PictureSettings) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for number, channels in enumerate(settings.channels):
            size = 5 if number == 0 else 3
            groups = channels // _GROUP if channels % _GROUP == 0 else 1
            layers += [nn.Conv2d(before, channels, size, stride=2, padding=size // 2)]
            layers += [nn.GroupNorm(groups, channels), nn.ReLU()]
            before = channels
        self.layers = nn.Sequential(*layers[:-1])  # what follows decides what to do with negative numbers
        self.channels = before

    def forward(self, pictures: Tensor) -> Tensor:
        """The last layer, before its activation."""
        return self.layers(pictures)


class SpatialSoftmax(nn.Module):
    """Where in the picture each channel answers: expected column and row in [-1, 1], ``(n, c, h, w)`` to ``(n, 2c)``.

    Finn et al., "Deep spatial autoencoders for visuomotor learning", ICRA 2016; temperature 1.
    """

    def forward(self, cells: Tensor) -> Tensor:
        """Columns of all channels, then rows."""
        n, channels, height, width = cells.shape
        share = cells.reshape(n, channels, height * width).softmax(dim=-1).reshape(n, channels, height, width)
        columns = torch.linspace(-1, 1, width, dtype=cells.dtype, device=cells.device)
        rows = torch.linspace(-1, 1, height, dtype=cells.dtype, device=cells.device)
        return torch.cat([(share.sum(dim=2) * columns).sum(dim=-1), (share.sum(dim=3) * rows).sum(dim=-1)], dim=-1)


class RowEncoder(nn.Module):
    """All that is observed as one row: vectors, then keypoints camera by camera, then the domain's token.

    ``size`` is the length of the row. Cameras come in the order of their names and share their convolutions.
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

    def forward(self, inputs: Inputs) -> Tensor:
        """The row of each sample, ``(n, size)``."""
        parts = [inputs.vectors[key] for key in self.keys]
        for name in self.cameras:
            pictures = inputs.pictures[name]
            parts.append(self.pictures(pictures.flatten(0, 1)).reshape(len(pictures), -1))
        if inputs.domain is not None:
            parts.append(self.domain(inputs.domain))
        return torch.cat(parts, dim=-1)
