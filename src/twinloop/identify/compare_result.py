"""What a comparison of structures found: improvements on clips that were not seen, tests, verdicts in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from twinloop.stats import Interval, holm

# An improvement of less than a hundredth of the error is nothing to build into a twin; our choice.
LEAST_GAIN = 0.01
# Chance of any false alarm among all structures together.
ALPHA = 0.05


@dataclass(frozen=True, kw_only=True)
class StructureResult:
    """One structure against the same fit without it.

    ``error`` is relative: mean absolute errors of each channel over those of the fit without the structure, averaged
    over channels. ``improvement`` is 1 − ``error`` by episode, with its interval; ``per_parameter`` the mean of it for
    each parameter that is ``added``. ``p_value`` is adjusted by Holm over all structures. ``in_base`` says that the
    base fit has it. ``values`` are the added parameters as the last fold fitted them. What does not apply has a
    ``reason`` and no figures.
    """

    name: str
    meaning: str
    added: int = 0
    in_base: bool = False
    error: Interval | None = None
    improvement: Interval | None = None
    p_value: float = 1.0
    verdict: str = ""
    reason: str = ""
    channel_errors: Mapping[str, tuple[float, float]]
    values: Mapping[str, float]

    @property
    def per_parameter(self) -> float:
        """Improvement per added parameter; NaN where nothing was compared."""
        return float("nan") if self.improvement is None else float(self.improvement.estimate) / self.added

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {
            "name": self.name,
            "meaning": self.meaning,
            "added": self.added,
            "in_base": self.in_base,
            "error": None if self.error is None else self.error.to_json(),
            "improvement": None if self.improvement is None else self.improvement.to_json(),
            "improvement_per_parameter": None if self.improvement is None else self.per_parameter,
            "p_holm": None if self.improvement is None else self.p_value,
            "verdict": self.verdict,
            "not_applicable": self.reason,
            "channels": {name: {"without": pair[0], "with": pair[1]} for name, pair in self.channel_errors.items()},
            "values": dict(self.values),
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All structures. ``base`` is the base fit's held-out error by channel, in its unit; ``folds`` 1 is a holdout."""

    twin: str
    base: Mapping[str, float]
    units: Mapping[str, str]
    episodes: int
    folds: int
    results: tuple[StructureResult, ...]

    def to_json(self) -> dict[str, Any]:
        """A plain form for files (schema 1)."""
        return {
            "schema": 1,
            "twin": self.twin,
            "base": dict(self.base),
            "units": dict(self.units),
            "episodes": self.episodes,
            "folds": self.folds,
            "least_gain": LEAST_GAIN,
            "alpha": ALPHA,
            "structures": [result.to_json() for result in self.results],
        }

    def text(self) -> str:
        """A table for a terminal."""
        how = f"cross-fitted over {self.folds} folds of" if self.folds > 1 else "judged on"
        lines = [
            f"Structures of {self.twin}, {how} {self.episodes} episodes; held-out error against the same fit without.",
            f"{'structure':<20}{'added':>6}{'error':>8}  {'improvement':<28}{'each':>8}{'p (Holm)':>10}  verdict",
        ]
        for row in self.results:
            if row.improvement is None or row.error is None:
                lines.append(f"{row.name:<20}{'':>6}{'':>8}  not compared: {row.reason}")
                continue
            gain = row.improvement
            span = f"{gain.estimate:+.1%} [{float(gain.low):+.1%}, {float(gain.high):+.1%}]"
            lines.append(
                f"{row.name:<20}{row.added:>6}{float(row.error.estimate):>8.3f}  {span:<28}{row.per_parameter:>+8.2%}"
                f"{row.p_value:>10.4f}  {row.verdict}"
            )
        return "\n".join(lines)


def adjusted(results: Sequence[StructureResult]) -> tuple[StructureResult, ...]:
    """The results with Holm's p-values over those that were compared, and what they mean."""
    compared = [result for result in results if result.improvement is not None]
    p_values = dict(zip([r.name for r in compared], holm([r.p_value for r in compared]), strict=True))
    rows = [replace(r, p_value=float(p_values[r.name])) if r.name in p_values else r for r in results]
    missing = {r.name: _gain(r) for r in rows if not r.in_base and r.improvement and _found(r)}
    best = max(missing, key=missing.__getitem__, default="")
    return tuple(row if row.improvement is None else replace(row, verdict=_verdict(row, best)) for row in rows)


def _gain(row: StructureResult) -> float:
    assert row.improvement is not None  # noqa: S101 - only what was compared is asked
    return float(row.improvement.estimate)


def _found(row: StructureResult) -> bool:
    return row.p_value <= ALPHA and _gain(row) >= LEAST_GAIN


def _verdict(row: StructureResult, best: str) -> str:
    """What an improvement with its interval and adjusted p-value says, in words; ``best`` is what explains most."""
    assert row.improvement is not None  # noqa: S101 - only what was compared is asked
    if _found(row) and row.in_base:
        return "needed, the base has it"
    if _found(row):
        return "MISSING from the base" if row.name == best else f"helps, but {best} explains more"
    if row.p_value <= ALPHA:
        return f"buys nothing: real, but less than {LEAST_GAIN:.0%}"
    if row.improvement.high < 0:
        return "makes it worse on new clips"
    if row.improvement.high < LEAST_GAIN:
        return "buys nothing"
    return f"buys nothing that these clips show (at most {float(row.improvement.high):+.1%})"
