"""Provide commands for a running robot, from a saved policy in this process or as a slow motion to the start position.

`client` provides the commands of a policy on a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import STATE, Contract
from twinloop.core.errors import InputError
from twinloop.hardware.teleop_motion import interpolate_minimum_jerk
from twinloop.policies.folder import is_policy_path
from twinloop.release.envelope import Envelope

if TYPE_CHECKING:
    from twinloop.policies.policy import Policy
    from twinloop.release.registry import PolicyRegistry


Array = NDArray[np.float64]
Observation = Mapping[str, NDArray[Any]]


class Decider(Protocol):
    """Source of commands for one robot, for example a policy.

    Attributes:
        name: name that is recorded with an episode.
        hash: hash of the policy, which is recorded with an episode; empty if there is none.
        contract: observations that it needs, and joints and units of its commands.
    """

    name: str
    hash: str
    contract: Contract

    def restart(self, episode: int) -> None:
        """Clear the memory of the previous episode, and start the episode with this number."""
        ...

    def act(self, observation: Observation) -> Array:
        """Return the next command for k joints, shape ``(k,)``, in the contract's units.

        Args:
            observation: arrays with LeRobot's names, for one robot (no batch axis).
        """
        ...

    def report_sent(self, command: Array) -> None:
        """Report the command that was sent to the robot, shape ``(k,)``, if it differs from the returned command."""
        ...

    def close(self) -> None:
        """Release the resources of the decider."""
        ...


class LocalDecider:
    """Source of commands that runs a saved policy in this process.

    Attributes:
        acting: the `PolicyLoop` that runs the policy, which monitors may read; None before the first episode.

    Args:
        policy: opened policy.
        name: name that is recorded with an episode.
        run_seed: seed of random draws within the policy; they depend on this seed and the episode only.
        folder: folder in which the policy is saved, or None.
    """

    def __init__(self, policy: Policy, *, name: str, run_seed: int = 0, folder: Path | None = None) -> None:
        from twinloop.policies.policy_loop import PolicyLoop

        self._policy, self._run_seed, self._make = policy, run_seed, PolicyLoop
        self.name, self.hash, self.contract, self.folder = name, policy.hash, policy.contract, folder
        self.acting: PolicyLoop | None = None

    def restart(self, episode: int) -> None:
        """Clear the policy's memory, and start the episode with this number."""
        self.acting = self._make(self._policy, 1, run_seed=self._run_seed, episodes=[episode])

    def act(self, observation: Observation) -> Array:
        """Return the policy's next command for k joints, shape ``(k,)``, in the contract's units.

        Raises:
            InputError: If no episode was started, and the policy has a memory.
        """
        if self.acting is None:
            steps = self._policy.settings.n_obs_steps
            if steps > 1:
                raise InputError(
                    f"{self.name} remembers {steps} control steps, but no episode was started. Call "
                    "restart(EPISODE) before the first observation of every episode."
                )
            self.restart(0)
        assert self.acting is not None  # noqa: S101 - restart made it
        rows = {key: np.asarray(values)[None] for key, values in observation.items()}
        return np.asarray(self.acting.act(rows), dtype=np.float64)[0]

    def report_sent(self, command: Array) -> None:
        """Pass the command that was sent to the robot, shape ``(k,)``, to the policy."""
        if self.acting is not None:
            self.acting.set_sent_commands(command[None])

    def close(self) -> None:
        """Do nothing, because there are no resources to release."""

    def copy(self) -> LocalDecider:
        """Return another source of commands from the same policy, with a separate memory; both share the network."""
        return LocalDecider(self._policy, name=self.name, run_seed=self._run_seed, folder=self.folder)


def open_local(folder: Path, *, name: str = "", run_seed: int = 0) -> LocalDecider:
    """Open the policy that is saved in a folder; raises the errors of `policies.open_policy`.

    Args:
        name: name that is recorded with an episode; by default the folder.
        run_seed: seed of random draws within the policy.
    """
    from twinloop.policies import open_policy

    return LocalDecider(open_policy(folder), name=name or str(folder), run_seed=run_seed, folder=folder)


def open_saved(reference: str, registry: PolicyRegistry | None, *, run_seed: int = 0) -> LocalDecider:
    """Open a policy in this process, by its folder, or by a version or alias of the registry.

    Args:
        reference: folder, ONNX file, alias such as ``champion``, or ``NAME@VERSION``.
        registry: registry of the workspace; None if there is no workspace.
        run_seed: seed of random draws within the policy.

    Raises:
        InputError: If the reference is not a folder and there is no registry, or if the policy is damaged.
        UnknownNameError: If the registry has no such version.
    """
    if is_policy_path(reference):
        return open_local(Path(reference), run_seed=run_seed)
    if registry is None:
        raise InputError(
            f"{reference!r} is neither a folder of a policy nor the address of a server, and there is no workspace "
            "here to find it by name. Give a folder, http://HOST:PORT, or work in a workspace."
        )
    version = registry.version(reference)
    return open_local(registry.folder(version.reference), name=version.reference, run_seed=run_seed)


# Share of the envelope's speed limit: 0.5 rad/s for the SO-101, slow enough for a person to step back.
_SLOWLY = 1.0 / 6.0
_PEAK = 1.875  # peak over mean speed of a minimum-jerk move
_SHORTEST_S, _REST_S = 0.5, 0.5


class HomingMove:
    """Source of commands for a slow minimum-jerk motion from the measured joint positions to a start position.

    Args:
        envelope: safety envelope, whose speed limits determine the duration.
        home: start position of n joints, shape ``(n,)``, in the robot's units.
        contract: contract of the robot.
    """

    name, hash = "home", ""

    def __init__(self, envelope: Envelope, home: Array, contract: Contract) -> None:
        self._envelope, self._home, self.contract = envelope, home, contract
        self._path: Array | None = None
        self._at = 0

    def count_steps(self, reading: Array) -> int:
        """Return the number of control steps of the motion.

        Args:
            reading: joint positions at its start, shape ``(n,)``, in the robot's units.
        """
        return len(self._plan_path(reading))

    def restart(self, episode: int) -> None:  # noqa: ARG002  # the motion depends on the start position only
        """Plan the motion again from the positions of the next observation; the number ``episode`` is not used."""
        self._path, self._at = None, 0

    def act(self, observation: Observation) -> Array:
        """Return the next command of the motion, shape ``(n,)``, in the robot's units; its last command is repeated."""
        if self._path is None:
            self._path = self._plan_path(np.asarray(observation[STATE], dtype=np.float64))
        row = self._path[min(self._at, len(self._path) - 1)]
        self._at += 1
        return row

    def report_sent(self, command: Array) -> None:
        """Do nothing, because the motion does not depend on the sent command."""

    def close(self) -> None:
        """Do nothing, because there are no resources to release."""

    def _plan_path(self, reading: Array) -> Array:
        units, limits = self._envelope.units, self._envelope.limits
        start, home = units.to_si(reading), units.to_si(self._home)
        seconds = max(_SHORTEST_S, float(np.max(_PEAK * np.abs(home - start) / (_SLOWLY * limits.speed))))
        time = np.arange(1, round((seconds + _REST_S) / limits.dt) + 1, dtype=np.float64) * limits.dt
        return units.from_si(interpolate_minimum_jerk([0.0, seconds, seconds + 2 * _REST_S], [start, home, home], time))
