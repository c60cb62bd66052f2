"""Define a policy: a network with its contract and its normalization.

The normalization, between a dataset's units and the inputs and outputs of a network, is part of the weights' file.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import ACTION, IMAGES, STATE, Contract
from twinloop.core.errors import InputError
from twinloop.core.files import dumps
from twinloop.core.seeds import uniforms
from twinloop.policies.folder import PolicyCard
from twinloop.policies.network import Network, NetworkInputs
from twinloop.policies.settings import Settings
from twinloop.policies.statistics import LAST_COMMAND, Statistics, action_size, vector_sizes
from twinloop.policies.weights import content_hash, write_policy


class AffineTransform(nn.Module):
    """Affine transform of columns. A column with scale 0 has the normalized value 0 and equals its offset in units."""

    offset: Tensor
    scale: Tensor

    def __init__(self, offset: NDArray, scale: NDArray) -> None:
        super().__init__()
        self.register_buffer("offset", torch.as_tensor(offset, dtype=torch.float32))
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32))

    def forward(self, values: Tensor) -> Tensor:
        """Normalize values ``(…, k)``."""
        known = self.scale != 0
        return torch.where(known, (values - self.offset) / torch.where(known, self.scale, 1.0), 0.0)

    def inverse(self, values: Tensor) -> Tensor:
        """Return values ``(…, k)`` in units from normalized values."""
        return self.offset + self.scale * values


class Normalizer(nn.Module):
    """One `AffineTransform` for each input that is a row of numbers, and for the commands.

    Raises:
        InputError: the statistics have no such key or another number of columns.
    """

    def __init__(self, contract: Contract, settings: Settings, statistics: Statistics) -> None:
        super().__init__()
        sizes = {**vector_sizes(contract, last_command=settings.last_command), ACTION: action_size(contract)}
        self.columns = nn.ModuleDict()
        for key, size in sizes.items():
            plain = key == LAST_COMMAND and key not in statistics.columns and settings.action_space == "absolute"
            found = statistics.require(ACTION if plain else key, size)
            self.columns[_module_name(key)] = AffineTransform(*found.affine(settings.normalization))

    def forward(self, key: str, values: Tensor) -> Tensor:
        """Normalize values ``(…, k)`` of this key."""
        return self.columns[_module_name(key)](values)

    def inverse(self, key: str, values: Tensor) -> Tensor:
        """Return values ``(…, k)`` of this key in units from normalized values."""
        return cast("AffineTransform", self.columns[_module_name(key)]).inverse(values)


def _module_name(key: str) -> str:
    """Return a key without dots, as a name of a module."""
    return key.removeprefix("observation.").replace(".", "_")


DOMAIN = "domain"  # key of a batch: indices of domain tokens (n,)
IS_PAD = "action_is_pad"  # key of a batch: LeRobot's name for steps beyond an episode's end (n, chunk)

# Rows that a network processes at once when it acts. Always the same number, so that matrix products sum in the same
# order and an episode gets the same commands alone and among hundreds; fewer with images, which are slower. Our choice.
_TILE, _TILE_PICTURES = 16, 4

Batch = Mapping[str, Tensor]


class Policy(nn.Module):
    """Policy for training and acting; its modules are ``network`` and ``normalizer``.

    Created by `new_policy` and `open_policy`. Observations have LeRobot's names and ``n_obs_steps`` steps, oldest
    first, in the dataset's units: rows ``(n, n_obs_steps, d)``, images ``(n, n_obs_steps, h, w, 3)`` uint8. If the
    settings require it, ``observation.last_command`` ``(n, k)`` is among them.
    """

    def __init__(self, contract: Contract, settings: Settings, statistics: Statistics, network: Network) -> None:
        super().__init__()
        self.contract = Contract.from_json(json.loads(dumps(contract.to_json())))  # as it will be read again
        self.settings, self.statistics = settings, statistics
        self.normalizer = Normalizer(contract, settings, statistics)
        self.network = network
        self._sizes = vector_sizes(contract, last_command=settings.last_command)
        self.eval()

    @property
    def kind(self) -> str:
        """``mlp``, ``act`` or ``flow``."""
        return self.settings.kind

    @property
    def config(self) -> dict[str, Any]:
        """Settings as plain values."""
        return self.settings.model_dump(mode="json")

    @property
    def n_obs_steps(self) -> int:
        """Number of observations in the input."""
        return self.settings.n_obs_steps

    @property
    def chunk_size(self) -> int:
        """Number of commands in a prediction."""
        return self.settings.chunk_size

    @property
    def n_action_steps(self) -> int:
        """Number of commands of a chunk that are executed before the next prediction."""
        return self.settings.n_action_steps

    @property
    def noise_size(self) -> int:
        """Number of standard normal draws per prediction; 0 if the policy is deterministic."""
        return self.network.noise_size

    @property
    def action_size(self) -> int:
        """Number of commands per step."""
        return action_size(self.contract)

    @property
    def hash(self) -> str:
        """SHA-256 over the current weights, normalization, settings and contract, which decide the commands."""
        return content_hash(self.state_dict(), self._identity)

    @property
    def parameter_count(self) -> int:
        """Number of trained parameters, including those that only training needs."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def observation_keys(self) -> tuple[str, ...]:
        """Keys of the required observations: rows, then images."""
        return (*self._sizes, *(IMAGES + name for name in self.contract.cameras))

    def forward(
        self, observation: Batch, noise: Tensor | None = None, domain: str | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return chunks ``(n, chunk_size, k)`` in the dataset's units and features ``(n, d)``, with gradients.

        Args:
            observation: see the class; tensors on the policy's device.
            noise: ``(n, noise_size)``; by default the same fixed draw for every row.
            domain: name of a domain, or indices ``(n,)``; by default that of the settings.
        """
        inputs = self._inputs(observation, domain)
        count = len(next(iter(observation.values())))
        chunk, features = self.network.sample(inputs, self._noise(count, noise))
        action = self.normalizer.inverse(ACTION, chunk)
        if self.settings.action_space == "delta_to_state":
            action = action + self._present_positions(observation)[:, None]
        return action, features

    def loss(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the loss to minimize, that of each sample ``(n,)``, and the means of its parts by name.

        ``batch`` is an observation with ``action`` ``(n, chunk_size, k)`` in the dataset's units. ``action_is_pad``
        ``(n, chunk_size)`` marks commands after an episode's end; their values have no effect. ``domain`` ``(n,)`` are
        indices of domain tokens. Random draws come from ``generator``, or from torch's default; those of dropout always
        from torch's default.

        Raises:
            InputError: an observation or the commands are missing or have another shape; the message names it.
        """
        self._check_batch(batch)
        action = batch[ACTION].to(torch.float32)
        is_pad = batch[IS_PAD].bool() if IS_PAD in batch else torch.zeros_like(action[..., 0], dtype=torch.bool)
        if self.settings.action_space == "delta_to_state":
            action = action - self._present_positions(batch)[:, None]
        target = self.normalizer(ACTION, _fill_padding(action, is_pad))
        each, parts = self.network.terms(self._inputs(batch, batch.get(DOMAIN)), target, is_pad, generator)
        return each.mean(), each, {name: values.detach().mean() for name, values in parts.items()}

    def predict(
        self,
        observation: Mapping[str, NDArray | Tensor],
        noise: NDArray | None = None,
        domain: str | None = None,
    ) -> NDArray[np.float64]:
        """Return chunks ``(n, chunk_size, k)`` in the dataset's units; see `predict_with_features`."""
        return self.predict_with_features(observation, noise, domain)[0]

    def predict_with_features(
        self,
        observation: Mapping[str, NDArray | Tensor],
        noise: NDArray | None = None,
        domain: str | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return chunks ``(n, chunk_size, k)`` and features ``(n, d)``, in evaluation mode and on one thread.

        Rows are processed in batches of one fixed size, so that the result of a row does not depend on the other rows.

        Raises:
            InputError: an observation is missing or has another shape; the message names it.
        """
        count = self._check(observation)
        tensors = {key: torch.as_tensor(np.asarray(observation[key])) for key in self.observation_keys}
        tile = _TILE_PICTURES if self.contract.cameras else _TILE
        draws = None if noise is None else torch.as_tensor(np.asarray(noise, dtype=np.float32))
        token = None if domain is None else torch.full((tile,), self.settings.domain_index(domain))
        chunks: list[Tensor] = []
        latents: list[Tensor] = []
        with _use_acting_mode(self):
            for start in range(0, count, tile):
                rows = torch.arange(start, start + tile).clamp(max=count - 1)
                part = {key: values[rows].to(self._device) for key, values in tensors.items()}
                chunk, features = self(part, None if draws is None else draws[rows].to(self._device), token)
                chunks.append(chunk)
                latents.append(features)
        whole, features = (torch.cat(parts)[:count].to("cpu", torch.float64).numpy() for parts in (chunks, latents))
        return whole, features

    def save(self, folder: str | Path, card: PolicyCard | None = None) -> Path:
        """Write the policy to a folder, completely or not at all; see `policies.weights`."""
        return write_policy(
            Path(folder), self.state_dict(), self._identity, self.statistics.to_json(), card or PolicyCard()
        )

    @property
    def _identity(self) -> dict[str, Any]:
        return {"kind": self.kind, "settings": self.config, "contract": self.contract.to_json()}

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def _inputs(self, observation: Batch, domain: str | Tensor | None) -> NetworkInputs:
        vectors = {key: self.normalizer(key, observation[key].to(torch.float32)).flatten(1) for key in self._sizes}
        pictures = {
            name: observation[IMAGES + name].to(torch.float32).div(127.5).sub(1).movedim(-1, 2)
            for name in self.contract.cameras
        }
        token = None
        if self.settings.domains:
            count = len(next(iter(observation.values())))
            index = domain if isinstance(domain, Tensor) else self.settings.domain_index(domain)
            token = torch.as_tensor(index, dtype=torch.long, device=self._device).expand(count)
        return NetworkInputs(vectors=vectors, pictures=pictures, domain=token)

    def _present_positions(self, observation: Batch) -> Tensor:
        return observation[STATE][:, -1].to(torch.float32)

    def _noise(self, count: int, noise: Tensor | None) -> Tensor:
        if noise is None:
            drawn = ndtri(uniforms(0, "policy/fixed", 0, size=self.noise_size)) if self.noise_size else np.empty((1, 0))
            noise = torch.as_tensor(drawn, dtype=torch.float32, device=self._device).expand(count, -1)
        return noise

    def _check(self, observation: Mapping[str, NDArray | Tensor]) -> int:
        missing = [key for key in self.observation_keys if key not in observation]
        if missing:
            raise InputError(
                f"The observation has no {', '.join(missing)}, which the policy needs. It has: "
                f"{', '.join(observation) or 'no arrays'}."
            )
        counts = {key: len(observation[key]) for key in self.observation_keys}
        for key in self.observation_keys:
            shape = tuple(observation[key].shape)
            if shape[1:] != self._row_shape(key):
                raise InputError(
                    f"{key} has shape {shape}; the policy expects (n, {', '.join(map(str, self._row_shape(key)))})."
                )
            if key.startswith(IMAGES) and str(observation[key].dtype).removeprefix("torch.") != "uint8":
                raise InputError(f"{key} is {observation[key].dtype}; the policy expects images in uint8, 0 to 255.")
        if len(set(counts.values())) != 1:
            raise InputError(f"The observation's arrays have different numbers of rows: {counts}.")
        return next(iter(counts.values()))

    def _check_batch(self, batch: Batch) -> None:
        count = self._check(batch)
        wanted = (count, self.chunk_size, self.action_size)
        if ACTION not in batch or tuple(batch[ACTION].shape) != wanted:
            there = f"has shape {tuple(batch[ACTION].shape)}" if ACTION in batch else "is missing"
            raise InputError(f"{ACTION} {there}; the policy expects {wanted}.")

    def _row_shape(self, key: str) -> tuple[int, ...]:
        if key == LAST_COMMAND:
            return (self.action_size,)
        if key in self._sizes:
            return (self.n_obs_steps, self._sizes[key])
        return (self.n_obs_steps, *self.contract.cameras[key.removeprefix(IMAGES)], 3)


@contextlib.contextmanager
def _use_acting_mode(policy: Policy) -> Iterator[None]:
    """Set evaluation mode, no gradients and one thread; restore the previous state afterwards."""
    threads, training = torch.get_num_threads(), policy.training
    if threads != 1:
        torch.set_num_threads(1)
    policy.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        policy.train(training)
        if threads != 1:
            torch.set_num_threads(threads)


def _fill_padding(action: Tensor, is_pad: Tensor) -> Tensor:
    """Return commands whose padding repeats the last valid command, so that the padding's values have no effect."""
    steps = torch.arange(action.shape[1], device=action.device).expand(is_pad.shape)
    last = torch.where(is_pad, 0, steps).cummax(dim=1).values
    return action.gather(1, last[..., None].expand_as(action))
