"""Plan an identification before the fit: which parameters the data can identify, and how to improve the log.

The plan has advice on parameters to fix or to share between joints, and the benefit of a suggested excitation motion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from twinloop.core.console import fit_column
from twinloop.core.plain import JsonRecord
from twinloop.identify.assembly import FreeParam
from twinloop.identify.excitation import Excitation
from twinloop.identify.fisher import (
    FisherInformation,
    ResidualNoiseModel,
    UndeterminedDirection,
    assess_determination,
    scaled_condition,
)
from twinloop.identify.survey import Survey

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
    """Expected accuracy of one parameter, over several sets of plausible parameters.

    Attributes:
        excitation: RMS change of the readings per prior standard deviation, in units of noise: median and smallest.
        error: Expected standard error in prior standard deviations: median and largest.
        verdict: ``determined`` if the largest standard error is at most half a prior standard deviation. ``depends`` if
            only the median standard error is. Otherwise ``not determined``, or ``not excited`` if the readings hardly
            change.
    """

    excitation: tuple[float, float]
    error: tuple[float, float]
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class PlannedParam(JsonRecord):
    """One parameter in a plan of an identification.

    Attributes:
        name: Name of the parameter.
        unit: Its SI unit.
        nominal: Its nominal value.
        prior: Prior standard deviation, in ``unit``; relative to the value if ``log``.
        log: Whether the fit uses the logarithm of the parameter.
        with_data: Expected accuracy from the available data.
        with_excitation: Expected accuracy from these data and the suggested excitation motion; None if no motion is
            suggested.
        advice: A motion that would excite the parameter; "" if it is determined.
    """

    name: str
    unit: str
    nominal: float
    prior: float
    log: bool
    with_data: ParameterOutlook
    with_excitation: ParameterOutlook | None
    advice: str
    json_names: ClassVar = {"prior": "prior_sd", "log": "relative"}
    json_also = ("expected_error",)

    @property
    def expected_error(self) -> float:
        """Expected standard error from the available data, see `error_in_unit`."""
        return self.error_in_unit(self.with_data)

    def error_in_unit(self, outlook: ParameterOutlook) -> float:
        """Return the median of an expected standard error of this parameter.

        It is in the parameter's unit (attribute ``unit``). If the fit uses the logarithm of the parameter (attribute
        ``log``), it is a fraction of the value.

        Args:
            outlook: Expected accuracy of this parameter, such as ``with_data``.
        """
        return outlook.error[0] * self.prior


@dataclass(frozen=True, kw_only=True)
class IdentificationPlan(JsonRecord):
    """Plan of an identification before any fit: the parameters that the data can identify, and advice.

    Attributes:
        twin: Name of the twin.
        data: Description of the log.
        frames: Number of frames; 0 if there are no data.
        episodes: Number of episodes.
        points: Number of sets of plausible parameters at which the information is computed.
        parameters: One entry per free parameter.
        noise: Noise of the residuals.
        channels: Names of the channels.
        units: Unit of each channel.
        condition: Condition numbers of the Fisher information, scaled to unit diagonal, by group of jointly fitted
            parameters (a joint, or all joints): the value at the first set of plausible parameters, then the largest
            value over all sets.
        directions: Combinations of parameters that the data do not determine, at the first set of plausible parameters.
        freeze: Parameters to fix so that the other parameters are determined.
        with_frozen: Expected errors of the other parameters if ``freeze`` are fixed, in prior standard deviations.
        correlated_pairs: Pairs of parameters with nearly the same effect on the readings, and their correlation.
        shared: Quantities that would be determined if joints of the same nominal value shared one value, with the
            expected error in prior standard deviations.
        findings: Problems of the log, each with the next step.
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
    directions: tuple[UndeterminedDirection, ...]
    freeze: tuple[str, ...]
    with_frozen: Mapping[str, float]
    correlated_pairs: tuple[tuple[str, str, float], ...]
    shared: Mapping[str, float]
    findings: tuple[str, ...]
    json_schema = 1
    json_names: ClassVar = {
        "noise": None,
        "channels": None,
        "units": None,
        "directions": "not_determined_directions",
        "with_frozen": "error_with_frozen",
        "correlated_pairs": "grouped",
    }
    json_also: ClassVar = {"noise_by_channel": "noise"}

    @property
    def undetermined_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that at least one set of plausible parameters leaves undetermined."""
        return tuple(p.name for p in self.parameters if p.with_data.verdict != "determined")

    @property
    def noise_by_channel(self) -> dict[str, dict[str, Any]]:
        """Standard deviation, lag-1 autocorrelation and unit of the residual noise by channel."""
        rows = zip(self.channels, self.noise.sd, self.noise.rho, self.units, strict=True)
        return {n: {"sd": float(sd), "lag1_autocorrelation": float(rho), "unit": unit} for n, sd, rho, unit in rows}

    def text(self) -> str:
        """Return the plan as text for a terminal."""
        sections = [self._head(), self._table(), self._noise_lines(), self._condition_lines(), self._advice()]
        return "\n\n".join("\n".join(lines) for lines in sections if lines)

    def _head(self) -> list[str]:
        source = f"{self.episodes} episodes, {self.frames} frames" if self.frames else "the prior alone, without data"
        return [
            (
                f"Identifiability of {self.twin} from {source}, before any fit; "
                f"{self.points} plausible sets of parameters."
            ),
            *self.findings,
        ]

    def _table(self) -> list[str]:
        then = any(parameter.with_excitation for parameter in self.parameters)
        wide = fit_column(36, [row.name for row in self.parameters])
        head = f"{'parameter':<{wide}}{'unit':<12}{'prior ±':>9}{'expected ±':>12}{'worst ±':>10}{'moves':>8}"
        lines = [head + (f"{'then ±':>10}" if then else "") + "  verdict"]
        for row in self.parameters:
            unit = "relative" if row.log else row.unit
            worst, moves = row.with_data.error[1] * row.prior, row.with_data.excitation[0]
            line = f"{row.name:<{wide}}{unit:<12}{row.prior:>9.3g}{row.error_in_unit(row.with_data):>12.2g}"
            line += f"{worst:>10.2g}{moves:>8.2g}"
            after = "" if row.with_excitation is None else f"{row.error_in_unit(row.with_excitation):>10.2g}"
            verdict = row.with_data.verdict
            if row.with_excitation is not None and row.with_excitation.verdict != verdict:
                verdict = f"{verdict}; then {row.with_excitation.verdict}"
            lines.append(line + after + "  " + verdict)
        lines.append(
            "±: standard error; moves: of the readings under one prior deviation, in units of the noise (RMS)."
        )
        return lines

    def _noise_lines(self) -> list[str]:
        rows = zip(self.channels, self.noise.sd, self.noise.rho, self.units, self.noise.inflation, strict=True)
        wide = fit_column(36, self.channels)
        lines = [f"{'noise and missing physics':<{wide}}{'unit':<16}{'sd':>9}{'lag-1':>9}  frames per independent one"]
        return [*lines, *(f"{n:<{wide}}{u:<16}{sd:>9.3g}{rho:>9.3f}  {k:.3g}" for n, sd, rho, u, k in rows)]

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
        if self.correlated_pairs:
            lines.append("Strongly correlated; fit one of each pair, or their combination:")
            lines += [f"  {a} and {b} (correlation {r:+.2f})" for a, b, r in self.correlated_pairs]
        if self.shared:
            lines.append("Determined if joints of equal nominal share one value:")
            lines += [f"  {name}: ± {error:.2g} prior deviations" for name, error in self.shared.items()]
        if advised := [row for row in self.parameters if row.advice]:
            lines += ["Motions that would excite the others:", *(f"  {row.name}: {row.advice}" for row in advised)]
        return lines


def summarize_outlook(excitation: NDArray[np.float64], error: NDArray[np.float64]) -> ParameterOutlook:
    """Summarize the expected accuracy of one parameter over npoint sets of plausible parameters.

    Args:
        excitation: RMS change of the readings if the parameter changes by one prior standard deviation, divided by the
            standard deviation of the readings' noise, ``(npoint,)``.
        error: Expected standard error in prior standard deviations, ``(npoint,)``.

    Returns:
        Median and smallest excitation, median and largest error, and the verdict whether the parameter will be
        determined.
    """
    middle, worst = float(np.median(error)), float(np.max(error))
    verdict: Verdict = "determined" if worst <= DETERMINED else "depends" if middle <= DETERMINED else "not determined"
    if verdict == "not determined" and np.max(excitation) < _UNFELT:
        verdict = "not excited"
    return ParameterOutlook(
        excitation=(float(np.median(excitation)), float(np.min(excitation))), error=(middle, worst), verdict=verdict
    )


def plan_identification(
    survey: Survey, suggested: Excitation | None = None, *, repeat: int = 1, data: str = ""
) -> IdentificationPlan:
    """Plan an identification from a survey of the data (Fisher information at several sets of plausible parameters).

    The plan has the expected accuracy of each parameter, parameters to fix or to share, and problems of the log.

    Args:
        survey: Survey of the data.
        suggested: Suggested excitation motion, whose benefit the plan reports; None if there is none.
        repeat: Number of recordings of the suggested motion.
        data: Description of the log.
    """
    space, sd = survey.space, survey.space.column("sd")
    now = _summarize_outlooks(survey.information, survey.excitation, sd)
    then = None
    if suggested is not None:
        frames = np.array([survey.frames, repeat * len(suggested.commands)])
        power = (frames[0] * survey.excitation**2 + frames[1] * suggested.excitation**2) / frames.sum()
        then = _summarize_outlooks(survey.information + suggested.information.times(repeat), np.sqrt(power), sd)
    covariance, gained = survey.information.covariance(sd)[0], survey.information.added_precision(sd)[0]
    directions = _find_undetermined_directions(gained, survey, sd)
    undetermined = [outlook.verdict != "determined" for outlook in now]
    freeze = _choose_frozen(gained, sd) if any(undetermined) and survey.frames else np.zeros(0, dtype=np.intp)
    return IdentificationPlan(
        twin=survey.twin.name,
        data=data,
        frames=survey.frames,
        episodes=survey.episodes,
        points=len(survey.points),
        parameters=tuple(
            plan_parameter(parameter, now[i], None if then is None else then[i])
            for i, parameter in enumerate(space.free)
        ),
        noise=survey.noise,
        channels=survey.channels,
        units=survey.units,
        condition=_condition_numbers(survey) if survey.frames else {},
        directions=directions if survey.frames else (),
        freeze=tuple(space.names[i] for i in freeze),
        with_frozen=_errors_with_frozen(survey.information.take(np.array([0])), freeze, sd, space.names)
        if len(freeze)
        else {},
        correlated_pairs=_find_correlated_pairs(covariance, undetermined, space.names),
        shared=_find_shared_quantities(covariance, sd, undetermined, space.free),
        findings=_find_log_problems(survey),
    )


def _summarize_outlooks(information: FisherInformation, excited: Array, sd: Array) -> list[ParameterOutlook]:
    variance = np.diagonal(information.covariance(sd), axis1=1, axis2=2)
    error = np.sqrt(variance) / sd
    return [summarize_outlook(excited[:, i], error[:, i]) for i in range(len(sd))]


def plan_parameter(parameter: FreeParam, now: ParameterOutlook, then: ParameterOutlook | None) -> PlannedParam:
    """Return the plan's entry for one parameter; an undetermined parameter gets a motion that would excite it.

    Args:
        parameter: The parameter.
        now: Expected accuracy from the available data.
        then: Expected accuracy including the suggested motion; None if no motion is suggested.
    """
    last = then or now
    return PlannedParam(
        name=parameter.name,
        unit=parameter.param.unit,
        nominal=parameter.param.nominal,
        prior=float(parameter.sd),
        log=parameter.is_logarithmic,
        with_data=now,
        with_excitation=then,
        advice="" if last.verdict == "determined" else parameter.param.quantity.fit.excitation,
    )


def _find_undetermined_directions(
    added_precision: Array, survey: Survey, sd: Array
) -> tuple[UndeterminedDirection, ...]:
    """Return the combinations of parameters that the data do not determine, within groups of jointly fitted parameters.

    They are computed at the first set of plausible parameters.

    Args:
        added_precision: Precision that the data add to the prior, ``(p, p)``.
        survey: Survey of the data (Fisher information at several sets of plausible parameters).
        sd: Prior standard deviations, ``(p,)``.
    """
    directions: list[UndeterminedDirection] = []
    for columns in survey.groups.values():
        names = [survey.space.names[i] for i in columns]
        directions += assess_determination(added_precision[np.ix_(columns, columns)], sd[columns], names).directions
    return tuple(directions)


def _condition_numbers(survey: Survey) -> dict[str, tuple[float, float]]:
    each = {
        name: [scaled_condition(matrix[np.ix_(columns, columns)]) for matrix in survey.information.matrix]
        for name, columns in survey.groups.items()
    }
    return {name: (values[0], max(values)) for name, values in each.items()}


def _choose_frozen(added_precision: Array, sd: Array) -> NDArray[np.intp]:
    """Return the indices of the parameters to fix so that the other parameters are determined.

    A pivoted QR of the information's square root orders parameters by the information that they add to the earlier ones
    (subset selection, Golub, Klema & Stewart 1976). A parameter is fixed if the added information is too small for a
    standard error of at most half (`DETERMINED`) a prior standard deviation.

    Args:
        added_precision: Precision that the data add to the prior, ``(p, p)``.
        sd: Prior standard deviations, ``(p,)``.
    """
    values, vectors = np.linalg.eigh(added_precision * np.outer(sd, sd))
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    factorization: Any = qr(root, pivoting=True)
    added, order = np.diag(factorization[1]) ** 2, np.asarray(factorization[2], dtype=np.intp)
    return np.sort(order[added < 1.0 / DETERMINED**2 - 1.0])


def _errors_with_frozen(
    information: FisherInformation, freeze: NDArray[np.intp], sd: Array, names: tuple[str, ...]
) -> dict[str, float]:
    """Return the expected errors of the parameters that stay free, in prior standard deviations, by name.

    Args:
        information: Fisher information at the first set of plausible parameters, ``(1, p, p)``.
        freeze: Indices of the parameters that are fixed; they count as known exactly.
        sd: Prior standard deviations, ``(p,)``.
        names: Names of all p parameters.
    """
    free = np.setdiff1d(np.arange(len(sd)), freeze)
    sd_with_frozen = sd.copy()
    sd_with_frozen[freeze] = 0.0
    error = np.sqrt(np.diag(information.covariance(sd_with_frozen)[0]))[free] / sd[free]
    return {names[i]: float(value) for i, value in zip(free, error, strict=True)}


def _find_correlated_pairs(
    covariance: Array, undetermined: list[bool], names: tuple[str, ...]
) -> tuple[tuple[str, str, float], ...]:
    """Return pairs of parameters with a correlation above 0.9, and the correlation.

    At least one parameter of each pair is undetermined.

    Args:
        covariance: Expected covariance of the estimate, ``(p, p)``.
        undetermined: Whether each parameter is undetermined.
        names: Names of the parameters.
    """
    size = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(size, size)
    pairs = np.argwhere(np.triu(np.abs(correlation) > _ALIKE, k=1))
    return tuple((names[a], names[b], float(correlation[a, b])) for a, b in pairs if undetermined[a] or undetermined[b])


def _find_shared_quantities(
    covariance: Array, sd: Array, undetermined: list[bool], free: tuple[FreeParam, ...]
) -> dict[str, float]:
    """Return quantities that the data would determine if all joints of the same nominal value shared one value.

    Returns:
        The expected error in prior standard deviations, by description of quantity and joints.
    """
    kinds: dict[tuple[str, float], list[int]] = {}
    for i, parameter in enumerate(free):
        if parameter.param.quantity.fit.shared and parameter.joint is not None:
            kinds.setdefault((parameter.param.quantity.path(), parameter.param.nominal), []).append(i)
    errors = {}
    for (name, nominal), columns in kinds.items():
        known = np.sum(sd[columns] ** 2 / np.diag(covariance)[columns] - 1.0)
        error = float(1.0 / np.sqrt(1.0 + known))
        if len(columns) > 1 and any(undetermined[i] for i in columns) and error <= DETERMINED:
            errors[f"{name} (nominal {nominal:g}, {len(columns)} joints)"] = error
    return errors


def _find_log_problems(survey: Survey) -> tuple[str, ...]:
    """Describe the problems of a log, each with its joint or parameter and with what the user should do next."""
    problems = [
        f"{joint} does not move, so this log cannot identify "
        f"{', '.join(p.name for p in survey.space.free if p.name.split('/')[1] == joint) or 'it'}. Record its motion, "
        "or fix these parameters."
        for joint in survey.still_joints
    ]
    if survey.episodes == 1:
        problems.append(
            "There is only one episode: intervals cannot be clustered by episode, and nothing can be held out. Record "
            "several, for example with --repeat."
        )
    if survey.frames and not (survey.information.matrix[0] > 0).any():
        problems.append(
            "No parameter affects any reading in this log: there is no excitation. Record the motion of --excitation."
        )
    return tuple(problems)
