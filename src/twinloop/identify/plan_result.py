"""What data can tell before any fit, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.identify.directions import Direction
from twinloop.identify.fisher import Noise

Verdict = Literal["determined", "depends", "not determined", "not excited"]


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What the data, or the data with a suggested excitation, tell about one parameter over the plausible points.

    ``excitation`` is the root mean square move of the readings under one prior deviation, in units of the noise;
    ``error`` the expected standard error in prior deviations; each as median and as worst of the points.
    """

    excitation: tuple[float, float]
    error: tuple[float, float]
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {"excitation": list(self.excitation), "error": list(self.error), "verdict": self.verdict}


@dataclass(frozen=True, kw_only=True)
class PlannedParam:
    """One parameter: ``prior`` is its standard deviation beforehand (in ``unit``; a part of the value where ``log``).

    ``now`` is with the data there are, ``then`` with the suggested excitation as well; ``advice`` says what would
    excite it, or "".
    """

    name: str
    unit: str
    nominal: float
    prior: float
    log: bool
    now: Outlook
    then: Outlook | None
    advice: str

    def error(self, outlook: Outlook) -> float:
        """Expected standard error, median over the points, in ``unit``; a part of the value where ``log``."""
        return outlook.error[0] * self.prior

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {
            "name": self.name,
            "unit": self.unit,
            "nominal": self.nominal,
            "prior_sd": self.prior,
            "relative": self.log,
            "expected_error": self.error(self.now),
            "now": self.now.to_json(),
            "then": None if self.then is None else self.then.to_json(),
            "advice": self.advice,
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What data can tell about a twin before any fit.

    ``condition`` is cond(ĴᵀĴ) of the information per joint, or of all together, at the first point and at the worst.
    ``directions`` are those left open at the first point. ``freeze`` are parameters to hold so that the rest is
    determined, ``with_frozen`` the rest's expected errors then, in prior deviations. ``grouped`` are pairs that move
    the readings alike, with their correlation; ``shared`` quantities that one value for all alike joints would
    determine, with its expected error. ``findings`` say what is wrong with the log, and what to do.
    """

    twin: str
    data: str
    frames: int
    episodes: int
    points: int
    parameters: tuple[PlannedParam, ...]
    noise: Noise
    channels: tuple[str, ...]
    units: tuple[str, ...]
    condition: Mapping[str, tuple[float, float]]
    directions: tuple[Direction, ...]
    freeze: tuple[str, ...]
    with_frozen: Mapping[str, float]
    grouped: tuple[tuple[str, str, float], ...]
    shared: Mapping[str, float]
    findings: tuple[str, ...]

    @property
    def open(self) -> tuple[str, ...]:
        """Parameters that are not determined at every plausible point."""
        return tuple(p.name for p in self.parameters if p.now.verdict != "determined")

    def to_json(self) -> dict[str, Any]:
        """A plain form for files (schema 1)."""
        return {
            "schema": 1,
            "twin": self.twin,
            "data": self.data,
            "frames": self.frames,
            "episodes": self.episodes,
            "points": self.points,
            "parameters": [parameter.to_json() for parameter in self.parameters],
            "noise": {
                name: {"sd": float(sd), "lag1_autocorrelation": float(rho), "unit": unit}
                for name, sd, rho, unit in zip(self.channels, self.noise.sd, self.noise.rho, self.units, strict=True)
            },
            "condition": {name: list(values) for name, values in self.condition.items()},
            "not_determined_directions": [{"moves": dict(d.moves), "gain": d.gain} for d in self.directions],
            "freeze": list(self.freeze),
            "error_with_frozen": dict(self.with_frozen),
            "grouped": [list(pair) for pair in self.grouped],
            "shared": dict(self.shared),
            "findings": list(self.findings),
        }

    def text(self) -> str:
        """The plan for a terminal."""
        sections = [self._head(), self._table(), self._noise_lines(), self._condition_lines(), self._advice()]
        return "\n\n".join("\n".join(lines) for lines in sections if lines)

    def _head(self) -> list[str]:
        told = f"{self.episodes} episodes, {self.frames} frames" if self.frames else "the prior alone, without data,"
        return [
            f"What {told} can tell about {self.twin}, before any fit, over {self.points} plausible sets of parameters.",
            *self.findings,
        ]

    def _table(self) -> list[str]:
        then = any(parameter.then for parameter in self.parameters)
        head = f"{'parameter':<36}{'unit':<12}{'prior ±':>9}{'expected ±':>12}{'worst ±':>10}{'moves':>8}"
        lines = [head + (f"{'then ±':>10}" if then else "") + "  verdict"]
        for row in self.parameters:
            unit = "relative" if row.log else row.unit
            worst, moves = row.now.error[1] * row.prior, row.now.excitation[0]
            line = f"{row.name:<36}{unit:<12}{row.prior:>9.3g}{row.error(row.now):>12.2g}{worst:>10.2g}{moves:>8.2g}"
            after = "" if row.then is None else f"{row.error(row.then):>10.2g}"
            verdict = row.now.verdict
            if row.then is not None and row.then.verdict != verdict:
                verdict = f"{verdict}; then {row.then.verdict}"
            lines.append(line + after + "  " + verdict)
        lines.append(
            "±: standard error; moves: of the readings under one prior deviation, in units of the noise (RMS)."
        )
        return lines

    def _noise_lines(self) -> list[str]:
        rows = zip(self.channels, self.noise.sd, self.noise.rho, self.units, self.noise.inflation, strict=True)
        lines = [f"{'noise and missing physics':<36}{'unit':<16}{'sd':>9}{'lag-1':>9}  frames that count as one"]
        return [*lines, *(f"{n:<36}{u:<16}{sd:>9.3g}{rho:>9.3f}  {k:.3g}" for n, sd, rho, u, k in rows)]

    def _condition_lines(self) -> list[str]:
        if not self.condition:
            return []
        lines = [f"{'condition of the information':<36}{'here':>9}{'worst':>10}"]
        return [*lines, *(f"{name:<36}{here:>9.2g}{worst:>10.2g}" for name, (here, worst) in self.condition.items())]

    def _advice(self) -> list[str]:
        lines: list[str] = []
        if self.directions:
            lines += ["Left open (one prior deviation along each):", *(f"  {d}" for d in self.directions)]
        if self.freeze:
            lines += ["Hold these, and the rest is determined:", f"  {', '.join(self.freeze)}"]
        if self.grouped:
            lines.append("Hardly told apart; fit one of each pair, or their combination:")
            lines += [f"  {a} and {b} (correlation {r:+.2f})" for a, b, r in self.grouped]
        if self.shared:
            lines.append("One value for all alike joints would be determined:")
            lines += [f"  {name}: ± {error:.2g} prior deviations" for name, error in self.shared.items()]
        if advised := [row for row in self.parameters if row.advice]:
            lines += ["What would excite the rest:", *(f"  {row.name}: {row.advice}" for row in advised)]
        return lines


def outlook(excitation: NDArray[np.float64], error: NDArray[np.float64], determined: float) -> Outlook:
    """From what one parameter does at every point; ``determined`` is the largest error that counts as such."""
    middle, worst = float(np.median(error)), float(np.max(error))
    verdict: Verdict = "determined" if worst <= determined else "depends" if middle <= determined else "not determined"
    if verdict == "not determined" and np.max(excitation) < _UNFELT:
        verdict = "not excited"
    return Outlook(
        excitation=(float(np.median(excitation)), float(np.min(excitation))), error=(middle, worst), verdict=verdict
    )


# A plausible change that moves the readings by less than this part of their noise is not felt in any log of this size.
_UNFELT = 1e-3
