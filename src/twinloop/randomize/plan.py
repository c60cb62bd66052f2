"""A frozen plan of draws: what varies, how, and how often. A draw depends on the plan and its seed path alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import BoundsError, InputError
from twinloop.core.files import sha256_json
from twinloop.core.records import ParamTable, SeedPath
from twinloop.core.seeds import uniforms
from twinloop.randomize.distributions import Distribution, MultivariateNormal, describe
from twinloop.twin import Twin

Operation = Literal["absolute", "scale", "add"]
Scope = Literal["run", "episode", "step"]
_MAX_REJECTIONS = 1000


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One independent draw: ``names`` get ``op`` of a value of ``distribution``, each its own unless ``tied``.

    ``scale`` and ``add`` are relative to each parameter's nominal value. ``source`` says where the range is from.
    """

    names: tuple[str, ...]
    distribution: Distribution
    op: Operation = "absolute"
    scope: Scope = "episode"
    tied: bool = False
    source: str = ""

    def check(self, twin: Twin) -> None:
        """Refuse unknown names and ranges that leave a parameter's physical bounds.

        Raises:
            UnknownNameError, BoundsError: see the message.
        """
        for name in self.names:
            param = twin.require(name)
            low, high = param.absolute(self.distribution.support(), self.op)
            if not (param.low <= low and high <= param.high):
                raise BoundsError(
                    f"{name}: the range [{low:g}, {high:g}] {param.unit} leaves the physical bounds "
                    f"[{param.low:g}, {param.high:g}] {param.unit}. Narrow the range, or truncate the distribution."
                )

    def values(self, twin: Twin, u: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Absolute values by name, from uniforms ``(n, 1 if tied else len(names))``."""
        columns = [self.distribution.ppf(column) for column in u.T]
        if self.tied:
            columns *= len(self.names)
        return {
            name: twin.params[name].absolute(column, self.op) for name, column in zip(self.names, columns, strict=True)
        }

    @property
    def size(self) -> int:
        """Independent numbers per episode."""
        return 1 if self.tied else len(self.names)


@dataclass(frozen=True, kw_only=True)
class JointDraw:
    """A correlated draw of several parameters, in the space of ``transforms``, redrawn until inside their bounds."""

    names: tuple[str, ...]
    distribution: MultivariateNormal
    transforms: tuple[str, ...]
    source: str = ""
    scope: Scope = "episode"

    def check(self, twin: Twin) -> None:
        """Refuse unknown names."""
        for name in self.names:
            twin.require(name)

    def absolute(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Transformed values ``(n, k)`` in SI."""
        logs = np.array([kind == "log" for kind in self.transforms])
        return np.where(logs, np.exp(np.where(logs, values, 0.0)), values)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that varies between the worlds of a run, over one twin. Parameters not named keep their nominal.

    ``texture_pool`` is the number of procedural textures that ``texture/*`` parameters index.
    """

    twin: Twin
    run_seed: int
    draws: tuple[Draw | JointDraw, ...]
    texture_pool: int = 0

    def __post_init__(self) -> None:
        seen: dict[str, int] = {}
        for index, draw in enumerate(self.draws):
            draw.check(self.twin)
            for name in draw.names:
                if seen.setdefault(name, index) != index:
                    raise InputError(f"{name} is drawn twice. Keep one of the two lines that name it.")

    @cached_property
    def hash(self) -> str:
        """Names the plan: the same hash and seed path give the same values."""
        return sha256_json(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """A plain form for files and hashes."""
        rows = [
            {
                "names": list(draw.names),
                "distribution": describe(draw.distribution),
                "op": getattr(draw, "op", "joint"),
                "scope": draw.scope,
                "tied": getattr(draw, "tied", False),
                "transforms": list(getattr(draw, "transforms", ())),
                "source": draw.source,
            }
            for draw in self.draws
        ]
        return {
            "twin_hash": self.twin.hash,
            "run_seed": self.run_seed,
            "texture_pool": self.texture_pool,
            "draws": rows,
        }

    def draw(self, episodes: Sequence[int], *, attempt: ArrayLike = 0, nstep: int = 0) -> ParamTable:
        """The parameter table of these episodes, one row each, whoever asks and whenever.

        Args:
            attempt: which try of the episode; redraws everything of scope ``episode`` and ``step``.
            nstep: control steps for which parameters of scope ``step`` are drawn.
        """
        numbers = np.asarray(episodes, dtype=np.int64)
        values: dict[str, NDArray[np.float64]] = {}
        steps: dict[str, NDArray[np.float64]] = {}
        for draw in self.draws:
            if isinstance(draw, JointDraw):
                values |= self._joint(draw, numbers, attempt)
            elif draw.scope == "step":
                steps |= self._per_step(draw, numbers, attempt, nstep)
            else:
                values |= draw.values(self.twin, self._uniforms(draw, numbers, attempt, 0))
        seeds = SeedPath.of(self.run_seed, numbers, attempt)
        return self.twin.table(len(numbers), values).with_steps(steps).with_seeds(seeds)

    def _uniforms(
        self, draw: Draw | JointDraw, numbers: NDArray[np.int64], attempt: ArrayLike, step: ArrayLike
    ) -> NDArray[np.float64]:
        if draw.scope == "run":
            numbers, attempt = np.zeros_like(numbers), 0
        size = draw.size if isinstance(draw, Draw) else len(draw.names)
        stream = "draw/" + "+".join(draw.names)
        return uniforms(self.run_seed, stream, numbers, size=size, attempt=attempt, step=step)

    def _per_step(
        self, draw: Draw, numbers: NDArray[np.int64], attempt: ArrayLike, nstep: int
    ) -> dict[str, NDArray[np.float64]]:
        rows = np.repeat(numbers, nstep)
        step = np.tile(np.arange(1, nstep + 1), len(numbers))
        attempts = np.repeat(np.broadcast_to(np.asarray(attempt), numbers.shape), nstep)
        flat = draw.values(self.twin, self._uniforms(draw, rows, attempts, step))
        return {name: column.reshape(len(numbers), nstep) for name, column in flat.items()}

    def _joint(self, draw: JointDraw, numbers: NDArray[np.int64], attempt: ArrayLike) -> dict[str, NDArray[np.float64]]:
        params = [self.twin.params[name] for name in draw.names]
        low, high = np.array([p.low for p in params]), np.array([p.high for p in params])
        values = np.empty((len(numbers), len(params)))
        waiting = np.arange(len(numbers))
        attempts = np.broadcast_to(np.asarray(attempt), numbers.shape)
        for trial in range(_MAX_REJECTIONS):
            u = self._uniforms(draw, numbers[waiting], attempts[waiting], trial)
            candidates = draw.absolute(draw.distribution.sample(u))
            inside = ((candidates >= low) & (candidates <= high)).all(axis=1)
            values[waiting[inside]] = candidates[inside]
            waiting = waiting[~inside]
            if not len(waiting):
                return dict(zip(draw.names, values.T, strict=True))
        raise BoundsError(
            f"{_MAX_REJECTIONS} joint draws of {draw.names[0]} and {len(draw.names) - 1} more all left their physical "
            "bounds. Widen the bounds in the twin or look at the identified mean."
        )
