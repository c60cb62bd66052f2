"""Sources of commands for a running robot: a saved policy in this process or a slow motion to the start position."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import STATE, Contract
from twinloop.core.errors import InputError
from twinloop.hardware.teleop_motion import interpolate_minimum_jerk
from twinloop.release.envelope import Envelope

if TYPE_CHECKING:
    from twinloop.policies.policy import Policy
    from twinloop.release.registry import PolicyRegistry


Array = NDArray[np.float64]
Observation = Mapping[str, NDArray[Any]]


class Decider(Protocol):
    """Source of commands for one robot; ``name`` and ``hash`` are recorded with the episode."""

    name: str
    hash: str
    contract: Contract

    def restart(self, episode: int) -> None:
        """Reset the memory and start the episode with this number."""
        ...

    def act(self, observation: Observation) -> Array:
        """Return the next command ``(k,)`` in the contract's units; the observation's arrays have no world axis."""
        ...

    def report_sent(self, command: Array) -> None:
        """Report the command ``(k,)`` that was sent to the robot, if it differs from the returned command."""
        ...

    def close(self) -> None:
        """Release the resources of the decider."""
        ...


class LocalDecider:
    """A saved policy in this process; its random draws depend on ``run_seed`` and the episode only.

    Attributes:
        acting: the loop that runs the policy, for watchers; None before the first episode.
    """

    def __init__(self, policy: Policy, *, name: str, run_seed: int = 0) -> None:
        from twinloop.policies.policy_loop import PolicyLoop

        self._policy, self._run_seed, self._make = policy, run_seed, PolicyLoop
        self.name, self.hash, self.contract = name, policy.hash, policy.contract
        self.acting: PolicyLoop | None = None

    def restart(self, episode: int) -> None:
        """Reset the policy's memory and start the episode with this number."""
        self.acting = self._make(self._policy, 1, run_seed=self._run_seed, episodes=[episode])

    def act(self, observation: Observation) -> Array:
        """Return the policy's next command ``(k,)`` in the contract's units."""
        if self.acting is None:
            self.restart(0)
        assert self.acting is not None  # noqa: S101 - restart made it
        rows = {key: np.asarray(values)[None] for key, values in observation.items()}
        return np.asarray(self.acting.act(rows), dtype=np.float64)[0]

    def report_sent(self, command: Array) -> None:
        """Tell the policy which command ``(k,)`` was sent to the robot."""
        if self.acting is not None:
            self.acting.set_sent_commands(command[None])

    def close(self) -> None:
        """Do nothing; it has no resources."""

    def copy(self) -> LocalDecider:
        """Return another decider of the same policy with a separate memory; both share the network."""
        return LocalDecider(self._policy, name=self.name, run_seed=self._run_seed)


def open_local(folder: Path, *, name: str = "", run_seed: int = 0) -> LocalDecider:
    """Open the policy saved in a folder, ready to act; raises the errors of `policies.open_policy`."""
    from twinloop.policies import open_policy

    return LocalDecider(open_policy(folder), name=name or str(folder), run_seed=run_seed)


def open_saved(reference: str, registry: PolicyRegistry | None, *, run_seed: int = 0) -> LocalDecider:
    """Open a policy by its folder, or by a version or alias of the registry, ready to act."""
    if Path(reference).is_dir():
        return open_local(Path(reference), run_seed=run_seed)
    if registry is None:
        raise InputError(
            f"{reference!r} is neither a folder of a policy nor the address of a server, and there is no workspace "
            "here to find it by name. Give a folder, http://HOST:PORT, or work in a workspace."
        )
    version = registry.version(reference)
    return open_local(registry.folder(version.reference), name=version.reference, run_seed=run_seed)


# A sixth of the envelope's speed: 0.5 rad/s for the SO-101, slow enough for a person to step back.
_SLOWLY = 1.0 / 6.0
_PEAK = 1.875  # peak over mean speed of a minimum-jerk move
_SHORTEST_S, _REST_S = 0.5, 0.5


class HomingMove:
    """Decider for a minimum-jerk motion from the measured joint positions to ``home`` ``(n,)``; see `Decider`."""

    name, hash = "home", ""

    def __init__(self, envelope: Envelope, home: Array, contract: Contract) -> None:
        self._envelope, self._home, self.contract = envelope, home, contract
        self._path: Array | None = None
        self._at = 0

    def count_steps(self, reading: Array) -> int:
        """Return the number of control steps of the motion from a reading."""
        return len(self._plan_path(reading))

    def restart(self, episode: int) -> None:  # noqa: ARG002  # the motion depends on the start position only
        """Start the motion again, from the positions of the next observation."""
        self._path, self._at = None, 0

    def act(self, observation: Observation) -> Array:
        """Return the next command ``(n,)`` of the motion; after its end, its last command."""
        if self._path is None:
            self._path = self._plan_path(np.asarray(observation[STATE], dtype=np.float64))
        row = self._path[min(self._at, len(self._path) - 1)]
        self._at += 1
        return row

    def report_sent(self, command: Array) -> None:
        """Do nothing; the motion does not depend on it."""

    def close(self) -> None:
        """Do nothing; it has no resources."""

    def _plan_path(self, reading: Array) -> Array:
        units, limits = self._envelope.units, self._envelope.limits
        start, home = units.to_si(reading), units.to_si(self._home)
        seconds = max(_SHORTEST_S, float(np.max(_PEAK * np.abs(home - start) / (_SLOWLY * limits.speed))))
        time = np.arange(1, round((seconds + _REST_S) / limits.dt) + 1, dtype=np.float64) * limits.dt
        return units.from_si(interpolate_minimum_jerk([0.0, seconds, seconds + 2 * _REST_S], [start, home, home], time))
