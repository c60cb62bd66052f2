"""Store parameter values of many worlds, and the seeds of random events within them."""

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
    """Seeds of the random events in many worlds: the run seed, and episode and attempt ``(nworld,)``."""

    run_seed: int
    episodes: NDArray[np.int64]
    attempts: NDArray[np.int64]

    @classmethod
    def of(cls, run_seed: int, episodes: ArrayLike, attempts: ArrayLike = 0) -> SeedPath:
        """Return one path per episode number; ``attempts`` is one number for all or one per episode."""
        numbers = np.array(episodes, dtype=np.int64, ndmin=1)
        tries = np.array(np.broadcast_to(np.asarray(attempts, dtype=np.int64), numbers.shape))
        numbers.setflags(write=False)
        tries.setflags(write=False)
        return cls(run_seed=run_seed, episodes=numbers, attempts=tries)

    def take(self, worlds: ArrayLike) -> SeedPath:
        """Return the paths of some worlds, in the given order."""
        index = np.asarray(worlds)
        return SeedPath.of(self.run_seed, self.episodes[index], self.attempts[index])

    def uniforms(self, stream: str, *, size: int = 1, step: ArrayLike = 0) -> NDArray[np.float64]:
        """Return uniform numbers in (0, 1) of one stream at one step of each world, ``(nworld, size)``."""
        return uniforms(self.run_seed, stream, self.episodes, size=size, attempt=self.attempts, step=step)


@dataclass(frozen=True, kw_only=True)
class ParamTable:
    """Parameter values of many worlds: ``values`` is ``(nworld, nparam)``, with named columns in SI units.

    ``steps`` holds the parameters that change at every control step, ``(nworld, nstep)`` each; they override their
    column of ``values`` during a rollout. ``seeds`` seeds the random events within a world (such as a lost or late
    command); in a table without it, worlds have no random events.
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
        """Return the values of one parameter, ``(nworld,)``."""
        if name not in self._columns:
            raise UnknownNameError("parameter", name, self.names)
        return self.values[:, self._columns[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def get(self, name: str, default: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values of one parameter, or ``default`` if the table does not have it."""
        return self[name] if name in self._columns else default

    def take(self, worlds: ArrayLike) -> ParamTable:
        """Return the table of some worlds, in the given order."""
        index = np.asarray(worlds)
        steps = {name: rows[index] for name, rows in self.steps.items()}
        seeds = self.seeds.take(index) if self.seeds else None
        return ParamTable(names=self.names, values=self.values[index], steps=steps, seeds=seeds)

    def with_steps(self, steps: Mapping[str, NDArray[np.float64]]) -> ParamTable:
        """Return the same table with these parameters changing at every control step."""
        return replace(self, steps=steps)

    def with_seeds(self, seeds: SeedPath) -> ParamTable:
        """Return the same table with seeds for the random events within its worlds."""
        return replace(self, seeds=seeds)

    def at(self, step: ArrayLike) -> ParamTable:
        """Return the table of one control step: one step for all worlds, or ``(nworld,)`` steps.

        After its last drawn step, a world keeps the values of that step.
        """
        if not self.steps:
            return self
        values, worlds = self.values.copy(), np.arange(self.nworld)
        for name, rows in self.steps.items():
            values[:, self._columns[name]] = rows[worlds, np.minimum(step, rows.shape[1] - 1)]
        return replace(self, values=values, steps={})

    def put(self, worlds: ArrayLike, rows: ParamTable) -> ParamTable:
        """Return the table with the rows of some worlds replaced by those of another table with the same columns."""
        index = np.asarray(worlds)
        values = self.values.copy()
        values[index] = rows.values
        steps = {name: column.copy() for name, column in self.steps.items()}
        for name, column in steps.items():
            column[index] = rows.steps[name]
        return replace(self, values=values, steps=steps, seeds=_put_seeds(self.seeds, index, rows.seeds))

    def seed_path(self, what: str) -> SeedPath:
        """Return the seeds of the random events within the worlds.

        Args:
            what: start of the error message: the parameters that need the seeds, and a verb.

        Raises:
            InputError: the table has no seeds.
        """
        if self.seeds is None:
            raise InputError(
                f"{what} by chance, but this parameter table has no seed path. Draw it with a plan, or add one: "
                "table.with_seeds(SeedPath.of(run_seed, episodes))."
            )
        return self.seeds

    def row(self, world: int) -> dict[str, float]:
        """Return one world's values by name."""
        return {name: float(value) for name, value in zip(self.names, self.values[world], strict=True)}

    def tile(self, count: int) -> ParamTable:
        """Return the table repeated ``count`` times; all worlds follow each other in each repetition."""
        steps = {name: np.tile(rows, (count, 1)) for name, rows in self.steps.items()}
        seeds = self.seeds.take(np.tile(np.arange(self.nworld), count)) if self.seeds else None
        return ParamTable(names=self.names, values=np.tile(self.values, (count, 1)), steps=steps, seeds=seeds)


def _put_seeds(old: SeedPath | None, index: NDArray[np.intp], new: SeedPath | None) -> SeedPath | None:
    if old is None or new is None:
        return None
    episodes, attempts = old.episodes.copy(), old.attempts.copy()
    episodes[index], attempts[index] = new.episodes, new.attempts
    return SeedPath.of(old.run_seed, episodes, attempts)
