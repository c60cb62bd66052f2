"""Behaviour cloning by regression: a multilayer perceptron from what is observed to a chunk of commands."""

from __future__ import annotations

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import Contract
from twinloop.policies.encoder import RowEncoder
from twinloop.policies.network import Inputs, Network, masked_mean, perceptron
from twinloop.policies.settings import MlpSettings
from twinloop.policies.statistics import action_size


class MlpNetwork(Network):
    """One answer to each observation: the mean of the demonstrations (``mse``) or their median (``l1``)."""

    def __init__(self, contract: Contract, settings: MlpSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = RowEncoder(contract, settings)
        self.trunk = perceptron(self.encoder.size, settings.width, settings.depth, settings.dropout)
        self.head = nn.Linear(settings.width, settings.chunk_size * action_size(contract))

    def sample(self, inputs: Inputs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """See `Network`."""
        del noise
        features = self.trunk(self.encoder(inputs))
        return self.head(features).unflatten(-1, (self.settings.chunk_size, -1)), features

    def terms(
        self, inputs: Inputs, action: Tensor, is_pad: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Network`."""
        del generator
        chunk, _ = self.sample(inputs, action.new_empty(len(action), 0))
        difference = chunk - action
        error = masked_mean(difference.square() if self.settings.loss == "mse" else difference.abs(), is_pad)
        return error, {self.settings.loss: error}
