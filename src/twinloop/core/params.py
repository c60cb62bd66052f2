"""Store the parameter values of many worlds, and the seeds of the random events in these worlds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.records import freeze_array
from twinloop.core.seeds import uniforms


@dataclass(frozen=True, kw_only=True)
class SeedPath:
    """Seeds of the random events in many worlds, such as lost commands.

    Attributes:
        run_seed: Seed of the run, shared by all worlds.
        episodes: Episode number of each world, shape ``(nworld,)``.
        attempts: Attempt number of each world, shape ``(nworld,)``; it increases when an episode is simulated again.
    """

    run_seed: int
    episodes: NDArray[np.int64]
    attempts: NDArray[np.int64]

    @classmethod
    def of(cls, run_seed: int, episodes: ArrayLike, attempts: ArrayLike = 0) -> SeedPath:
        """Create the seed path of worlds from their episode numbers.

        Args:
            run_seed: Seed of the run.
            episodes: One episode number per world.
            attempts: One attempt number per world, or one number for all worlds.
        """
        numbers = np.array(episodes, dtype=np.int64, ndmin=1)
        attempt_numbers = np.array(np.broadcast_to(np.asarray(attempts, dtype=np.int64), numbers.shape))
        numbers.setflags(write=False)
        attempt_numbers.setflags(write=False)
        return cls(run_seed=run_seed, episodes=numbers, attempts=attempt_numbers)

    def take(self, worlds: ArrayLike) -> SeedPath:
        """Return the seed path of the selected worlds, in the given order.

        Args:
            worlds: World indices or a boolean mask.
        """
        index = np.asarray(worlds)
        return SeedPath.of(self.run_seed, self.episodes[index], self.attempts[index])

    def uniforms(self, stream: str, *, size: int = 1, step: ArrayLike = 0) -> NDArray[np.float64]:
        """Return uniform random numbers in the open interval (0, 1) for each world, shape ``(nworld, size)``.

        Args:
            stream: Name of the random stream, for example the purpose of the numbers.
            size: Random numbers per world.
            step: Control step of the numbers, one for all worlds or one per world.
        """
        return uniforms(self.run_seed, stream, self.episodes, size=size, attempt=self.attempts, step=step)


@dataclass(frozen=True, kw_only=True)
class ParamTable:
    """Parameter values of many worlds in SI units.

    Attributes:
        names: Parameter names, one per column of ``values``.
        values: Parameter values, shape ``(nworld, nparam)``.
        steps: Values of the parameters that change at every control step, shape ``(nworld, nstep)`` each. During a
            rollout they override the parameter's column of ``values``.
        seeds: Seeds of the random events within a world, such as a lost or late command; None if the worlds have no
            random events.
    """

    names: tuple[str, ...]
    values: NDArray[np.float64]
    steps: Mapping[str, NDArray[np.float64]] = field(default_factory=dict[str, NDArray[np.float64]])
    seeds: SeedPath | None = None

    def __post_init__(self) -> None:
        values = freeze_array(np.atleast_2d(self.values))
        if values.shape[1] != len(self.names):
            raise ValueError(f"{values.shape[1]} columns for {len(self.names)} names")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "steps", {name: freeze_array(rows) for name, rows in self.steps.items()})

    @property
    def nworld(self) -> int:
        """Number of worlds."""
        return len(self.values)

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {name: column for column, name in enumerate(self.names)}

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """Return the values of one parameter in all worlds, shape ``(nworld,)``."""
        if name not in self._columns:
            raise UnknownNameError("parameter", name, self.names)
        return self.values[:, self._columns[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def get(self, name: str, default: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values of one parameter, shape ``(nworld,)``, or ``default`` if the table does not have it."""
        return self[name] if name in self._columns else default

    def take(self, worlds: ArrayLike) -> ParamTable:
        """Return a table with the selected worlds, in the given order.

        Args:
            worlds: World indices or a boolean mask.
        """
        index = np.asarray(worlds)
        steps = {name: rows[index] for name, rows in self.steps.items()}
        seeds = self.seeds.take(index) if self.seeds else None
        return ParamTable(names=self.names, values=self.values[index], steps=steps, seeds=seeds)

    def with_steps(self, steps: Mapping[str, NDArray[np.float64]]) -> ParamTable:
        """Return a copy of the table in which some parameters change at every control step.

        Args:
            steps: Values in SI units by parameter name, shape ``(nworld, nstep)`` each.
        """
        return replace(self, steps=steps)

    def with_seeds(self, seeds: SeedPath) -> ParamTable:
        """Return a copy of the table with seeds for the random events within its worlds."""
        return replace(self, seeds=seeds)

    def at(self, step: ArrayLike) -> ParamTable:
        """Return the table with the parameter values at one control step.

        After the last control step that has values, a world keeps the last values.

        Args:
            step: Control step, one for all worlds or one per world, shape ``(nworld,)``.
        """
        if not self.steps:
            return self
        values, worlds = self.values.copy(), np.arange(self.nworld)
        for name, rows in self.steps.items():
            values[:, self._columns[name]] = rows[worlds, np.minimum(step, rows.shape[1] - 1)]
        return replace(self, values=values, steps={})

    def replace_worlds(self, worlds: ArrayLike, rows: ParamTable) -> ParamTable:
        """Return a copy of the table in which the selected worlds have the values of another table.

        Args:
            worlds: Indices of the worlds to replace.
            rows: Their new values, one row per index; the table must have the same columns.
        """
        index = np.asarray(worlds)
        values = self.values.copy()
        values[index] = rows.values
        steps = {name: column.copy() for name, column in self.steps.items()}
        for name, column in steps.items():
            column[index] = rows.steps[name]
        return replace(self, values=values, steps=steps, seeds=_put_seeds(self.seeds, index, rows.seeds))

    def require_seeds(self, subject: str) -> SeedPath:
        """Return the seeds of the random events within the worlds, and refuse a table that has no seeds.

        Args:
            subject: Start of the error message. For "The noise of camera/front happens" the message is "The noise of
                camera/front happens by chance, but this parameter table has no seed path."

        Raises:
            InputError: If the table has no seeds.
        """
        if self.seeds is None:
            raise InputError(
                f"{subject} by chance, but this parameter table has no seed path. Draw it with a plan, or add one: "
                "table.with_seeds(SeedPath.of(run_seed, episodes))."
            )
        return self.seeds

    def row(self, world: int) -> dict[str, float]:
        """Return the parameter values of one world, by parameter name."""
        return {name: float(value) for name, value in zip(self.names, self.values[world], strict=True)}

    def tile(self, count: int) -> ParamTable:
        """Return a table that repeats the whole sequence of worlds ``count`` times."""
        steps = {name: np.tile(rows, (count, 1)) for name, rows in self.steps.items()}
        seeds = self.seeds.take(np.tile(np.arange(self.nworld), count)) if self.seeds else None
        return ParamTable(names=self.names, values=np.tile(self.values, (count, 1)), steps=steps, seeds=seeds)


def _put_seeds(old: SeedPath | None, index: NDArray[np.intp], new: SeedPath | None) -> SeedPath | None:
    if old is None or new is None:
        return None
    episodes, attempts = old.episodes.copy(), old.attempts.copy()
    episodes[index], attempts[index] = new.episodes, new.attempts
    return SeedPath.of(old.run_seed, episodes, attempts)
