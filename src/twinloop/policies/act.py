"""Define ACT, action chunking with transformers: a conditional variational autoencoder (Zhao et al., RSS 2023).

Every matrix of the transformer is an ``nn.Linear``, so that low-rank adapters can find all of them. In the shapes, n is
the number of samples and ``width`` the number of features of a token.
"""

from __future__ import annotations

import math

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import Contract
from twinloop.policies.network import ConvolutionalEncoder, Network, NetworkInputs, draw_normal, masked_mean
from twinloop.policies.settings import ActSettings, Settings
from twinloop.policies.statistics import LAST_COMMAND, action_size, vector_sizes


class Attention(nn.Module):
    """Multi-head scaled dot-product attention (Vaswani et al., "Attention is all you need", 2017).

    Args:
        width: number of features of a token.
        heads: number of heads.
        dropout: dropout probability of the attention weights in training.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, tokens: Tensor, memory: Tensor, is_pad: Tensor | None = None) -> Tensor:
        """Return the attention of tokens to a memory, ``(n, a, width)``.

        Args:
            tokens: queries ``(n, a, width)``, a tokens for each of n samples.
            memory: keys and values ``(n, b, width)``, b tokens for each sample.
            is_pad: mask ``(n, b)``, true for memory tokens that are ignored; None to use all tokens.
        """
        query, key, value = (self._split(x) for x in (self.query(tokens), self.key(memory), self.value(memory)))
        mask = None if is_pad is None else ~is_pad[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return self.out(found.transpose(1, 2).flatten(2))

    def _split(self, tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class TransformerLayer(nn.Module):
    """Pre-norm transformer layer: self-attention, optional cross-attention, and a two-layer feed-forward network.

    The input of each of these sub-layers is normalized instead of its output, which is also an option in the code of
    ACT (Zhao et al.). It needs no learning-rate warm-up (Xiong et al., "On layer normalization in the transformer
    architecture", ICML 2020).

    Args:
        width: number of features of a token.
        heads: number of attention heads.
        feed_forward: number of hidden units of the feed-forward network.
        dropout: dropout probability.
        cross_attention: whether the layer has cross-attention to a memory.
    """

    def __init__(
        self, width: int, heads: int, feed_forward: int, dropout: float, *, cross_attention: bool = False
    ) -> None:
        super().__init__()
        self.norm_self, self.norm_last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.self_attention = Attention(width, heads, dropout)
        if cross_attention:
            self.norm_cross, self.cross_attention = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.feed = nn.Sequential(
            nn.Linear(width, feed_forward), nn.ReLU(), nn.Dropout(dropout), nn.Linear(feed_forward, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, memory: Tensor | None = None, is_pad: Tensor | None = None) -> Tensor:
        """Transform tokens ``(n, a, width)`` to tokens of the same shape.

        Args:
            tokens: a tokens for each of n samples.
            memory: tokens ``(n, b, width)`` for cross-attention; None to skip it.
            is_pad: mask ``(n, a)``, true for tokens that self-attention ignores.
        """
        normalized = self.norm_self(tokens)
        tokens = tokens + self.dropout(self.self_attention(normalized, normalized, is_pad))
        if memory is not None:
            tokens = tokens + self.dropout(self.cross_attention(self.norm_cross(tokens), memory))
        return tokens + self.dropout(self.feed(self.norm_last(tokens)))


class TransformerEncoder(nn.Module):
    """Stack of transformer layers with self-attention, followed by layer normalization.

    It maps tokens ``(n, a, width)`` to tokens of the same shape.

    Args:
        layers: number of layers.
        width: number of features of a token.
        heads: number of attention heads.
        feed_forward: number of hidden units of the feed-forward networks.
        dropout: dropout probability.
    """

    def __init__(self, layers: int, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(width, heads, feed_forward, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, is_pad: Tensor | None = None) -> Tensor:
        """Transform tokens ``(n, a, width)``; ``is_pad`` ``(n, a)`` is true for tokens that attention ignores."""
        for layer in self.layers:
            tokens = layer(tokens, None, is_pad)
        return self.norm(tokens)


class TransformerDecoder(nn.Module):
    """Stack of transformer layers with self-attention and cross-attention, followed by layer normalization."""

    def __init__(self, layers: int, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        made = (TransformerLayer(width, heads, feed_forward, dropout, cross_attention=True) for _ in range(layers))
        self.layers = nn.ModuleList(made)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, memory: Tensor) -> Tensor:
        """Transform tokens ``(n, a, width)`` with cross-attention to a memory of tokens ``(n, b, width)``."""
        for layer in self.layers:
            tokens = layer(tokens, memory)
        return self.norm(tokens)


def position_encodings(count: int, width: int) -> Tensor:
    """Return sinusoidal position encodings of ``count`` tokens, ``(count, width)``.

    Vaswani et al. 2017, section 3.5.
    """
    rates = torch.exp(-math.log(10_000.0) * torch.arange(0, width, 2) / width)
    angles = torch.arange(count)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def image_position_encodings(height: int, width: int, size: int) -> Tensor:
    """Return sinusoidal position encodings of the cells of a feature map, ``(height · width, size)``, row by row.

    The first half of the numbers encodes the row of a cell, the second half its column.

    Args:
        height: number of rows of the feature map.
        width: number of columns of the feature map.
        size: number of features of a token.
    """
    rows, columns = position_encodings(height, size // 2), position_encodings(width, size // 2)
    shape = (height, width, size // 2)
    return torch.cat([rows[:, None].expand(shape), columns[None].expand(shape)], dim=-1).flatten(0, 1)


class TokenEncoder(nn.Module):
    """Encoder of an observation as tokens.

    There is one token per input vector, one per cell of the feature map of each image, and, if the settings have
    domains, one for the domain (source of the data).
    """

    def __init__(self, contract: Contract, settings: Settings, width: int) -> None:
        super().__init__()
        sizes = vector_sizes(contract, last_command=settings.last_command)
        steps = settings.n_obs_steps
        self.width, self.cameras = width, tuple(sorted(contract.cameras))
        self.names = {key: key.rpartition(".")[2] for key in sizes}
        lengths = {key: size * (1 if key == LAST_COMMAND else steps) for key, size in sizes.items()}
        self.vectors = nn.ModuleDict({self.names[key]: nn.Linear(size, width) for key, size in lengths.items()})
        if self.cameras:
            self.pictures = ConvolutionalEncoder(settings.images)
            self.cells = nn.Linear(self.pictures.channels, width)
            self.camera = nn.Parameter(torch.randn(len(self.cameras), steps, width) * 0.02)
        if settings.domains:
            self.domain = nn.Embedding(1 + len(settings.domains), width)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return all tokens of n observations, ``(n, number of tokens, width)``."""
        tokens = [self.encode_vectors(inputs)]
        for number, name in enumerate(self.cameras):
            tokens.append(self._encode_images(inputs.images[name], self.camera[number]))
        if inputs.domain is not None:
            tokens.append(self.domain(inputs.domain)[:, None])
        return torch.cat(tokens, dim=1)

    def encode_vectors(self, inputs: NetworkInputs) -> Tensor:
        """Return only the tokens of the input vectors, ``(n, number of vectors, width)``; the number may be 0."""
        made = [self.vectors[name](inputs.vectors[key]) for key, name in self.names.items()]
        if made:
            return torch.stack(made, dim=1)
        images = next(iter(inputs.images.values()))
        return self.camera.new_empty(images.shape[0], 0, self.width)

    def _encode_images(self, images: Tensor, camera: Tensor) -> Tensor:
        n, steps = images.shape[:2]
        found = torch.relu(self.pictures(images.flatten(0, 1)))
        height, width = found.shape[-2:]
        tokens = self.cells(found.flatten(2).transpose(1, 2)).unflatten(0, (n, steps))
        where = image_position_encodings(height, width, self.width).to(tokens)
        return (tokens + where + camera[:, None]).flatten(1, 2)


class LatentPosterior(nn.Module):
    """Encoder of a demonstrated chunk of commands as the distribution of the latent variable; used only in training.

    Its inputs are the vectors of the observation and the commands, not the images, as in the paper. The buffer
    ``places`` has the position encodings of its tokens.

    Args:
        vectors: number of vectors of an observation.
        commands: number of commands per step.
        settings: settings of the policy.
    """

    places: Tensor

    def __init__(self, vectors: int, commands: int, settings: ActSettings) -> None:
        super().__init__()
        width = settings.width
        self.first = nn.Parameter(torch.randn(width) * 0.02)
        self.commands = nn.Linear(commands, width)
        self.encoder = TransformerEncoder(
            settings.posterior_layers, width, settings.heads, settings.feed_forward, settings.dropout
        )
        self.head = nn.Linear(width, 2 * settings.latent)
        self.register_buffer("places", position_encodings(1 + vectors + settings.chunk_size, width), persistent=False)

    def forward(self, vectors: Tensor, action: Tensor, is_pad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the log variance of the latent variable, ``(n, settings.latent)`` each.

        Args:
            vectors: tokens of the observation's vectors, ``(n, number of vectors, width)``.
            action: demonstrated normalized commands, ``(n, chunk_size, k)`` for k commands per step.
            is_pad: mask ``(n, chunk_size)``, true for steps after the end of the episode, which are ignored.
        """
        n = len(action)
        tokens = torch.cat([self.first.expand(n, 1, -1), vectors, self.commands(action)], dim=1)
        hidden = torch.cat([is_pad.new_zeros(n, 1 + vectors.shape[1]), is_pad], dim=1)
        mean, log_variance = self.head(self.encoder(tokens + self.places, hidden)[:, 0]).chunk(2, dim=-1)
        return mean, log_variance


class ActTrunk(nn.Module):
    """Transformer that maps the tokens of the observation and the latent variable to one token per future command."""

    def __init__(self, settings: ActSettings) -> None:
        super().__init__()
        sizes = (settings.width, settings.heads, settings.feed_forward, settings.dropout)
        self.latent = nn.Linear(settings.latent, settings.width)
        self.encoder = TransformerEncoder(settings.encoder_layers, *sizes)
        self.decoder = TransformerDecoder(settings.decoder_layers, *sizes)
        self.queries = nn.Parameter(torch.randn(settings.chunk_size, settings.width) * 0.02)

    def forward(self, tokens: Tensor, latent: Tensor) -> Tensor:
        """Return one token per future step, ``(n, chunk_size, width)``.

        Args:
            tokens: tokens of the observations, ``(n, number of tokens, width)``.
            latent: latent variables, ``(n, settings.latent)``.
        """
        memory = self.encoder(torch.cat([self.latent(latent)[:, None], tokens], dim=1))
        return self.decoder(self.queries.expand(tokens.shape[0], -1, -1), memory)


class ActNetwork(Network):
    """ACT network, which predicts one chunk of commands for each observation and latent variable.

    When acting, the latent variable is zero, or a standard normal draw if the setting ``sample_latent`` is true.
    """

    def __init__(self, contract: Contract, settings: ActSettings) -> None:
        super().__init__()
        self.settings = settings
        self.noise_size = settings.latent if settings.sample_latent else 0
        vectors = len(vector_sizes(contract, last_command=settings.last_command))
        self.encoder = TokenEncoder(contract, settings, settings.width)
        self.posterior = LatentPosterior(vectors, action_size(contract), settings)
        self.trunk = ActTrunk(settings)
        self.head = nn.Linear(settings.width, action_size(contract))

    def sample(self, inputs: NetworkInputs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return chunks of normalized commands ``(n, chunk_size, k)`` and features ``(n, width)``.

        The features are the mean of the tokens of all future steps.

        Args:
            inputs: normalized observations of n samples.
            noise: latent variables ``(n, noise_size)``; not used if ``noise_size`` is 0.
        """
        tokens = self.encoder(inputs)
        latent = noise if self.noise_size else noise.new_zeros(tokens.shape[0], self.settings.latent)
        found = self.trunk(tokens, latent)
        return self.head(found), found.mean(dim=1)

    def compute_losses(
        self, inputs: NetworkInputs, action: Tensor, is_pad: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each sample ``(n,)``, and its two parts ``l1`` and ``kl``, ``(n,)`` each.

        ``l1`` is the mean absolute error of the commands. ``kl`` is the Kullback-Leibler divergence of the latent
        distribution from a standard normal one. The loss is l1 + kl_weight · kl (Zhao et al., RSS 2023, eq. 1).

        Args:
            inputs: normalized observations of n samples.
            action: demonstrated normalized commands, ``(n, chunk_size, k)``.
            is_pad: mask ``(n, chunk_size)``, true for steps after the end of the episode, which do not count.
            generator: source of the random latent variables; None for torch's default.
        """
        mean, log_variance = self.posterior(self.encoder.encode_vectors(inputs), action, is_pad)
        latent = mean + (log_variance / 2).exp() * draw_normal(mean, generator)
        chunk = self.head(self.trunk(self.encoder(inputs), latent))
        error = masked_mean((chunk - action).abs(), is_pad)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=-1)
        return error + self.settings.kl_weight * divergence, {"l1": error, "kl": divergence}
