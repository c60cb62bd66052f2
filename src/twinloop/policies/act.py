"""Action chunking with a transformer: a conditional variational autoencoder of chunks (Zhao et al., RSS 2023)."""

from __future__ import annotations

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import Contract
from twinloop.policies.encoder import Convolutions
from twinloop.policies.network import Inputs, Network, masked_mean, normal
from twinloop.policies.settings import ActSettings, Settings
from twinloop.policies.statistics import LAST_COMMAND, action_size, vector_sizes
from twinloop.policies.transformer import Decoder, Encoder, places, places_in_picture


class TokenEncoder(nn.Module):
    """All that is observed as tokens of one width: one per vector, one per cell of each picture, one for the domain."""

    def __init__(self, contract: Contract, settings: Settings, width: int) -> None:
        super().__init__()
        sizes = vector_sizes(contract, last_command=settings.last_command)
        steps = settings.n_obs_steps
        self.width, self.cameras = width, tuple(sorted(contract.cameras))
        self.names = {key: key.rpartition(".")[2] for key in sizes}
        lengths = {key: size * (1 if key == LAST_COMMAND else steps) for key, size in sizes.items()}
        self.vectors = nn.ModuleDict({self.names[key]: nn.Linear(size, width) for key, size in lengths.items()})
        if self.cameras:
            self.pictures = Convolutions(settings.pictures)
            self.cells = nn.Linear(self.pictures.channels, width)
            self.camera = nn.Parameter(torch.randn(len(self.cameras), steps, width) * 0.02)
        if settings.domains:
            self.domain = nn.Embedding(1 + len(settings.domains), width)

    def forward(self, inputs: Inputs) -> Tensor:
        """Tokens ``(n, number, width)``."""
        tokens = [self.of_vectors(inputs)]
        for number, name in enumerate(self.cameras):
            tokens.append(self._of_pictures(inputs.pictures[name], self.camera[number]))
        if inputs.domain is not None:
            tokens.append(self.domain(inputs.domain)[:, None])
        return torch.cat(tokens, dim=1)

    def of_vectors(self, inputs: Inputs) -> Tensor:
        """The tokens of the vectors alone, ``(n, number, width)``; there may be none."""
        made = [self.vectors[name](inputs.vectors[key]) for key, name in self.names.items()]
        return torch.stack(made, dim=1) if made else self.camera.new_empty(len(_any(inputs)), 0, self.width)

    def _of_pictures(self, pictures: Tensor, camera: Tensor) -> Tensor:
        n, steps = pictures.shape[:2]
        found = torch.relu(self.pictures(pictures.flatten(0, 1)))
        height, width = found.shape[-2:]
        tokens = self.cells(found.flatten(2).transpose(1, 2)).unflatten(0, (n, steps))
        where = places_in_picture(height, width, self.width).to(tokens)
        return (tokens + where + camera[:, None]).flatten(1, 2)


class Posterior(nn.Module):
    """What of a demonstrated chunk the observation does not say: mean and log variance of a latent, ``(n, z)`` each.

    It sees the vectors and the commands, not the pictures, as in the paper; only training asks for it.
    """

    places: Tensor

    def __init__(self, vectors: int, commands: int, settings: ActSettings) -> None:
        super().__init__()
        width = settings.width
        self.first = nn.Parameter(torch.randn(width) * 0.02)
        self.commands = nn.Linear(commands, width)
        self.encoder = Encoder(
            settings.posterior_layers, width, settings.heads, settings.feed_forward, settings.dropout
        )
        self.head = nn.Linear(width, 2 * settings.latent)
        self.register_buffer("places", places(1 + vectors + settings.chunk_size, width), persistent=False)

    def forward(self, vectors: Tensor, action: Tensor, is_pad: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors as tokens ``(n, v, width)``, commands ``(n, chunk, k)``; those that are padding are not seen."""
        n = len(action)
        tokens = torch.cat([self.first.expand(n, 1, -1), vectors, self.commands(action)], dim=1)
        hidden = torch.cat([is_pad.new_zeros(n, 1 + vectors.shape[1]), is_pad], dim=1)
        mean, log_variance = self.head(self.encoder(tokens + self.places, hidden)[:, 0]).chunk(2, dim=-1)
        return mean, log_variance


class ActTrunk(nn.Module):
    """From the tokens of observation and latent to one token per command."""

    def __init__(self, settings: ActSettings) -> None:
        super().__init__()
        sizes = (settings.width, settings.heads, settings.feed_forward, settings.dropout)
        self.latent = nn.Linear(settings.latent, settings.width)
        self.encoder = Encoder(settings.encoder_layers, *sizes)
        self.decoder = Decoder(settings.decoder_layers, *sizes)
        self.queries = nn.Parameter(torch.randn(settings.chunk_size, settings.width) * 0.02)

    def forward(self, tokens: Tensor, latent: Tensor) -> Tensor:
        """Tokens ``(n, number, width)`` and latents ``(n, z)`` to ``(n, chunk, width)``."""
        memory = self.encoder(torch.cat([self.latent(latent)[:, None], tokens], dim=1))
        return self.decoder(self.queries.expand(len(tokens), -1, -1), memory)


class ActNetwork(Network):
    """One answer to each observation and latent; acting with the latent at zero, or drawn with ``sample_latent``."""

    def __init__(self, contract: Contract, settings: ActSettings) -> None:
        super().__init__()
        self.settings = settings
        self.noise_size = settings.latent if settings.sample_latent else 0
        vectors = len(vector_sizes(contract, last_command=settings.last_command))
        self.encoder = TokenEncoder(contract, settings, settings.width)
        self.posterior = Posterior(vectors, action_size(contract), settings)
        self.trunk = ActTrunk(settings)
        self.head = nn.Linear(settings.width, action_size(contract))

    def sample(self, inputs: Inputs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """See `Network`; the features are the mean of the commands' tokens."""
        tokens = self.encoder(inputs)
        latent = noise if self.noise_size else noise.new_zeros(len(tokens), self.settings.latent)
        found = self.trunk(tokens, latent)
        return self.head(found), found.mean(dim=1)

    def terms(
        self, inputs: Inputs, action: Tensor, is_pad: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Network`: absolute errors, and the divergence of the latent from a standard normal (equation 1)."""
        mean, log_variance = self.posterior(self.encoder.of_vectors(inputs), action, is_pad)
        latent = mean + (log_variance / 2).exp() * normal(mean, generator)
        chunk = self.head(self.trunk(self.encoder(inputs), latent))
        error = masked_mean((chunk - action).abs(), is_pad)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=-1)
        return error + self.settings.kl_weight * divergence, {"l1": error, "kl": divergence}


def _any(inputs: Inputs) -> Tensor:
    return next(iter({**inputs.vectors, **inputs.pictures}.values()))
