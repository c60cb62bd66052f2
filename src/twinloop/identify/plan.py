"""Plan an identification before the fit: identifiable parameters, advice, and the benefit of a suggested excitation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from twinloop.core.plain import JsonRecord
from twinloop.identify.assembly import FreeParam
from twinloop.identify.excitation import Excitation
from twinloop.identify.fisher import (
    FisherInformation,
    OpenDirection,
    ResidualNoiseModel,
    assess_determination,
    scaled_condition,
)
from twinloop.identify.survey import ProfileSurvey

Array = NDArray[np.float64]

Verdict = Literal["determined", "depends", "not determined", "not excited"]
# A plausible change that moves the readings by less than this part of their noise has no visible effect in a log.
_UNFELT = 1e-3
# A parameter counts as determined when its standard error is at most this part of its prior deviation, as after
# a fit (see `uncertainty`).
DETERMINED = 0.5
_ALIKE = 0.9


@dataclass(frozen=True, kw_only=True)
class ParameterOutlook(JsonRecord):
    """Expected accuracy of one parameter over the plausible points, from the data or with a suggested excitation.

    ``excitation`` is the RMS change of the readings per prior standard deviation, in units of the noise. ``error`` is
    the expected standard error in prior standard deviations. Each is the median and the worst of the points.
    """

    excitation: tuple[float, float]
    error: tuple[float, float]
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class PlannedParam(JsonRecord):
    """One parameter of the plan; ``prior`` is its prior standard deviation (in ``unit``; relative if ``log``).

    ``now`` is for the available data, ``then`` for these plus the suggested excitation. ``advice`` describes a motion
    that would excite the parameter, or is "".
    """

    name: str
    unit: str
    nominal: float
    prior: float
    log: bool
    now: ParameterOutlook
    then: ParameterOutlook | None
    advice: str
    json_names: ClassVar = {"prior": "prior_sd", "log": "relative"}
    json_also = ("expected_error",)

    @property
    def expected_error(self) -> float:
        """Expected standard error from the available data, see `error`."""
        return self.error_in_unit(self.now)

    def error_in_unit(self, outlook: ParameterOutlook) -> float:
        """Return the expected standard error, median over the points, in ``unit``; relative if ``log``."""
        return outlook.error[0] * self.prior


@dataclass(frozen=True, kw_only=True)
class IdentificationPlan(JsonRecord):
    """Plan of an identification: the parameters that the data can identify, before any fit.

    ``condition`` is cond(ĴᵀĴ) of the information per joint, or of all joints together, at the first point and at the
    worst. ``directions`` are the undetermined ones at the first point. ``freeze`` are parameters to fix so that the
    others are determined; ``with_frozen`` are the others' expected errors then, in prior standard deviations.
    ``grouped`` are pairs with nearly the same effect on the readings, with their correlation. ``shared`` are quantities
    that would be determined by one value for all joints of the same nominal value, with its expected error.
    ``findings`` are problems of the log, each with the next step.
    """

    twin: str
    data: str
    frames: int
    episodes: int
    points: int
    parameters: tuple[PlannedParam, ...]
    noise: ResidualNoiseModel
    channels: tuple[str, ...]
    units: tuple[str, ...]
    condition: Mapping[str, tuple[float, float]]
    directions: tuple[OpenDirection, ...]
    freeze: tuple[str, ...]
    with_frozen: Mapping[str, float]
    grouped: tuple[tuple[str, str, float], ...]
    shared: Mapping[str, float]
    findings: tuple[str, ...]
    json_schema = 1
    json_names: ClassVar = {
        "noise": None,
        "channels": None,
        "units": None,
        "directions": "not_determined_directions",
        "with_frozen": "error_with_frozen",
    }
    json_also: ClassVar = {"noise_by_channel": "noise"}

    @property
    def undetermined_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that are not determined at every plausible point."""
        return tuple(p.name for p in self.parameters if p.now.verdict != "determined")

    @property
    def noise_by_channel(self) -> dict[str, dict[str, Any]]:
        """Residual noise by channel."""
        rows = zip(self.channels, self.noise.sd, self.noise.rho, self.units, strict=True)
        return {n: {"sd": float(sd), "lag1_autocorrelation": float(rho), "unit": unit} for n, sd, rho, unit in rows}

    def text(self) -> str:
        """Return the plan as text for a terminal."""
        sections = [self._head(), self._table(), self._noise_lines(), self._condition_lines(), self._advice()]
        return "\n\n".join("\n".join(lines) for lines in sections if lines)

    def _head(self) -> list[str]:
        told = f"{self.episodes} episodes, {self.frames} frames" if self.frames else "the prior alone, without data"
        return [
            f"Identifiability of {self.twin} from {told}, before any fit; {self.points} plausible sets of parameters.",
            *self.findings,
        ]

    def _table(self) -> list[str]:
        then = any(parameter.then for parameter in self.parameters)
        head = f"{'parameter':<36}{'unit':<12}{'prior ±':>9}{'expected ±':>12}{'worst ±':>10}{'moves':>8}"
        lines = [head + (f"{'then ±':>10}" if then else "") + "  verdict"]
        for row in self.parameters:
            unit = "relative" if row.log else row.unit
            worst, moves = row.now.error[1] * row.prior, row.now.excitation[0]
            line = f"{row.name:<36}{unit:<12}{row.prior:>9.3g}{row.error_in_unit(row.now):>12.2g}"
            line += f"{worst:>10.2g}{moves:>8.2g}"
            after = "" if row.then is None else f"{row.error_in_unit(row.then):>10.2g}"
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
        lines = [f"{'noise and missing physics':<36}{'unit':<16}{'sd':>9}{'lag-1':>9}  frames per independent one"]
        return [*lines, *(f"{n:<36}{u:<16}{sd:>9.3g}{rho:>9.3f}  {k:.3g}" for n, sd, rho, u, k in rows)]

    def _condition_lines(self) -> list[str]:
        if not self.condition:
            return []
        lines = [f"{'condition of the information':<36}{'here':>9}{'worst':>10}"]
        return [*lines, *(f"{name:<36}{here:>9.2g}{worst:>10.2g}" for name, (here, worst) in self.condition.items())]

    def _advice(self) -> list[str]:
        lines: list[str] = []
        if self.directions:
            lines += ["Not determined (one prior deviation along each):", *(f"  {d}" for d in self.directions)]
        if self.freeze:
            lines += ["Fix these, and the others are determined:", f"  {', '.join(self.freeze)}"]
        if self.grouped:
            lines.append("Strongly correlated; fit one of each pair, or their combination:")
            lines += [f"  {a} and {b} (correlation {r:+.2f})" for a, b, r in self.grouped]
        if self.shared:
            lines.append("Determined if joints of equal nominal share one value:")
            lines += [f"  {name}: ± {error:.2g} prior deviations" for name, error in self.shared.items()]
        if advised := [row for row in self.parameters if row.advice]:
            lines += ["Motions that would excite the others:", *(f"  {row.name}: {row.advice}" for row in advised)]
        return lines


def summarize_outlook(excitation: NDArray[np.float64], error: NDArray[np.float64]) -> ParameterOutlook:
    """Summarize one parameter's excitation and error over all points."""
    middle, worst = float(np.median(error)), float(np.max(error))
    verdict: Verdict = "determined" if worst <= DETERMINED else "depends" if middle <= DETERMINED else "not determined"
    if verdict == "not determined" and np.max(excitation) < _UNFELT:
        verdict = "not excited"
    return ParameterOutlook(
        excitation=(float(np.median(excitation)), float(np.min(excitation))), error=(middle, worst), verdict=verdict
    )


def plan_identification(
    seen: ProfileSurvey, suggested: Excitation | None = None, *, repeat: int = 1, data: str = ""
) -> IdentificationPlan:
    """Return the plan from a survey, with the benefit of ``repeat`` recordings of a suggested excitation."""
    space, sd = seen.space, seen.space.column("sd")
    now = _summarize_outlooks(seen.told, seen.excited, sd)
    then = None
    if suggested is not None:
        frames = np.array([seen.frames, repeat * len(suggested.commands)])
        power = (frames[0] * seen.excited**2 + frames[1] * suggested.excited**2) / frames.sum()
        then = _summarize_outlooks(seen.told + suggested.told.times(repeat), np.sqrt(power), sd)
    covariance, gained = seen.told.covariance(sd)[0], seen.told.added_precision(sd)[0]
    found = _find_undetermined_directions(gained, seen, sd)
    undetermined = [outlook.verdict != "determined" for outlook in now]
    freeze = _choose_frozen(gained, sd) if any(undetermined) and seen.frames else np.zeros(0, dtype=np.intp)
    return IdentificationPlan(
        twin=seen.twin.name,
        data=data,
        frames=seen.frames,
        episodes=seen.episodes,
        points=len(seen.points),
        parameters=tuple(
            plan_parameter(parameter, now[i], None if then is None else then[i])
            for i, parameter in enumerate(space.free)
        ),
        noise=seen.noise,
        channels=seen.channels,
        units=seen.units,
        condition=_condition_numbers(seen) if seen.frames else {},
        directions=found if seen.frames else (),
        freeze=tuple(space.names[i] for i in freeze),
        with_frozen=_errors_with_frozen(seen.told.take(np.array([0])), freeze, sd, space.names) if len(freeze) else {},
        grouped=_find_correlated_pairs(covariance, undetermined, space.names),
        shared=_find_shared_quantities(covariance, sd, undetermined, space.free),
        findings=_find_log_problems(seen),
    )


def _summarize_outlooks(told: FisherInformation, excited: Array, sd: Array) -> list[ParameterOutlook]:
    variance = np.diagonal(told.covariance(sd), axis1=1, axis2=2)
    error = np.sqrt(variance) / sd
    return [summarize_outlook(excited[:, i], error[:, i]) for i in range(len(sd))]


def plan_parameter(parameter: FreeParam, now: ParameterOutlook, then: ParameterOutlook | None) -> PlannedParam:
    """Return a parameter's row, with the motion that would determine it if the data do not."""
    last = then or now
    return PlannedParam(
        name=parameter.name,
        unit=parameter.param.unit,
        nominal=parameter.param.nominal,
        prior=float(parameter.sd),
        log=parameter.is_logarithmic,
        now=now,
        then=then,
        advice="" if last.verdict == "determined" else parameter.param.quantity.fit.excitation,
    )


def _find_undetermined_directions(gained: Array, seen: ProfileSurvey, sd: Array) -> tuple[OpenDirection, ...]:
    """Return the undetermined directions of every group of jointly fitted parameters, at the first point."""
    found: list[OpenDirection] = []
    for columns in seen.groups.values():
        names = [seen.space.names[i] for i in columns]
        found += assess_determination(gained[np.ix_(columns, columns)], sd[columns], names).directions
    return tuple(found)


def _condition_numbers(seen: ProfileSurvey) -> dict[str, tuple[float, float]]:
    each = {
        name: [scaled_condition(matrix[np.ix_(columns, columns)]) for matrix in seen.told.matrix]
        for name, columns in seen.groups.items()
    }
    return {name: (values[0], max(values)) for name, values in each.items()}


def _choose_frozen(gained: Array, sd: Array) -> NDArray[np.intp]:
    """Return the parameters to fix so that the others are determined.

    A pivoted QR of the information's square root orders parameters by their information beyond that of the earlier ones
    (subset selection, Golub, Klema & Stewart 1976). Parameters with less information than `DETERMINED` requires are
    fixed.
    """
    values, vectors = np.linalg.eigh(gained * np.outer(sd, sd))
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    found: Any = qr(root, pivoting=True)
    new, order = np.diag(found[1]) ** 2, np.asarray(found[2], dtype=np.intp)
    return np.sort(order[new < 1.0 / DETERMINED**2 - 1.0])


def _errors_with_frozen(
    told: FisherInformation, freeze: NDArray[np.intp], sd: Array, names: tuple[str, ...]
) -> dict[str, float]:
    """Return the expected errors of the parameters that are not frozen, in prior deviations, at the first point."""
    kept = np.setdiff1d(np.arange(len(sd)), freeze)
    held = sd.copy()
    held[freeze] = 0.0
    error = np.sqrt(np.diag(told.covariance(held)[0]))[kept] / sd[kept]
    return {names[i]: float(value) for i, value in zip(kept, error, strict=True)}


def _find_correlated_pairs(
    covariance: Array, undetermined: list[bool], names: tuple[str, ...]
) -> tuple[tuple[str, str, float], ...]:
    """Return pairs with strongly correlated estimates and at least one undetermined parameter."""
    size = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(size, size)
    pairs = np.argwhere(np.triu(np.abs(correlation) > _ALIKE, k=1))
    return tuple((names[a], names[b], float(correlation[a, b])) for a, b in pairs if undetermined[a] or undetermined[b])


def _find_shared_quantities(
    covariance: Array, sd: Array, undetermined: list[bool], free: tuple[FreeParam, ...]
) -> dict[str, float]:
    """Return quantities that one value for all joints of the same nominal would determine."""
    kinds: dict[tuple[str, float], list[int]] = {}
    for i, parameter in enumerate(free):
        if parameter.param.quantity.fit.shared and parameter.joint is not None:
            kinds.setdefault((parameter.param.quantity.path(), parameter.param.nominal), []).append(i)
    found = {}
    for (name, nominal), columns in kinds.items():
        known = np.sum(sd[columns] ** 2 / np.diag(covariance)[columns] - 1.0)
        error = float(1.0 / np.sqrt(1.0 + known))
        if len(columns) > 1 and any(undetermined[i] for i in columns) and error <= DETERMINED:
            found[f"{name} (nominal {nominal:g}, {len(columns)} joints)"] = error
    return found


def _find_log_problems(seen: ProfileSurvey) -> tuple[str, ...]:
    """Return the problems of a log, each with its joint or parameter and the next step."""
    said = [
        f"{joint} does not move, so this log cannot identify "
        f"{', '.join(p.name for p in seen.space.free if p.name.split('/')[1] == joint) or 'it'}. Record motion of it, "
        "or fix these parameters."
        for joint in seen.standing
    ]
    if seen.episodes == 1:
        said.append(
            "There is only one episode: intervals cannot be clustered by episode, and nothing can be held out. Record "
            "several, for example with --repeat."
        )
    if seen.frames and not (seen.told.matrix[0] > 0).any():
        said.append(
            "No parameter affects any reading in this log: there is no excitation. Record the motion of --excitation."
        )
    return tuple(said)
