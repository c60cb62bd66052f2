"""Records that travel between rooms. Arrays are frozen on entry: a record is a fact, not a workspace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, LogError, UnknownNameError
from twinloop.core.seeds import uniforms
from twinloop.core.units import UnitMap

Source = Literal["real", "sim", "augmented", "human-in-the-loop"]


def frozen(array: ArrayLike) -> NDArray[np.float64]:
    """A read-only float64 copy."""
    copy = np.array(array, dtype=np.float64)
    copy.setflags(write=False)
    return copy


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One recorded episode of a robot, real or virtual.

    ``action[t]`` is the command issued at ``time[t]``, ``state[t]`` the joint positions measured then; both are
    ``(T, n)`` in the log's own units, which ``units`` maps to radians.

    Raises:
        LogError: empty, NaN, mismatched lengths, or time that does not increase; names the frame and column.
    """

    index: int
    time: NDArray[np.float64]
    action: NDArray[np.float64]
    state: NDArray[np.float64]
    units: UnitMap
    task: str = ""
    source: Source = "real"
    origin: str = ""
    robot_type: str = ""

    def __post_init__(self) -> None:
        for name in ("time", "action", "state"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        self._check()

    @property
    def joints(self) -> tuple[str, ...]:
        """Joint names in column order."""
        return self.units.names

    def __len__(self) -> int:
        return len(self.time)

    def _check(self) -> None:
        where = f"Episode {self.index} of {self.origin or 'the log'}"
        shape = (len(self.time), len(self.joints))
        if not len(self.time):
            raise LogError(f"{where} is empty. Leave it out or record it again.")
        for name in ("action", "state"):
            values = getattr(self, name)
            if values.shape != shape:
                raise LogError(f"{where}: {name} has shape {values.shape}, expected {shape} (frames, joints).")
            bad = np.argwhere(~np.isfinite(values))
            if len(bad):
                frame, column = bad[0]
                raise LogError(
                    f"{where}: {name} of {self.joints[column]} is {values[frame, column]} at frame {frame} "
                    f"({len(bad)} such values). Remove those frames or fill them before importing."
                )
        if not np.isfinite(self.time).all():
            raise LogError(f"{where}: a timestamp is not finite at frame {int(np.argmin(np.isfinite(self.time)))}.")
        backwards = np.flatnonzero(np.diff(self.time) <= 0)
        if len(backwards):
            at = int(backwards[0]) + 1
            before, after = self.time[at - 1 : at + 1]
            raise LogError(
                f"{where}: time does not increase at frame {at} ({before:.6f} s, then {after:.6f} s). "
                "Sort the rows or remove duplicates before importing."
            )


@dataclass(frozen=True, kw_only=True)
class SeedPath:
    """What the chance inside many worlds is a function of: the run seed, and ``(nworld,)`` episode and attempt."""

    run_seed: int
    episodes: NDArray[np.int64]
    attempts: NDArray[np.int64]

    @classmethod
    def of(cls, run_seed: int, episodes: ArrayLike, attempts: ArrayLike = 0) -> SeedPath:
        """One path per episode number; ``attempts`` is one number or one each."""
        numbers = np.array(episodes, dtype=np.int64, ndmin=1)
        tries = np.array(np.broadcast_to(np.asarray(attempts, dtype=np.int64), numbers.shape))
        numbers.setflags(write=False)
        tries.setflags(write=False)
        return cls(run_seed=run_seed, episodes=numbers, attempts=tries)

    def take(self, worlds: ArrayLike) -> SeedPath:
        """The paths of some worlds, in the order given."""
        index = np.asarray(worlds)
        return SeedPath.of(self.run_seed, self.episodes[index], self.attempts[index])

    def uniforms(self, stream: str, *, size: int = 1, step: ArrayLike = 0) -> NDArray[np.float64]:
        """Uniform numbers in (0, 1) of one stream at one step of each world, ``(nworld, size)``."""
        return uniforms(self.run_seed, stream, self.episodes, size=size, attempt=self.attempts, step=step)


@dataclass(frozen=True, kw_only=True)
class ParamTable:
    """Parameter values of many worlds: ``values`` is ``(nworld, nparam)``, columns named and in SI units.

    ``steps`` holds the parameters that change at every control step, ``(nworld, nstep)`` each; they override their
    column of ``values`` while a rollout runs. ``seeds`` seeds what happens by chance within a world (a lost command,
    a late one); a table without it holds worlds in which nothing does.
    """

    names: tuple[str, ...]
    values: NDArray[np.float64]
    steps: Mapping[str, NDArray[np.float64]] = field(default_factory=dict[str, NDArray[np.float64]])
    seeds: SeedPath | None = None

    def __post_init__(self) -> None:
        values = frozen(np.atleast_2d(self.values))
        if values.shape[1] != len(self.names):
            raise ValueError(f"{values.shape[1]} columns for {len(self.names)} names")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "steps", {name: frozen(rows) for name, rows in self.steps.items()})

    @property
    def nworld(self) -> int:
        """Number of worlds."""
        return len(self.values)

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """Values of one parameter, ``(nworld,)``."""
        if name not in self.names:
            raise UnknownNameError("parameter", name, self.names)
        return self.values[:, self.names.index(name)]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def get(self, name: str, default: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values of one parameter, or ``default`` where the table has none of that name."""
        return self[name] if name in self.names else default

    def take(self, worlds: ArrayLike) -> ParamTable:
        """The table of some worlds, in the order given."""
        index = np.asarray(worlds)
        steps = {name: rows[index] for name, rows in self.steps.items()}
        seeds = self.seeds.take(index) if self.seeds else None
        return ParamTable(names=self.names, values=self.values[index], steps=steps, seeds=seeds)

    def with_steps(self, steps: Mapping[str, NDArray[np.float64]]) -> ParamTable:
        """The same table with these parameters changing at every control step."""
        return replace(self, steps=steps)

    def with_seeds(self, seeds: SeedPath) -> ParamTable:
        """The same table with what seeds the chance within its worlds."""
        return replace(self, seeds=seeds)

    def at(self, step: ArrayLike) -> ParamTable:
        """The table in force during one control step, the same in every world or ``(nworld,)``.

        A world that runs on past the steps that were drawn keeps the last.
        """
        if not self.steps:
            return self
        values, worlds = self.values.copy(), np.arange(self.nworld)
        for name, rows in self.steps.items():
            values[:, self.names.index(name)] = rows[worlds, np.minimum(step, rows.shape[1] - 1)]
        return replace(self, values=values, steps={})

    def put(self, worlds: ArrayLike, rows: ParamTable) -> ParamTable:
        """The table with some worlds' rows replaced by those of another table with the same columns."""
        index = np.asarray(worlds)
        values = self.values.copy()
        values[index] = rows.values
        steps = {name: column.copy() for name, column in self.steps.items()}
        for name, column in steps.items():
            column[index] = rows.steps[name]
        return replace(self, values=values, steps=steps, seeds=_put_seeds(self.seeds, index, rows.seeds))

    def row(self, world: int) -> dict[str, float]:
        """One world's values by name."""
        return {name: float(value) for name, value in zip(self.names, self.values[world], strict=True)}

    def tile(self, count: int) -> ParamTable:
        """The table repeated ``count`` times, world axis outermost in the repetition."""
        steps = {name: np.tile(rows, (count, 1)) for name, rows in self.steps.items()}
        seeds = self.seeds.take(np.tile(np.arange(self.nworld), count)) if self.seeds else None
        return ParamTable(names=self.names, values=np.tile(self.values, (count, 1)), steps=steps, seeds=seeds)


def _put_seeds(old: SeedPath | None, index: NDArray[np.intp], new: SeedPath | None) -> SeedPath | None:
    if old is None or new is None:
        return None
    episodes, attempts = old.episodes.copy(), old.attempts.copy()
    episodes[index], attempts[index] = new.episodes, new.attempts
    return SeedPath.of(old.run_seed, episodes, attempts)


@dataclass(frozen=True, kw_only=True)
class ParamDistribution:
    """What identification knows: a normal distribution over transformed parameters.

    ``mean`` and ``covariance`` live in the space of ``transforms`` (``"identity"`` or ``"log"``, one per name);
    ``low`` and ``high`` are physical bounds in SI. ``determined[i]`` is False where the data do not tell the
    parameter: its interval must not be printed, and its range comes from elsewhere.
    """

    names: tuple[str, ...]
    transforms: tuple[str, ...]
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    determined: tuple[bool, ...]
    clusters: int
    twin_hash: str = ""
    data_hash: str = ""

    def __post_init__(self) -> None:
        for name in ("mean", "covariance", "low", "high"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    @property
    def estimate(self) -> dict[str, float]:
        """Point estimates by name, in SI units."""
        rows = zip(self.names, self.transforms, self.mean, strict=True)
        return {name: float(np.exp(value) if kind == "log" else value) for name, kind, value in rows}

    def to_json(self) -> dict[str, Any]:
        """A plain form for files (schema 1)."""
        return {
            "schema": 1,
            "names": list(self.names),
            "transforms": list(self.transforms),
            "mean": self.mean.tolist(),
            "covariance": self.covariance.tolist(),
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "determined": list(self.determined),
            "clusters": self.clusters,
            "twin_hash": self.twin_hash,
            "data_hash": self.data_hash,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ParamDistribution:
        """The inverse of `to_json`.

        Raises:
            InputError: something is missing; names it.
        """
        wanted = ("names", "transforms", "mean", "covariance", "low", "high", "determined", "clusters")
        missing = [key for key in wanted if key not in value]
        if missing:
            raise InputError(
                f"The identified distribution lacks {', '.join(missing)}. "
                "Give the result that `identify` wrote, unchanged."
            )
        return cls(
            names=tuple(value["names"]),
            transforms=tuple(value["transforms"]),
            mean=np.array(value["mean"]),
            covariance=np.array(value["covariance"]),
            low=np.array(value["low"]),
            high=np.array(value["high"]),
            determined=tuple(bool(flag) for flag in value["determined"]),
            clusters=int(value["clusters"]),
            twin_hash=value.get("twin_hash", ""),
            data_hash=value.get("data_hash", ""),
        )


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where one episode comes from, enough to make it again.

    ``params`` are the drawn values in SI; ``seed_path`` is (run seed, episode number, attempt); ``versions`` names
    engine, package, numpy and, where pixels exist, renderer; ``commands_hash`` and ``states_hash`` are SHA-256.
    """

    source: Source
    twin: str
    twin_hash: str
    config_hash: str
    params: Mapping[str, float]
    seed_path: tuple[int, int, int]
    versions: Mapping[str, str]
    actor: str
    task: str
    units: Mapping[str, Any]
    success: bool | None = None
    success_version: str = ""
    valid: bool = True
    invalid_reason: str = ""
    parents: tuple[str, ...] = ()
    content_hash: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        """A plain form for files (schema 1)."""
        return {
            "schema": 1,
            "source": self.source,
            "twin": self.twin,
            "twin_hash": self.twin_hash,
            "config_hash": self.config_hash,
            "params": dict(self.params),
            "seed_path": list(self.seed_path),
            "versions": dict(self.versions),
            "actor": self.actor,
            "task": self.task,
            "units": dict(self.units),
            "success": self.success,
            "success_version": self.success_version,
            "valid": self.valid,
            "invalid_reason": self.invalid_reason,
            "parents": list(self.parents),
            "content_hash": self.content_hash,
            "extra": dict(self.extra),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Provenance:
        """The inverse of `to_json`; reads every schema up to this one."""
        fields = {key: item for key, item in value.items() if key != "schema"}
        fields["seed_path"] = tuple(fields["seed_path"])
        fields["parents"] = tuple(fields["parents"])
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class SimEpisode:
    """One simulated episode on its way to a dataset: T commands, T+1 states, what was observed, and provenance.

    ``commands`` ``(T, nu)`` and ``states`` ``(T+1, nstate)`` are float64 in SI, for exact replay; the first column of
    the states is the true time in s. ``action`` and
    ``observation`` ``(T, n)`` are in the dataset's units (``provenance.units``), as a policy would see them.
    ``next_success`` ``(T,)`` says whether the success predicate held after each step.
    """

    number: int
    commands: NDArray[np.float64]
    states: NDArray[np.float64]
    action: NDArray[np.float64]
    observation: NDArray[np.float64]
    next_success: NDArray[np.bool_]
    provenance: Provenance

    def __len__(self) -> int:
        return len(self.commands)
