"""Between a dataset's units and the numbers a network works with; part of the weights' file."""

from __future__ import annotations

from typing import cast

import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import ACTION, Contract
from twinloop.policies.settings import Settings
from twinloop.policies.statistics import LAST_COMMAND, Statistics, action_size, vector_sizes


class Affine(nn.Module):
    """Columns shifted and scaled; what has scale 0 is 0 in normal form and its offset in units."""

    offset: Tensor
    scale: Tensor

    def __init__(self, offset: NDArray, scale: NDArray) -> None:
        super().__init__()
        self.register_buffer("offset", torch.as_tensor(offset, dtype=torch.float32))
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32))

    def forward(self, values: Tensor) -> Tensor:
        """The normal form of values ``(…, k)``."""
        known = self.scale != 0
        return torch.where(known, (values - self.offset) / torch.where(known, self.scale, 1.0), 0.0)

    def inverse(self, values: Tensor) -> Tensor:
        """Values ``(…, k)`` in units from their normal form."""
        return self.offset + self.scale * values


class Normalizer(nn.Module):
    """One `Affine` for each input that is a row of numbers, and for the commands.

    Raises:
        InputError: the statistics lack a key or have another number of columns.
    """

    def __init__(self, contract: Contract, settings: Settings, statistics: Statistics) -> None:
        super().__init__()
        sizes = {**vector_sizes(contract, last_command=settings.last_command), ACTION: action_size(contract)}
        self.columns = nn.ModuleDict()
        for key, size in sizes.items():
            known = statistics.columns
            plain = key == LAST_COMMAND and key not in known and settings.action_space == "absolute"
            found = statistics.require(ACTION if plain else key, size)
            self.columns[_plain(key)] = Affine(*found.affine(settings.normalization))

    def forward(self, key: str, values: Tensor) -> Tensor:
        """The normal form of values ``(…, k)`` of that key."""
        return self.columns[_plain(key)](values)

    def inverse(self, key: str, values: Tensor) -> Tensor:
        """Values ``(…, k)`` of that key in units."""
        return cast("Affine", self.columns[_plain(key)]).inverse(values)


def _plain(key: str) -> str:
    """A key as the name of a module, which has no dots."""
    return key.removeprefix("observation.").replace(".", "_")
