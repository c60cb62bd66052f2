"""A policy: a network with the contract it was trained for and the normalization that belongs to it.

The normalization, between a dataset's units and the numbers a network works with, is part of the weights' file.
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
    """One `AffineTransform` for each input that is a row of numbers, and for the commands.

    Raises:
        InputError: the statistics lack a key or have another number of columns.
    """

    def __init__(self, contract: Contract, settings: Settings, statistics: Statistics) -> None:
        super().__init__()
        sizes = {**vector_sizes(contract, last_command=settings.last_command), ACTION: action_size(contract)}
        self.columns = nn.ModuleDict()
        for key, size in sizes.items():
            plain = key == LAST_COMMAND and key not in statistics.columns and settings.action_space == "absolute"
            found = statistics.require(ACTION if plain else key, size)
            self.columns[_plain(key)] = AffineTransform(*found.affine(settings.normalization))

    def forward(self, key: str, values: Tensor) -> Tensor:
        """The normal form of values ``(…, k)`` of that key."""
        return self.columns[_plain(key)](values)

    def inverse(self, key: str, values: Tensor) -> Tensor:
        """Values ``(…, k)`` of that key in units."""
        return cast("AffineTransform", self.columns[_plain(key)]).inverse(values)


def _plain(key: str) -> str:
    """A key as the name of a module, which has no dots."""
    return key.removeprefix("observation.").replace(".", "_")


DOMAIN = "domain"  # key of a batch: indices of domain tokens (n,)
IS_PAD = "action_is_pad"  # key of a batch: LeRobot's name for steps beyond an episode's end (n, chunk)

# Rows that go through a network at once when it acts. Always as many, so that matrix products sum in the same order and
# an episode gets the same commands alone and among hundreds; fewer with pictures, which take longer. Our choice.
_TILE, _TILE_PICTURES = 16, 4

Batch = Mapping[str, Tensor]


class Policy(nn.Module):
    """What acts, and what is trained: ``network`` and ``normalizer`` are its modules.

    Made by `new_policy` and `open_policy`. Observations are named as LeRobot does, hold ``n_obs_steps`` steps, oldest
    first, and are in the dataset's units: rows ``(n, n_obs_steps, d)``, pictures ``(n, n_obs_steps, h, w, 3)`` uint8.
    Where the settings ask for it, ``observation.last_command`` ``(n, k)`` is among them.
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
        """The settings in plain values."""
        return self.settings.model_dump(mode="json")

    @property
    def n_obs_steps(self) -> int:
        """Observations that go in."""
        return self.settings.n_obs_steps

    @property
    def chunk_size(self) -> int:
        """Commands that come out."""
        return self.settings.chunk_size

    @property
    def n_action_steps(self) -> int:
        """Commands of a chunk that are carried out before the next prediction."""
        return self.settings.n_action_steps

    @property
    def noise_size(self) -> int:
        """Standard normal numbers that decide between commands, per prediction; 0 where there is but one answer."""
        return self.network.noise_size

    @property
    def action_size(self) -> int:
        """Commands per step."""
        return action_size(self.contract)

    @property
    def hash(self) -> str:
        """SHA-256 over what decides the commands: weights, normalization, settings and contract as they are now."""
        return content_hash(self.state_dict(), self._identity)

    @property
    def parameter_count(self) -> int:
        """Trained numbers, those included that only training needs."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def observation_keys(self) -> tuple[str, ...]:
        """What must be given: keys of rows, then of pictures."""
        return (*self._sizes, *(IMAGES + name for name in self.contract.cameras))

    def forward(
        self, observation: Batch, noise: Tensor | None = None, domain: str | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Chunks ``(n, chunk_size, k)`` in the dataset's units and features ``(n, d)``, with gradients.

        Args:
            observation: see the class; tensors on the policy's device.
            noise: ``(n, noise_size)``; without it the same fixed draw for every row.
            domain: name of a domain, or indices ``(n,)``; the settings' default without it.
        """
        inputs = self._inputs(observation, domain)
        count = len(next(iter(observation.values())))
        chunk, features = self.network.sample(inputs, self._noise(count, noise))
        action = self.normalizer.inverse(ACTION, chunk)
        if self.settings.action_space == "delta_to_state":
            action = action + self._present(observation)[:, None]
        return action, features

    def loss(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The loss to go down, that of each sample ``(n,)``, and the means of what it is made of, by name.

        ``batch`` is an observation with ``action`` ``(n, chunk_size, k)`` in the dataset's units; ``action_is_pad``
        ``(n, chunk_size)`` says which of them lie beyond an episode's end: whatever stands there changes nothing.
        ``domain`` ``(n,)`` are indices of domain tokens. Chance comes from ``generator``, or torch's own; that of
        dropout always from torch's own.

        Raises:
            InputError: an observation or the commands are missing or have another shape; names it.
        """
        self._check_batch(batch)
        action = batch[ACTION].to(torch.float32)
        is_pad = batch[IS_PAD].bool() if IS_PAD in batch else torch.zeros_like(action[..., 0], dtype=torch.bool)
        if self.settings.action_space == "delta_to_state":
            action = action - self._present(batch)[:, None]
        target = self.normalizer(ACTION, _filled(action, is_pad))
        each, parts = self.network.terms(self._inputs(batch, batch.get(DOMAIN)), target, is_pad, generator)
        return each.mean(), each, {name: values.detach().mean() for name, values in parts.items()}

    def predict(
        self,
        observation: Mapping[str, NDArray | Tensor],
        noise: NDArray | None = None,
        domain: str | None = None,
    ) -> NDArray[np.float64]:
        """Chunks ``(n, chunk_size, k)`` in the dataset's units; see `predict_with_features`."""
        return self.predict_with_features(observation, noise, domain)[0]

    def predict_with_features(
        self,
        observation: Mapping[str, NDArray | Tensor],
        noise: NDArray | None = None,
        domain: str | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Chunks ``(n, chunk_size, k)`` and features ``(n, d)``, in evaluation mode and on one thread.

        Rows go through the network in portions of one size, so that a row's answer does not depend on the others.

        Raises:
            InputError: an observation is missing or has another shape; names it.
        """
        count = self._check(observation)
        tensors = {key: torch.as_tensor(np.asarray(observation[key])) for key in self.observation_keys}
        tile = _TILE_PICTURES if self.contract.cameras else _TILE
        draws = None if noise is None else torch.as_tensor(np.asarray(noise, dtype=np.float32))
        token = None if domain is None else torch.full((tile,), self.settings.domain_index(domain))
        chunks: list[Tensor] = []
        latents: list[Tensor] = []
        with _acting(self):
            for start in range(0, count, tile):
                rows = torch.arange(start, start + tile).clamp(max=count - 1)
                part = {key: values[rows].to(self._device) for key, values in tensors.items()}
                chunk, features = self(part, None if draws is None else draws[rows].to(self._device), token)
                chunks.append(chunk)
                latents.append(features)
        whole, features = (torch.cat(parts)[:count].to("cpu", torch.float64).numpy() for parts in (chunks, latents))
        return whole, features

    def save(self, folder: str | Path, card: PolicyCard | None = None) -> Path:
        """Write the policy as a folder, whole or not at all; see `policies.weights`."""
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

    def _present(self, observation: Batch) -> Tensor:
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
                f"The observation lacks {', '.join(missing)}, which the policy reads. It has: "
                f"{', '.join(observation) or 'nothing'}."
            )
        counts = {key: len(observation[key]) for key in self.observation_keys}
        for key in self.observation_keys:
            shape = tuple(observation[key].shape)
            if shape[1:] != self._row(key):
                raise InputError(
                    f"{key} has shape {shape}; the policy wants (n, {', '.join(map(str, self._row(key)))})."
                )
            if key.startswith(IMAGES) and str(observation[key].dtype).removeprefix("torch.") != "uint8":
                raise InputError(f"{key} is {observation[key].dtype}; the policy wants pictures in uint8, 0 to 255.")
        if len(set(counts.values())) != 1:
            raise InputError(f"The observation's parts have different counts of rows: {counts}.")
        return next(iter(counts.values()))

    def _check_batch(self, batch: Batch) -> None:
        count = self._check(batch)
        wanted = (count, self.chunk_size, self.action_size)
        if ACTION not in batch or tuple(batch[ACTION].shape) != wanted:
            there = f"has shape {tuple(batch[ACTION].shape)}" if ACTION in batch else "is missing"
            raise InputError(f"{ACTION} {there}; the policy wants {wanted}.")

    def _row(self, key: str) -> tuple[int, ...]:
        if key == LAST_COMMAND:
            return (self.action_size,)
        if key in self._sizes:
            return (self.n_obs_steps, self._sizes[key])
        return (self.n_obs_steps, *self.contract.cameras[key.removeprefix(IMAGES)], 3)


@contextlib.contextmanager
def _acting(policy: Policy) -> Iterator[None]:
    """Evaluation mode, no gradients, one thread; afterwards all is as it was."""
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


def _filled(action: Tensor, is_pad: Tensor) -> Tensor:
    """Commands whose padding repeats the last one before it, so that what stood there does not matter."""
    steps = torch.arange(action.shape[1], device=action.device).expand(is_pad.shape)
    last = torch.where(is_pad, 0, steps).cummax(dim=1).values
    return action.gather(1, last[..., None].expand_as(action))
