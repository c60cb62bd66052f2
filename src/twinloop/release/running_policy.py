"""Decide the commands of a running robot: a saved policy here, a server's, or a slow motion to the start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import STATE, Contract
from twinloop.core.errors import InputError
from twinloop.hardware.teleop_motion import minimum_jerk
from twinloop.release.envelope import Envelope

if TYPE_CHECKING:
    from twinloop.policies.policy import Policy
    from twinloop.release.registry import PolicyRegistry


Array = NDArray[np.float64]
Observation = Mapping[str, NDArray[Any]]


class Decider(Protocol):
    """Something that acts on one robot: ``name`` and ``hash`` go into the record of what it did."""

    name: str
    hash: str
    contract: Contract

    def restart(self, episode: int) -> None:
        """Forget what was before: a new episode begins, of this number."""
        ...

    def act(self, observation: Observation) -> Array:
        """The next command ``(k,)`` in the contract's units, for one observation: each array without a world's axis."""
        ...

    def sent(self, command: Array) -> None:
        """What the robot was told in the end ``(k,)``, where something between changed the command."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class LocalDecider:
    """A saved policy in this process; what it draws by chance is a function of ``run_seed`` and the episode.

    Attributes:
        acting: what runs it, for those who watch; None before the first episode.
    """

    def __init__(self, policy: Policy, *, name: str, run_seed: int = 0) -> None:
        from twinloop.policies.acting import PolicyLoop

        self._policy, self._run_seed, self._make = policy, run_seed, PolicyLoop
        self.name, self.hash, self.contract = name, policy.hash, policy.contract
        self.acting: PolicyLoop | None = None

    def restart(self, episode: int) -> None:
        """See `Decider`."""
        self.acting = self._make(self._policy, 1, run_seed=self._run_seed, episodes=[episode])

    def act(self, observation: Observation) -> Array:
        """See `Decider`."""
        if self.acting is None:
            self.restart(0)
        assert self.acting is not None  # noqa: S101 - restart made it
        rows = {key: np.asarray(values)[None] for key, values in observation.items()}
        return np.asarray(self.acting.act(rows), dtype=np.float64)[0]

    def sent(self, command: Array) -> None:
        """See `Decider`."""
        if self.acting is not None:
            self.acting.sent(command[None])

    def close(self) -> None:
        """Nothing is held."""

    def copy(self) -> LocalDecider:
        """Another of the same policy, with a memory of its own; both share the network."""
        return LocalDecider(self._policy, name=self.name, run_seed=self._run_seed)


def open_local(folder: Path, *, name: str = "", run_seed: int = 0) -> LocalDecider:
    """The policy saved in a folder, ready to act; raises as `policies.open_policy`."""
    from twinloop.policies import open_policy

    return LocalDecider(open_policy(folder), name=name or str(folder), run_seed=run_seed)


def open_saved(reference: str, registry: PolicyRegistry | None, *, run_seed: int = 0) -> LocalDecider:
    """The policy that a folder holds, or a version or alias of the registry names, ready to act."""
    if Path(reference).is_dir():
        return open_local(Path(reference), run_seed=run_seed)
    if registry is None:
        raise InputError(
            f"{reference!r} is neither a folder of a policy nor the address of a server, and there is no workspace "
            "here that could know it by name. Give a folder, http://HOST:PORT, or work in a workspace."
        )
    version = registry.version(reference)
    return open_local(registry.folder(version.reference), name=version.reference, run_seed=run_seed)


# A sixth of the envelope's speed: 0.5 rad/s of the SO-101, at which one can step back (as `hardware.excite_drive`).
_SLOWLY = 1.0 / 6.0
_PEAK = 1.875  # peak over mean speed of a minimum-jerk move
_SHORTEST_S, _REST_S = 0.5, 0.5


class HomingMove:
    """See `running_policy.Decider`: a minimum-jerk move from where the joints read to be to ``home`` ``(n,)``."""

    name, hash = "home", ""

    def __init__(self, envelope: Envelope, home: Array, contract: Contract) -> None:
        self._envelope, self._home, self.contract = envelope, home, contract
        self._path: Array | None = None
        self._at = 0

    def steps(self, reading: Array) -> int:
        """Control steps that the move from a reading takes."""
        return len(self._planned(reading))

    def restart(self, episode: int) -> None:  # noqa: ARG002  # the way depends on where it is alone
        """See `Decider`."""
        self._path, self._at = None, 0

    def act(self, observation: Observation) -> Array:
        """See `Decider`."""
        if self._path is None:
            self._path = self._planned(np.asarray(observation[STATE], dtype=np.float64))
        row = self._path[min(self._at, len(self._path) - 1)]
        self._at += 1
        return row

    def sent(self, command: Array) -> None:
        """Nothing depends on it."""

    def close(self) -> None:
        """Nothing is held."""

    def _planned(self, reading: Array) -> Array:
        units, limits = self._envelope.units, self._envelope.limits
        start, home = units.to_si(reading), units.to_si(self._home)
        seconds = max(_SHORTEST_S, float(np.max(_PEAK * np.abs(home - start) / (_SLOWLY * limits.speed))))
        time = np.arange(1, round((seconds + _REST_S) / limits.dt) + 1, dtype=np.float64) * limits.dt
        return units.from_si(minimum_jerk([0.0, seconds, seconds + 2 * _REST_S], [start, home, home], time))
