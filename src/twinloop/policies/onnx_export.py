"""Write a policy as one ONNX file with its contract, after comparing onnxruntime's results with those of torch.

The network in the file contains the normalization: its inputs and outputs are in the units of the dataset.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop.core.assignment import copy_sources
from twinloop.core.contract import ACTION
from twinloop.core.errors import CheckFailedError, InputError, MissingDependencyError
from twinloop.core.files import dumps, write_bytes
from twinloop.core.seeds import generator
from twinloop.policies.config import SCHEMA
from twinloop.policies.folder import ONNX_SUFFIX, PolicyCard
from twinloop.policies.onnx_file import (
    DOMAIN,
    METADATA,
    NOISE,
    OUTPUTS,
    REMEDY,
    list_inputs,
    network_hash,
    parse_onnx,
    require_onnx,
    walk_messages,
)
from twinloop.policies.onnx_policy import OnnxPolicy
from twinloop.policies.policy import Policy, use_acting_mode
from twinloop.policies.policy_loop import PolicyLoop, Predictor
from twinloop.policies.statistics import LAST_COMMAND, MEMORY

LIMIT = 1e-5  # largest difference from torch, relative to the largest value of a column
_COUNTS = (1, 2, 16, 17)  # samples of the comparisons
_WORLDS = 2  # of the compared episode
_PACKAGES = ("twinloop", "torch", "onnx", "onnxscript", "onnxruntime", "numpy")


def export_onnx(
    policy: Policy, output: Path, card: PolicyCard | None = None, *, seed: int = 0
) -> tuple[OnnxPolicy, float]:
    """Write a policy as an ONNX file; return the opened file and its largest difference from the policy.

    The file is written only after the comparison (see `measure_difference`). The files of the user's own twin and task
    are copied to ``sources`` next to it.

    Args:
        policy: the policy, on the CPU.
        output: the file, which must end in ``.onnx``.
        card: model card.
        seed: seed of the observations of the comparison.

    Raises:
        InputError: If ``output`` has another ending.
        MissingDependencyError: If onnx, onnxscript or onnxruntime is not installed.
        CheckFailedError: If the difference is above 1e-5. Nothing is written then.
    """
    if output.suffix != ONNX_SUFFIX:
        raise InputError(f"{output} must end in {ONNX_SUFFIX}: the commands recognize such a policy by its ending.")
    card = card or PolicyCard()
    data = make_onnx(policy, card)
    exported = OnnxPolicy(parse_onnx(data, where=str(output)))
    difference = measure_difference(policy, exported, seed=seed)
    if not difference <= LIMIT:
        raise CheckFailedError(
            f"The commands or features of onnxruntime differ from those of torch by {difference:.1e} of their largest "
            f"value; {LIMIT:.0e} is allowed. {output} was not written."
        )
    copy_sources(card.sources, output.absolute().parent)
    write_bytes(output, data)
    return exported, difference


def make_onnx(policy: Policy, card: PolicyCard) -> bytes:
    """Return the content of a policy's ONNX file; equal policies and cards give equal bytes.

    Raises:
        MissingDependencyError: If onnx or onnxscript is not installed.
    """
    require_onnx()
    try:
        import onnxscript  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(f"The export to ONNX needs onnxscript ({error}).", remedy=REMEDY) from error
    model = _trace(policy)
    config = {
        "schema": SCHEMA,
        **policy.identity,
        "parameters": policy.parameter_count,
        "statistics": policy.statistics.to_json(),
        "source_hash": policy.hash,
        "versions": {name: version(name) for name in _PACKAGES},
        "card": card.to_json(),
    }
    config["hash"] = network_hash(model, config)
    model.metadata_props.add(key=METADATA, value=dumps(config))
    return model.SerializeToString(deterministic=True)


def measure_difference(policy: Policy, exported: OnnxPolicy, *, seed: int = 0) -> float:
    """Return the largest difference of commands and features between torch and onnxruntime.

    A difference of commands is divided by the largest absolute value of its joint, a difference of features by the
    largest absolute value of all. The observations are drawn from the normal distribution with the policy's
    normalization, and images from all pixels, for 1, 2, 16 and 17 samples and for every domain. Then a whole episode of
    them, twice as long as the policy's memory, passes through `PolicyLoop`, which remembers observations and the
    commands that were sent.

    Args:
        policy: the policy.
        exported: the policy in an ONNX file.
        seed: seed of the draws.
    """
    pairs = list[tuple[tuple[NDArray, NDArray], tuple[NDArray, NDArray]]]()
    for domain, count in product(range(1 + len(policy.settings.domains)), _COUNTS):
        rng = generator(seed, f"policy/onnx/{domain}/{count}")
        observation = {key: _draw(policy, key, count, rng) for key in policy.observation_keys}
        noise = rng.standard_normal((count, policy.noise_size), dtype=np.float32)
        with use_acting_mode(policy):
            chunk, features = policy(
                {key: torch.as_tensor(values) for key, values in observation.items()},
                torch.as_tensor(noise),
                torch.full((count,), domain),
            )
        pairs.append(((chunk.numpy(), features.numpy()), exported.run_network(observation, noise, domain)))
    joints = policy.action_size
    return max(
        _compare(_act_in_episode(one, policy, seed) for one in (policy, exported)),
        *(
            _compare(np.concatenate([row[side][part].reshape(-1, width) for row in pairs]) for side in (0, 1))
            for part, width in ((0, joints), (1, 1))
        ),
    )


def _act_in_episode(acting: Predictor, policy: Policy, seed: int) -> NDArray[np.float64]:
    """Return the commands of a policy ``(m, k)`` in an episode of random observations and of random sent commands."""
    rng = generator(seed, "policy/onnx/episode")
    size, steps = (_WORLDS, policy.action_size), 2 * policy.n_obs_steps + policy.n_action_steps
    sent = rng.standard_normal((steps, *size)) * policy.statistics.columns[ACTION].std
    loop, commands = PolicyLoop(acting, _WORLDS, command=np.zeros(size)), list[NDArray[np.float64]]()
    for held in sent:
        seen = {
            key: _draw(policy, key, _WORLDS, rng)
            for key in policy.observation_keys
            if key not in (LAST_COMMAND, MEMORY)
        }
        commands.append(loop.act({key: values[:, -1] for key, values in seen.items()}))
        loop.set_sent_commands(held)
    return np.concatenate(commands)


def _compare(sides: Iterable[NDArray]) -> float:
    """Return the largest difference of two tables ``(m, k)``, relative to the largest absolute value of a column."""
    wanted, found = (side.astype(np.float64) for side in sides)
    size, error = np.abs(wanted).max(axis=0), np.abs(wanted - found).max(axis=0)
    return float(np.divide(error, size, out=np.where(error == 0, 0.0, np.inf), where=size > 0).max())


def _draw(policy: Policy, key: str, count: int, rng: np.random.Generator) -> NDArray:
    """Return random values of one array of an observation."""
    shape = (count, *policy.layout.shape(key))
    if key == MEMORY:
        values = np.abs(rng.standard_normal(shape, dtype=np.float32))  # variances are positive
        values[:, :2] = rng.integers(0, 2, (count, 2))  # a new image or none, estimates or none
        return values
    if key not in policy.layout.sizes:
        return rng.integers(0, 256, shape, dtype=np.uint8)
    with torch.inference_mode():
        return policy.normalizer.inverse(key, torch.as_tensor(rng.standard_normal(shape, dtype=np.float32))).numpy()


class _Exported(nn.Module):
    """Policy whose arguments are one list: the arrays of the observation, then noise and domain if it has them."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self.names = tuple(list_inputs(policy.layout, policy.noise_size))

    def forward(self, arrays: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return chunks and features of the policy."""
        given = dict(zip(self.names, arrays, strict=True))
        noise, domain = given.pop(NOISE, None), given.pop(DOMAIN, None)
        return self.policy(given, noise, domain)


def _trace(policy: Policy) -> Any:
    """Return the network of a policy as an ``onnx.ModelProto`` with a free number of samples."""
    wanted = list_inputs(policy.layout, policy.noise_size)
    kinds = {"float32": torch.float32, "uint8": torch.uint8, "int64": torch.int64}
    examples = [torch.zeros([2, *map(int, shape[1:])], dtype=kinds[kind]) for kind, shape in wanted.values()]
    free = torch.export.Dim("n")
    with use_acting_mode(policy), _quiet():
        program: Any = torch.onnx.export(
            _Exported(policy),
            (examples,),
            input_names=list(wanted),
            output_names=list(OUTPUTS),
            dynamic_shapes=([{0: free} for _ in examples],),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    model = program.model_proto
    for part in walk_messages(model):  # stack traces with paths of this machine
        if part.DESCRIPTOR.name in ("GraphProto", "NodeProto", "ValueInfoProto"):
            part.ClearField("doc_string")
            part.ClearField("metadata_props")
    model.ClearField("metadata_props")
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Return a context manager without warnings and messages of the exporter about packages that it could also use."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
