"""Draw parameters independently, tied together, or from a joint distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import BoundsError, InputError
from twinloop.core.seeds import uniforms
from twinloop.randomize.distributions import Distribution, MultivariateNormal, WeightedDistribution, distribution_json
from twinloop.twin import Twin
from twinloop.twin.quantities.kinds import Operation

Scope = Literal["run", "episode", "step"]
_PROBE = 2000
_MAX_REJECTIONS = 1000  # a distribution with less than a thousandth within bounds is a mistake; our choice


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One independent draw: ``names`` get ``op`` of a value of ``distribution``, separate values unless ``tied``.

    ``scale`` and ``add`` are relative to each parameter's nominal value. ``source`` is the origin of the range. With a
    ``proposal``, values are drawn from it, with importance weights towards ``distribution``.
    """

    names: tuple[str, ...]
    distribution: Distribution
    op: Operation = "absolute"
    scope: Scope = "episode"
    tied: bool = False
    source: str = ""
    proposal: Distribution | None = None

    def check(self, twin: Twin) -> None:
        """Raise an error for unknown names, ranges beyond physical bounds, and an unsuitable proposal.

        Raises:
            UnknownNameError, BoundsError, InputError: the message names the parameter.
        """
        for name in self.names:
            param = twin.find_param(name)
            low, high = param.absolute((self.proposal or self.distribution).support(), self.op)
            if not (param.low <= low and high <= param.high):
                unit, place = param.unit.removesuffix("1").rstrip(), f" ({self.source})" if self.source else ""
                ends = f"[{low:g}, {high:g}] {unit}".rstrip()
                bounds = f"[{param.low:g}, {param.high:g}] {unit}".rstrip()
                raise BoundsError(
                    f"{name}{place}: the range {ends} leaves the physical bounds {bounds}. Narrow the range, or "
                    "truncate the distribution."
                )
        if self.proposal is not None:
            self._check_proposal(self.proposal)

    def values(self, twin: Twin, u: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return absolute values ``(n,)`` in SI units by name, from uniforms ``(n, size)``."""
        columns = self._draw_raw(u)
        if self.tied:
            columns *= len(self.names)
        return {
            name: twin.params[name].absolute(column, self.op) for name, column in zip(self.names, columns, strict=True)
        }

    def log_weight(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return log(density of ``distribution`` / density of ``proposal``) at the values of ``u``, ``(n,)``."""
        total = np.zeros(len(u))
        if self.proposal is not None:
            target, proposal = _require_weights(self.distribution), _require_weights(self.proposal)
            for column in self._draw_raw(u):
                total += target.logpdf(column) - proposal.logpdf(column)
        return total

    @property
    def size(self) -> int:
        """Number of independent uniforms per episode."""
        return 1 if self.tied else len(self.names)

    @property
    def axes(self) -> list[tuple[str, ...]]:
        """Names of the parameters that each uniform determines."""
        return [self.names] if self.tied else [(name,) for name in self.names]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary for files and hashes."""
        proposal = {} if self.proposal is None else {"proposal": distribution_json(self.proposal)}
        return {
            "names": list(self.names),
            "distribution": distribution_json(self.distribution),
            "op": self.op,
            "scope": self.scope,
            "tied": self.tied,
            "transforms": [],
            "source": self.source,
            **proposal,
        }

    def _draw_raw(self, u: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        drawn_from = self.proposal or self.distribution
        return [drawn_from.ppf(column) for column in u.T]

    def _check_proposal(self, proposal: Distribution) -> None:
        where = f"{self.names[0]}: " + (f"({self.source}) " if self.source else "")
        if self.scope != "episode":
            raise InputError(f"{where}a proposal needs scope episode, because an episode has one weight.")
        for one in (self.distribution, proposal):
            if not isinstance(one, WeightedDistribution):
                raise InputError(
                    f"{where}{type(one).__name__} has no density to weigh with. Describe it by a uniform, log_uniform, "
                    "truncated_normal or choice."
                )
        (low, high), (inner_low, inner_high) = proposal.support(), self.distribution.support()
        if low > inner_low or high < inner_high:
            raise InputError(
                f"{where}the proposal reaches from {low:g} to {high:g} and would never draw the rest of "
                f"[{inner_low:g}, {inner_high:g}], which no weight makes up for. Widen the proposal."
            )


@dataclass(frozen=True, kw_only=True)
class JointDraw:
    """Correlated draw of several parameters, after ``transforms``; repeated until all are within bounds."""

    names: tuple[str, ...]
    distribution: MultivariateNormal
    transforms: tuple[str, ...]
    source: str = ""
    scope: Scope = "episode"

    def check(self, twin: Twin) -> None:
        """Raise an error for unknown names."""
        for name in self.names:
            twin.find_param(name)

    def to_si_values(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the SI values ``(n, k)`` of transformed values."""
        logs = np.array([kind == "log" for kind in self.transforms])
        return np.where(logs, np.exp(np.where(logs, values, 0.0)), values)

    def values(
        self, twin: Twin, count: int, u: Callable[[int, NDArray[np.intp]], NDArray[np.float64]]
    ) -> dict[str, NDArray[np.float64]]:
        """Return values ``(count,)`` in SI units by name.

        Args:
            u: function of a trial's number and some rows; returns their uniforms ``(len(rows), k)``.

        Raises:
            BoundsError: no trial of an episode was within the physical bounds.
        """
        values = np.empty((count, len(self.names)))
        waiting = np.arange(count)
        for trial in range(_MAX_REJECTIONS):
            candidates = self.to_si_values(self.distribution.sample(u(trial, waiting)))
            inside = self._is_within_bounds(twin, candidates)
            values[waiting[inside]] = candidates[inside]
            waiting = waiting[~inside]
            if not len(waiting):
                return dict(zip(self.names, values.T, strict=True))
        raise BoundsError(
            f"{_MAX_REJECTIONS} joint draws of {self.names[0]} and {len(self.names) - 1} more all left their physical "
            "bounds. Widen the bounds in the twin or look at the identified mean."
        )

    def estimate_acceptance(self, twin: Twin) -> float:
        """Return the share of candidates within all physical bounds, from test draws that no episode uses."""
        u = uniforms(0, "acceptance/" + "+".join(self.names), np.arange(_PROBE), size=self.size)
        return float(np.mean(self._is_within_bounds(twin, self.to_si_values(self.distribution.sample(u)))))

    def _is_within_bounds(self, twin: Twin, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        params = [twin.params[name] for name in self.names]
        low, high = np.array([p.low for p in params]), np.array([p.high for p in params])
        return np.all((values >= low) & (values <= high), axis=1)

    @property
    def size(self) -> int:
        """Number of independent uniforms per episode."""
        return len(self.names)

    @property
    def axes(self) -> list[tuple[str, ...]]:
        """Names of the parameters, one per uniform; they are correlated, so each uniform changes all of them."""
        return [(name,) for name in self.names]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary for files and hashes."""
        return {
            "names": list(self.names),
            "distribution": distribution_json(self.distribution),
            "op": "joint",
            "scope": self.scope,
            "tied": False,
            "transforms": list(self.transforms),
            "source": self.source,
        }


def _require_weights(distribution: Distribution) -> WeightedDistribution:
    assert isinstance(distribution, WeightedDistribution)  # noqa: S101 - checked when the plan was made
    return distribution
