"""Small policies: a contract of few joints, statistics of planted samples, and a batch to train on."""

from __future__ import annotations

import numpy as np

from twinloop.core.contract import ACTION, ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.core.units import JointUnit, UnitMap
from twinloop.policies import LAST_COMMAND, Statistics, new_policy

SMALL = {
    "mlp": {"loss": "mse", "width": 32, "depth": 2, "chunk_size": 4, "n_action_steps": 2},
    "act": {"width": 32, "heads": 2, "feed_forward": 32, "chunk_size": 4, "n_action_steps": 2, "latent": 4}
    | {"encoder_layers": 1, "posterior_layers": 1},
    "flow": {"width": 32, "depth": 1, "features": 16, "chunk_size": 4, "n_action_steps": 2, "steps": 2},
    "adaptive": {
        "n_obs_steps": 6,
        "width": 32,
        "depth": 1,
        "channels": 8,
        "latent": 4,
        "chunk_size": 4,
        "n_action_steps": 2,
    },
}


def unit_map(count: int, *, unit: str = "deg") -> UnitMap:
    """Joints j0, j1, … in degrees."""
    rows = (JointUnit(joint=f"j{number}", unit=unit, scale=np.pi / 180, offset=0.0) for number in range(count))
    return UnitMap(joints=tuple(rows), source="test")


def contract(joints: int = 2, environment: int = 3, cameras=None, **changes) -> Contract:
    """A robot of few joints, seen by a tracker and cameras."""
    given = {
        "robot_type": "arm",
        "control_hz": 30.0,
        "action": unit_map(joints),
        "state": unit_map(joints),
        "environment": tuple(f"thing.{number}" for number in range(environment)),
        "cameras": cameras or {},
    }
    return Contract(**{**given, **changes})


def statistics(of: Contract, seed: int = 0) -> Statistics:
    """Statistics of samples in tens of degrees and tenths of metres."""
    rng = np.random.default_rng(seed)
    size = len(of.action.joints)
    samples = {ACTION: rng.normal(5, 20, (200, size)), LAST_COMMAND: rng.normal(5, 20, (200, size))}
    if of.state is not None:
        samples[STATE] = rng.normal(-3, 25, (200, len(of.state.joints)))
    if of.environment:
        samples[ENVIRONMENT] = rng.normal(0.1, 0.05, (200, len(of.environment)))
    return Statistics.measure(samples, source="planted samples")


def small(kind: str, of: Contract | None = None, *, seed: int = 0, **changes):
    """A policy of that kind that is small and untrained."""
    of = of or contract()
    return new_policy(kind, of, {**SMALL[kind], **changes}, statistics(of), seed=seed)


def observation(policy, n: int, seed: int = 1, *, history: bool = True) -> dict[str, np.ndarray]:
    """Random observations of a policy, with its history or of one step."""
    rng = np.random.default_rng(seed)
    steps = (lambda key: (policy.settings.count_steps(key),)) if history else lambda key: ()
    of = policy.contract
    sizes = {STATE: len(of.state.joints) if of.state else 0, ENVIRONMENT: len(of.environment)}
    seen = {key: rng.normal(0, 20 if key == STATE else 0.1, (n, *steps(key), k)) for key, k in sizes.items() if k}
    for name, size in of.cameras.items():
        seen[IMAGES + name] = rng.integers(0, 256, (n, *steps(IMAGES + name), *size, 3), dtype=np.uint8)
    if LAST_COMMAND in policy.observation_keys and history:
        seen[LAST_COMMAND] = rng.normal(0, 20, (n, *policy.layout.shape(LAST_COMMAND)))
    return seen


def batch(policy, n: int, seed: int = 1):
    """Observations and random commands as tensors."""
    import torch

    rng = np.random.default_rng(seed + 100)
    rows = {**observation(policy, n, seed), ACTION: rng.normal(5, 20, (n, policy.chunk_size, policy.action_size))}
    return {key: torch.as_tensor(values) for key, values in rows.items()}
