"""Records of parameter values: those of many worlds, and what seeds the chance within them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.records import frozen
from twinloop.core.seeds import uniforms


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

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {name: column for column, name in enumerate(self.names)}

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """Values of one parameter, ``(nworld,)``."""
        if name not in self._columns:
            raise UnknownNameError("parameter", name, self.names)
        return self.values[:, self._columns[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def get(self, name: str, default: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values of one parameter, or ``default`` where the table has none of that name."""
        return self[name] if name in self._columns else default

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
            values[:, self._columns[name]] = rows[worlds, np.minimum(step, rows.shape[1] - 1)]
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

    def seed_path(self, what: str) -> SeedPath:
        """What seeds the chance within the worlds.

        Args:
            what: the parameters that need it, and a verb: the beginning of the message.

        Raises:
            InputError: the table has none.
        """
        if self.seeds is None:
            raise InputError(
                f"{what} by chance, and this parameter table has no seed path. Draw it with a plan, or give it one: "
                "table.with_seeds(SeedPath.of(run_seed, episodes))."
            )
        return self.seeds

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
