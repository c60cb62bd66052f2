"""Run a policy's ONNX file with onnxruntime; torch is not needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import Contract
from twinloop.core.errors import InputError
from twinloop.encoders.onnx import open_session
from twinloop.policies.config import parse_config
from twinloop.policies.observations import ObservationLayout, fixed_noise
from twinloop.policies.onnx_file import DOMAIN, NOISE, OUTPUTS, OnnxFile, read_onnx, require_matching_network
from twinloop.policies.settings import Settings
from twinloop.policies.statistics import Statistics, action_size

Array = NDArray[np.float64]


class OnnxPolicy:
    """A policy in an ONNX file, which has the interface `policies.policy_loop.Predictor` and a hash.

    Observations and results are those of `policies.policy.Policy`. The network runs on one CPU thread.

    Attributes:
        contract: joints, cameras and rate that the policy expects.
        settings: settings of the policy.
        statistics: statistics from which the normalization in the network was made.
        layout: names, shapes and types of the arrays of an observation.
        hash: SHA-256 of everything that determines the commands: network, kind, settings and contract.
        source_hash: hash of the policy from which the file was exported.
        noise_size: number of standard normal draws per prediction; 0 if the policy is deterministic.

    Args:
        file: content of the file.

    Raises:
        InputError: If contract, settings or statistics are damaged, or the network does not fit them.
        MissingDependencyError: If onnxruntime is not installed.
    """

    contract: Contract
    settings: Settings
    statistics: Statistics

    def __init__(self, file: OnnxFile) -> None:
        self.contract, self.settings, self.statistics = parse_config(file.config, where=file.where)
        self.layout = ObservationLayout(self.contract, self.settings)
        self.hash, self.source_hash = str(file.config["hash"]), str(file.config.get("source_hash", ""))
        self.noise_size = require_matching_network(file, self.layout)
        self._where = file.where
        self._session = open_session(file.data, where=file.where, what="A policy in an ONNX file")

    @classmethod
    def open(cls, path: Path) -> OnnxPolicy:
        """Open a policy's ONNX file; raises the errors of the class and of `onnx_file.parse_onnx`."""
        return cls(read_onnx(path))

    @property
    def kind(self) -> str:
        """Kind of the policy, one of `settings.KINDS`."""
        return self.settings.kind

    @property
    def observation_keys(self) -> tuple[str, ...]:
        """Keys that an observation must have: vectors first, then images."""
        return self.layout.keys

    def predict(
        self, observation: Mapping[str, NDArray], noise: NDArray | None = None, domain: str | None = None
    ) -> Array:
        """Return command chunks ``(n, chunk_size, k)`` in the dataset's units; see `predict_with_features`."""
        return self.predict_with_features(observation, noise, domain)[0]

    def predict_with_features(
        self, observation: Mapping[str, NDArray], noise: NDArray | None = None, domain: str | None = None
    ) -> tuple[Array, Array]:
        """Predict command chunks for n observations.

        Samples are processed in groups of one fixed size, so that the result of a sample does not depend on other
        samples.

        Args:
            observation: observations as described in `policies.policy.Policy`.
            noise: standard normal numbers ``(n, noise_size)``; None for the same fixed numbers for every sample.
            domain: name of a domain (source of the data); None for the settings' default domain.

        Returns:
            Chunks ``(n, chunk_size, k)`` in the dataset's units with k commands per step, and features ``(n, d)`` with
            d numbers per sample.

        Raises:
            InputError: If an observation is missing or has another shape, or the network cannot be run.
        """
        index = self.settings.domain_index(domain)
        return self.layout.predict_in_tiles(
            observation, noise, lambda part, draws: self.run_network(part, draws, index)
        )

    def run_network(
        self, observation: Mapping[str, NDArray], noise: NDArray | None, domain: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Run the network once for n observations; the arguments are those of `predict_with_features`.

        Args:
            observation: observations.
            noise: standard normal numbers ``(n, noise_size)``, or None.
            domain: index of the domain.
        """
        count = len(observation[self.layout.keys[0]])
        inputs: dict[str, Any] = {
            key: values if values.dtype == np.uint8 else values.astype(np.float32)
            for key, values in observation.items()
        }
        if self.noise_size:
            draws = fixed_noise(self.noise_size) if noise is None else noise
            inputs[NOISE] = np.broadcast_to(draws, (count, self.noise_size)).astype(np.float32)
        if self.settings.domains:
            inputs[DOMAIN] = np.full(count, domain, dtype=np.int64)
        try:
            chunk, features = self._session.run(OUTPUTS, inputs)
        except Exception as error:  # onnxruntime's own exceptions have no common public base
            raise InputError(f"{self._where} cannot be run ({' '.join(str(error).split())}).") from error
        wanted = (count, self.settings.chunk_size, action_size(self.contract))
        if chunk.shape != wanted:
            raise InputError(
                f"{self._where} gives commands of shape {chunk.shape} instead of {wanted}. Export it again."
            )
        return chunk, features
