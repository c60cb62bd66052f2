"""Define a policy: a network with its contract and with the normalization of its inputs and outputs.

The normalization converts between the dataset's units and the network's inputs and outputs. Its numbers are stored in
the same file as the weights.
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
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import ACTION, ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.core.errors import InputError
from twinloop.core.files import dumps
from twinloop.policies.adaptive import AdaptiveNetwork
from twinloop.policies.folder import PolicyCard
from twinloop.policies.network import Network, NetworkInputs
from twinloop.policies.observations import ObservationLayout, fixed_noise
from twinloop.policies.settings import AdaptiveSettings, LocalizerSettings, Settings
from twinloop.policies.statistics import LAST_COMMAND, PARAMETERS, Statistics, action_size, vector_sizes
from twinloop.policies.weights import content_hash, write_policy


class AffineTransform(nn.Module):
    """Normalization of columns: ``(value - offset) / scale``, with one offset and one scale per column.

    A scale of 0 marks a constant column. Its normalized value is always 0, and the inverse always returns its offset.
    """

    offset: Tensor
    scale: Tensor

    def __init__(self, offset: NDArray, scale: NDArray) -> None:
        super().__init__()
        self.register_buffer("offset", torch.as_tensor(offset, dtype=torch.float32))
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32))

    def forward(self, values: Tensor) -> Tensor:
        """Return the normalized values of values ``(…, k)`` with k columns."""
        known = self.scale != 0
        return torch.where(known, (values - self.offset) / torch.where(known, self.scale, 1.0), 0.0)

    def inverse(self, values: Tensor) -> Tensor:
        """Return values in the dataset's units, ``(…, k)``, from normalized values of k columns."""
        return self.offset + self.scale * values


# Least scale of a column of an input, as a part of the largest one of the same vector; our choice. In the nominal twin
# the height of an object varies by less than 0.1 mm: with its own scale, a table that is 2 mm higher on the robot would
# be an input of 30 standard deviations, and decide every command.
_LEAST_SCALE = 0.01


class Normalizer(nn.Module):
    """Normalization of a policy: one `AffineTransform` for each input vector and one for the commands.

    The scale of a column of an input is at least 1 % of the largest one of its vector.

    Raises:
        UnknownNameError: If the statistics lack an input or the commands.
        InputError: If the statistics of an input or of the commands have another number of columns.
    """

    def __init__(self, contract: Contract, settings: Settings, statistics: Statistics) -> None:
        super().__init__()
        sizes = {**vector_sizes(contract, last_command=settings.last_command), ACTION: action_size(contract)}
        if isinstance(settings, AdaptiveSettings) and settings.estimates:
            sizes[PARAMETERS] = len(settings.estimates)
        if isinstance(settings, LocalizerSettings):
            sizes[ENVIRONMENT] = len(settings.tracked)
        self.columns = nn.ModuleDict()
        for key, size in sizes.items():
            plain = key == LAST_COMMAND and key not in statistics.columns and settings.action_space == "absolute"
            found = statistics.require(ACTION if plain else key, size)
            offset, scale = found.affine(settings.normalization)
            if key not in (ACTION, PARAMETERS):
                scale = np.where(scale > 0, np.maximum(scale, _LEAST_SCALE * scale.max()), 0.0)
            self.columns[_module_name(key)] = AffineTransform(offset, scale)

    def forward(self, key: str, values: Tensor) -> Tensor:
        """Return the normalized values of the input ``key``, given values ``(…, k)`` with k columns."""
        return self.columns[_module_name(key)](values)

    def inverse(self, key: str, values: Tensor) -> Tensor:
        """Return values of the input ``key`` in the dataset's units, ``(…, k)``, from normalized values."""
        return cast("AffineTransform", self.columns[_module_name(key)]).inverse(values)

    def scale(self, key: str) -> Tensor:
        """Return the scale of each column of the input ``key``, ``(k,)`` in the dataset's units."""
        return cast("AffineTransform", self.columns[_module_name(key)]).scale


def _module_name(key: str) -> str:
    """Return an observation key as the name of a torch module, which must not contain dots."""
    return key.removeprefix("observation.").replace(".", "_")


DOMAIN = "domain"  # key of a batch: indices of domains (n,)
IS_PAD = "action_is_pad"  # key of a batch: LeRobot's name for steps beyond an episode's end (n, chunk)

Batch = Mapping[str, Tensor]


class Policy(nn.Module):
    """Policy for training and acting, created by `new_policy` or `open_policy`.

    An observation of n samples is a mapping with LeRobot's keys. Values are in the dataset's units, and have the last
    ``n_obs_steps`` steps, oldest first. A vector of d numbers has the shape ``(n, n_obs_steps, d)``, an image the shape
    ``(n, n_obs_steps, height, width, 3)`` and the type uint8. If the setting ``last_command`` is true, the observation
    also has ``observation.last_command``, ``(n, k)`` with k commands per step; for a kind with a history of commands,
    ``(n, n_obs_steps, k)``, the command before each observation.

    Attributes:
        contract: joints, cameras and rate that the policy expects.
        settings: settings of the policy.
        layout: names, shapes and types of the arrays of an observation.
        statistics: statistics from which the normalization was made.
        normalizer: module that normalizes inputs and outputs.
        network: module that maps normalized observations to normalized commands.
    """

    def __init__(self, contract: Contract, settings: Settings, statistics: Statistics, network: Network) -> None:
        super().__init__()
        self.contract = Contract.from_json(json.loads(dumps(contract.to_json())))  # as it is after saving and opening
        self.settings, self.statistics = settings, statistics
        self.normalizer = Normalizer(contract, settings, statistics)
        self.network = network
        self.layout = ObservationLayout(self.contract, settings)
        self.eval()

    @property
    def kind(self) -> str:
        """Kind of the policy, one of `settings.KINDS`."""
        return self.settings.kind

    @property
    def config(self) -> dict[str, Any]:
        """Settings as a JSON-compatible dictionary."""
        return self.settings.model_dump(mode="json")

    @property
    def n_obs_steps(self) -> int:
        """Number of control steps of observations that the policy reads."""
        return self.settings.n_obs_steps

    @property
    def chunk_size(self) -> int:
        """Number of control steps for which one prediction has commands."""
        return self.settings.chunk_size

    @property
    def n_action_steps(self) -> int:
        """Number of control steps of a chunk that are executed before the next prediction."""
        return self.settings.n_action_steps

    @property
    def noise_size(self) -> int:
        """Number of standard normal draws per prediction; 0 if the policy is deterministic."""
        return self.network.noise_size

    @property
    def action_size(self) -> int:
        """Number of commands per control step, one per joint."""
        return action_size(self.contract)

    @property
    def hash(self) -> str:
        """SHA-256 over everything that determines the commands: weights, normalization, settings and contract."""
        return content_hash(self.state_dict(), self.identity)

    @property
    def parameter_count(self) -> int:
        """Number of trainable parameters, including those that only training needs."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def observation_keys(self) -> tuple[str, ...]:
        """Keys that an observation must have: vectors first, then images."""
        return self.layout.keys

    def forward(
        self, observation: Batch, noise: Tensor | None = None, domain: str | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Predict command chunks for n observations; gradients are computed.

        Args:
            observation: observations as described in the class, as tensors on the policy's device.
            noise: standard normal numbers ``(n, noise_size)``; None for the same fixed numbers for every sample.
            domain: name of a domain (source of the data), or domain indices ``(n,)``; None for the settings' default
                domain.

        Returns:
            Chunks ``(n, chunk_size, k)`` in the dataset's units with k commands per step, and features ``(n, d)`` with
            d numbers per sample.
        """
        inputs = self._inputs(observation, domain)
        count = next(iter(observation.values())).shape[0]
        chunk, features = self.network.sample(inputs, self._noise(count, noise))
        return self.decode(chunk, observation), features

    def encode(self, observation: Batch) -> NetworkInputs:
        """Return the normalized inputs of the network for n observations, in the policy's default domain."""
        return self._inputs(observation, None)

    def decode(self, chunk: Tensor, observation: Batch) -> Tensor:
        """Return commands in the dataset's units from normalized ones, both ``(n, chunk_size, k)``."""
        action = self.normalizer.inverse(ACTION, chunk)
        return action if self.settings.action_space == "absolute" else action + self._base(observation)[:, None]

    def loss(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the training loss of a batch of n samples.

        Args:
            batch: an observation as described in the class, with three more keys. ``action`` has the demonstrated
                commands ``(n, chunk_size, k)`` in the dataset's units. ``action_is_pad`` ``(n, chunk_size)``, optional,
                is true for steps after the end of the episode, whose commands have no effect. ``domain`` ``(n,)``,
                optional, has the indices of the domains. ``world_parameters`` ``(n, m)``, optional, has the true values
                of the parameters that the policy estimates, in SI units; without them, estimates are not trained.
            generator: source of random draws, except those of dropout, which come from torch's default; None for
                torch's default.

        Returns:
            The mean loss, which is to be minimized; the loss of each sample ``(n,)``; and the mean of each part of the
            loss, by name.

        Raises:
            InputError: If an observation or the commands are missing or have another shape.
        """
        self._check_batch(batch)
        action = batch[ACTION].to(torch.float32)
        is_pad = batch[IS_PAD].bool() if IS_PAD in batch else torch.zeros_like(action[..., 0], dtype=torch.bool)
        if self.settings.action_space != "absolute":
            action = action - self._base(batch)[:, None]
        target = self.normalizer(ACTION, _fill_padding(action, is_pad))
        each, parts = self.network.compute_losses(self._inputs(batch, batch.get(DOMAIN)), target, is_pad, generator)
        return each.mean(), each, {name: values.detach().mean() for name, values in parts.items()}

    def predict(
        self,
        observation: Mapping[str, NDArray | Tensor],
        noise: NDArray | None = None,
        domain: str | None = None,
    ) -> NDArray[np.float64]:
        """Return command chunks ``(n, chunk_size, k)`` in the dataset's units; see `predict_with_features`."""
        return self.predict_with_features(observation, noise, domain)[0]

    def predict_with_features(
        self,
        observation: Mapping[str, NDArray | Tensor],
        noise: NDArray | None = None,
        domain: str | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predict command chunks for n observations in evaluation mode, without gradients and on one thread.

        Samples are processed in groups of one fixed size, so that the result of a sample does not depend on other
        samples.

        Args:
            observation: observations as described in the class.
            noise: standard normal numbers ``(n, noise_size)``; None for the same fixed numbers for every sample.
            domain: name of a domain (source of the data); None for the settings' default domain.

        Returns:
            Chunks ``(n, chunk_size, k)`` in the dataset's units with k commands per step, and features ``(n, d)`` with
            d numbers per sample.

        Raises:
            InputError: If an observation is missing or has another shape.
        """
        token = None if domain is None else torch.full((self.layout.tile,), self.settings.domain_index(domain))

        def predict(part: Mapping[str, NDArray], draws: NDArray | None) -> tuple[NDArray, NDArray]:
            tensors = {key: torch.as_tensor(values).to(self._device) for key, values in part.items()}
            made = self(tensors, None if draws is None else torch.as_tensor(draws).to(self._device), token)
            return made[0].cpu().numpy(), made[1].cpu().numpy()

        with use_acting_mode(self):
            return self.layout.predict_in_tiles(observation, noise, predict)

    def estimate(self, observation: Batch) -> Tensor:
        """Return the estimated parameters of n robots in SI units, ``(n, m)``, as ``settings.estimates`` names them.

        Raises:
            InputError: If the policy estimates no parameters, or an observation is missing or has another shape.
        """
        if not isinstance(self.network, AdaptiveNetwork) or PARAMETERS not in self.statistics.columns:
            raise InputError(f"This policy of kind {self.kind} estimates no parameters. Teach one with `distill`.")
        self.layout.check(observation)
        with use_acting_mode(self):
            found, _ = self.network.encoder.encode_history(self._inputs(observation, None))
            return self.normalizer.inverse(PARAMETERS, found)

    def save(self, folder: str | Path, card: PolicyCard | None = None) -> Path:
        """Write the policy to a folder; after an interruption the folder is unchanged or complete. Return the folder.

        Args:
            folder: the folder.
            card: model card; None for an empty card.
        """
        return write_policy(
            Path(folder), self.state_dict(), self.identity, self.statistics.to_json(), card or PolicyCard()
        )

    @property
    def identity(self) -> dict[str, Any]:
        """Kind, settings and contract as a JSON-compatible dictionary."""
        return {"kind": self.kind, "settings": self.config, "contract": self.contract.to_json()}

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def _inputs(self, observation: Batch, domain: str | Tensor | None) -> NetworkInputs:
        floats = {key: observation[key].to(torch.float32) for key in self.layout.sizes}
        vectors = {key: self.normalizer(key, values).flatten(1) for key, values in floats.items()}
        images = {
            name: observation[IMAGES + name].to(torch.float32).div(127.5).sub(1).movedim(-1, 2)
            for name in self.contract.cameras
        }
        token = None
        if self.settings.domains:
            count = next(iter(observation.values())).shape[0]
            index = domain if isinstance(domain, Tensor) else self.settings.domain_index(domain)
            token = torch.as_tensor(index, dtype=torch.long, device=self._device).expand(count)
        known = self.normalizer(PARAMETERS, observation[PARAMETERS]) if PARAMETERS in observation else None
        return NetworkInputs(vectors=vectors, images=images, domain=token, parameters=known)

    def _base(self, observation: Batch) -> Tensor:
        """Return the values ``(n, k)`` to which predicted commands are relative."""
        if self.settings.action_space == "delta_to_state":
            return observation[STATE][:, -1].to(torch.float32)
        held = observation[LAST_COMMAND].to(torch.float32)
        return held[:, -1] if self.settings.command_history else held

    def _noise(self, count: int, noise: Tensor | None) -> Tensor:
        if noise is None:
            noise = torch.as_tensor(fixed_noise(self.noise_size), device=self._device).expand(count, -1)
        return noise

    def _check_batch(self, batch: Batch) -> None:
        count = self.layout.check(batch)
        wanted = (count, self.chunk_size, self.action_size)
        if ACTION not in batch or tuple(batch[ACTION].shape) != wanted:
            there = f"has shape {tuple(batch[ACTION].shape)}" if ACTION in batch else "is missing"
            raise InputError(f"{ACTION} {there}; the policy expects {wanted}.")


@contextlib.contextmanager
def use_acting_mode(policy: Policy) -> Iterator[None]:
    """Return a context manager for evaluation mode, no gradients and one thread; it restores the previous state."""
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
    """Return commands in which padding repeats the last valid command, so that values in padding have no effect.

    Args:
        action: commands ``(n, chunk_size, k)`` with k commands per step.
        is_pad: mask ``(n, chunk_size)``, true for padding.
    """
    steps = torch.arange(action.shape[1], device=action.device).expand(is_pad.shape)
    last = torch.where(is_pad, 0, steps).cummax(dim=1).values
    return action.gather(1, last[..., None].expand_as(action))
