"""Define a network with a memory: an encoder of joint readings and commands estimates parameters of the robot.

Kumar et al., "RMA: rapid motor adaptation for legged robots", RSS 2021. There, the encoder is trained after the policy;
here, both are trained together, and the policy reads the estimates without changing them.
"""

from __future__ import annotations

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import STATE, Contract
from twinloop.policies.network import Network, NetworkInputs, VectorEncoder, command_error, make_perceptron
from twinloop.policies.settings import AdaptiveSettings
from twinloop.policies.statistics import LAST_COMMAND, action_size, vector_sizes

_BLOCK = 8  # steps that one convolution reads
_LAG_S = 0.1  # scale of a following error: that of a servo with this lag is its speed times 0.1 s


class HistoryEncoder(nn.Module):
    """Encoder of joint readings and commands over time: their speeds, and commands minus readings.

    A linear map of blocks of 8 steps (a convolution without overlap), then one layer over all blocks for the further
    features, and two for the estimates. Speeds and following errors show the parameters of a servo. Positions are not
    inputs, because they show the task of one episode, by which training worlds would be memorized.

    Args:
        contract: contract of the policy, which reads the joints.
        settings: settings of the policy.
    """

    def __init__(self, contract: Contract, settings: AdaptiveSettings) -> None:
        super().__init__()
        readings = 0 if contract.state is None else len(contract.state.joints)
        self._hz, self._steps = contract.control_hz, settings.n_obs_steps
        self._follows = contract.state is not None and contract.state.names == contract.action.names
        inputs = readings + action_size(contract) + self._follows * readings
        self._blocks = -(-settings.n_obs_steps // _BLOCK)
        code, drop = settings.channels * self._blocks, settings.estimate_dropout
        self.blocks = nn.Sequential(nn.Linear(inputs * _BLOCK, settings.channels), nn.GELU(), nn.Flatten())
        self.latent = nn.Linear(code, settings.latent)
        layers = [nn.Dropout(drop), nn.Linear(code, settings.hidden), nn.GELU(), nn.Dropout(drop)]
        number = len(settings.estimates)
        self.estimates = nn.Sequential(*layers, nn.Linear(settings.hidden, number)) if number else None

    def forward(self, readings: Tensor, commands: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalized estimates ``(n, m)`` and further features ``(n, latent)`` of n histories.

        Args:
            readings: normalized readings, ``(n, steps · k)``, oldest step first.
            commands: normalized commands before them, ``(n, steps · k)``.
        """
        reading, command = (values.unflatten(1, (self._steps, -1)) for values in (readings, commands))
        parts = [self._differentiate(reading), self._differentiate(command)]
        if self._follows:
            parts.append((command - reading) / _LAG_S)
        history = torch.cat(parts, dim=-1)
        history = torch.cat([history[:, :1]] * (-self._steps % _BLOCK) + [history], dim=1)  # whole blocks
        code = self.blocks(history.unflatten(1, (self._blocks, _BLOCK)).flatten(2))
        return code[:, :0] if self.estimates is None else self.estimates(code), self.latent(code)

    def _differentiate(self, values: Tensor) -> Tensor:
        """Return the speeds per second of values ``(n, steps, k)``; the speed of the oldest step is 0."""
        return functional.pad(self._hz * (values[:, 1:] - values[:, :-1]), (0, 0, 1, 0))


class AdaptiveEncoder(nn.Module):
    """Encoder of the newest observation and of the history, see `AdaptiveSettings`.

    Attributes:
        size: number of elements of the vector that the trunk reads.
    """

    def __init__(self, contract: Contract, settings: AdaptiveSettings) -> None:
        super().__init__()
        self._sizes = vector_sizes(contract, last_command=True)
        self.newest = VectorEncoder(contract, settings.model_copy(update={"n_obs_steps": 1}))
        self.history = HistoryEncoder(contract, settings)
        self.size = self.newest.size + len(settings.estimates) + settings.latent

    def encode_history(self, inputs: NetworkInputs) -> tuple[Tensor, Tensor]:
        """Return normalized estimates ``(n, m)`` and further features ``(n, latent)`` of n histories."""
        return self.history(inputs.vectors[STATE], inputs.vectors[LAST_COMMAND])

    def forward(self, inputs: NetworkInputs) -> tuple[Tensor, Tensor]:
        """Return the vectors that the trunk reads, ``(n, size)``, and the estimates ``(n, m)``.

        No gradient flows from the vectors into the estimates: only their true values train them.
        """
        estimates, latent = self.encode_history(inputs)
        vectors = {key: inputs.vectors[key][:, -size:] for key, size in self._sizes.items()}
        newest = NetworkInputs(vectors=vectors, images=inputs.images, domain=inputs.domain)
        return torch.cat([self.newest(newest), estimates.detach(), latent], dim=-1), estimates


class AdaptiveNetwork(Network):
    """Perceptron that reads the newest observation, and estimates and features of the history."""

    def __init__(self, contract: Contract, settings: AdaptiveSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = AdaptiveEncoder(contract, settings)
        self.trunk = make_perceptron(self.encoder.size, settings.width, settings.depth, settings.dropout)
        self.head = nn.Linear(settings.width, settings.chunk_size * action_size(contract))

    def sample(self, inputs: NetworkInputs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return chunks of normalized commands ``(n, chunk_size, k)`` and features ``(n, width)``; ignore the noise."""
        del noise
        return self._decide(self.encoder(inputs)[0])

    def compute_losses(
        self, inputs: NetworkInputs, action: Tensor, is_pad: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each sample ``(n,)``, and its parts by name: that of the commands, and ``estimates``.

        The second part is the mean squared error of the normalized estimates. It is left out if the true parameters are
        unknown.

        Args:
            inputs: normalized observations of n samples.
            action: demonstrated normalized commands, ``(n, chunk_size, k)`` with k commands per step.
            is_pad: mask ``(n, chunk_size)``, true for steps after the end of the episode, which do not count.
            generator: not used.
        """
        del generator
        seen, estimates = self.encoder(inputs)
        parts = {self.settings.loss: command_error(self._decide(seen)[0], action, is_pad, self.settings.loss)}
        total = parts[self.settings.loss]
        if inputs.parameters is not None:
            parts["estimates"] = (estimates - inputs.parameters).square().mean(dim=-1)
            total = total + self.settings.estimate_weight * parts["estimates"]
        return total, parts

    def _decide(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(seen)
        return self.head(features).unflatten(-1, (self.settings.chunk_size, -1)), features
