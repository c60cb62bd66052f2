"""Define draws, each of which gives random values to some parameters: independent, tied, or correlated."""

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
    """Draw of parameters from one distribution.

    Attributes:
        names: Names of the parameters.
        distribution: Distribution of the drawn numbers.
        op: Meaning of a drawn number: the parameter's value (``absolute``), a factor on its nominal value (``scale``),
            or an offset from its nominal value (``add``).
        scope: Whether the values change per ``run``, ``episode`` or control ``step``.
        tied: Whether all parameters get the same drawn number; otherwise each parameter gets an independent number.
        source: Origin of the range, for error messages and provenance.
        proposal: Distribution from which numbers are drawn instead; each episode then has an importance weight that
            corrects for the difference from ``distribution``.
    """

    names: tuple[str, ...]
    distribution: Distribution
    op: Operation = "absolute"
    scope: Scope = "episode"
    tied: bool = False
    source: str = ""
    proposal: Distribution | None = None

    def check(self, twin: Twin) -> None:
        """Check the names, the physical bounds, and the proposal distribution.

        Raises:
            UnknownNameError: If the twin does not have a parameter.
            BoundsError: If the range leaves a parameter's physical bounds.
            InputError: If the proposal cannot give importance weights, or does not cover the distribution.
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
        """Compute the values of the parameters from uniform random numbers.

        Args:
            twin: The twin with the nominal values, to which ranges with ``op: scale`` or ``op: add`` refer.
            u: Uniform random numbers, ``(n, size)``.

        Returns:
            Values in SI units by name, ``(n,)`` each.
        """
        columns = self._draw_raw(u)
        if self.tied:
            columns *= len(self.names)
        return {
            name: twin.params[name].absolute(column, self.op) for name, column in zip(self.names, columns, strict=True)
        }

    def log_weight(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithm of each draw's importance weight, ``(n,)``.

        The weight is the density of ``distribution`` over the density of ``proposal``, at the values that the uniform
        random numbers ``u`` ``(n, size)`` give. It is 1 if there is no proposal.
        """
        total = np.zeros(len(u))
        if self.proposal is not None:
            target, proposal = _require_weights(self.distribution), _require_weights(self.proposal)
            for column in self._draw_raw(u):
                total += target.logpdf(column) - proposal.logpdf(column)
        return total

    @property
    def size(self) -> int:
        """Number of independent uniform random numbers per episode: one per parameter.

        It is 1 if the draw is ``tied``: all parameters then get the same drawn number.
        """
        return 1 if self.tied else len(self.names)

    @property
    def axes(self) -> list[tuple[str, ...]]:
        """Names of the parameters that each uniform random number determines."""
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
                    f"{where}{type(one).__name__} has no density, which importance weights need. Use uniform, "
                    "log_uniform, truncated_normal or choice."
                )
        (low, high), (inner_low, inner_high) = proposal.support(), self.distribution.support()
        if low > inner_low or high < inner_high:
            raise InputError(
                f"{where}the proposal covers only [{low:g}, {high:g}] of the range "
                f"[{inner_low:g}, {inner_high:g}]. Weights cannot correct for values that are never drawn. Widen the "
                "proposal."
            )


@dataclass(frozen=True, kw_only=True)
class JointDraw:
    """Correlated draw of several parameters; it is repeated until all values are within the physical bounds.

    Attributes:
        names: Names of the parameters.
        distribution: Joint normal distribution of the transformed parameters.
        transforms: For each parameter ``log`` if its natural logarithm is drawn, or ``identity`` if its value is drawn.
        source: Origin of the distribution, for provenance.
        scope: ``episode``: the values change between episodes.
    """

    names: tuple[str, ...]
    distribution: MultivariateNormal
    transforms: tuple[str, ...]
    source: str = ""
    scope: Scope = "episode"

    def check(self, twin: Twin) -> None:
        """Check that the twin has all drawn parameters.

        Raises:
            UnknownNameError: If the twin does not have a parameter.
        """
        for name in self.names:
            twin.find_param(name)

    def to_si_values(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert drawn values ``(n, k)`` of the k parameters to SI values.

        Args:
            values: Natural logarithms of the parameters with the transform ``log``, and SI values of the others.
        """
        logs = np.array([kind == "log" for kind in self.transforms])
        return np.where(logs, np.exp(np.where(logs, values, 0.0)), values)

    def values(
        self, twin: Twin, count: int, u: Callable[[int, NDArray[np.intp]], NDArray[np.float64]]
    ) -> dict[str, NDArray[np.float64]]:
        """Draw the parameters of several episodes, and repeat each draw until it is within the physical bounds.

        Args:
            twin: The twin with the bounds.
            count: Number of episodes.
            u: Function from the number of a trial and the indices of some episodes to their uniform random numbers,
                ``(len(indices), k)`` for k parameters.

        Returns:
            Values in SI units by name, ``(count,)`` each.

        Raises:
            BoundsError: If 1000 trials of an episode were all outside the physical bounds.
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
            f"{_MAX_REJECTIONS} joint draws of {self.names[0]} and {len(self.names) - 1} more were all outside their "
            "physical bounds. Widen the bounds in the twin, or check the identified mean."
        )

    def estimate_acceptance(self, twin: Twin) -> float:
        """Estimate the fraction of draws within all physical bounds, from 2000 test draws that no episode uses."""
        u = uniforms(0, "acceptance/" + "+".join(self.names), np.arange(_PROBE), size=self.size)
        return float(np.mean(self._is_within_bounds(twin, self.to_si_values(self.distribution.sample(u)))))

    def _is_within_bounds(self, twin: Twin, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        params = [twin.params[name] for name in self.names]
        low, high = np.array([p.low for p in params]), np.array([p.high for p in params])
        return np.all((values >= low) & (values <= high), axis=1)

    @property
    def size(self) -> int:
        """Number of independent uniform random numbers per episode, one per parameter."""
        return len(self.names)

    @property
    def axes(self) -> list[tuple[str, ...]]:
        """One axis per uniform random number, named by one parameter each, as sampling designs (e.g. Sobol') need it.

        Because the parameters are correlated, a random number also changes parameters other than the one that names its
        axis.
        """
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
