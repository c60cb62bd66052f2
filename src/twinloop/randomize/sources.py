"""Make draws from the twin's default ranges, and from a distribution identified from real data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from twinloop.core.distribution import ParamDistribution
from twinloop.core.documents import read_json
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.randomize.distributions import MultivariateNormal, Uniform
from twinloop.randomize.draws import Draw, JointDraw
from twinloop.twin import Twin

_NOT_DETERMINED = "not determined by the data, prior range"


def default_draws(twin: Twin, *, skip: Iterable[str] = (), undetermined: Iterable[str] = ()) -> list[Draw]:
    """Return a uniform draw for every parameter that has a default range in the twin.

    Args:
        twin: The twin.
        skip: Parameters that are not drawn.
        undetermined: Parameters that an identification could not determine; the ``source`` of their draws states this.
    """
    skipped, not_determined = set(skip), set(undetermined)
    return [
        Draw(
            names=(param.name,),
            distribution=Uniform(low=param.default_range[0], high=param.default_range[1]),
            op=param.op,
            scope=param.scope,
            source=f"{_NOT_DETERMINED}: {param.source}" if param.name in not_determined else param.source,
        )
        for param in twin.params.values()
        if param.default_range is not None and param.name not in skipped
    ]


def read_identified(path: Path) -> dict[str, Any]:
    """Read the result of `twinloop identify` from the folder of its run, or from its result file.

    Raises:
        InputError: If the file is missing, is not JSON, or has no distribution.
    """
    file = path / "result.json" if path.is_dir() else path
    if not file.exists():
        raise InputError(f"{file} does not exist. Give the folder of a run of `twinloop identify`.")
    run = read_json(file)
    if not isinstance(run, dict) or "distribution" not in run:
        raise InputError(
            f"{file} is not a result of `twinloop identify`, because it contains no distribution. Give the "
            "folder of a run of `twinloop identify`."
        )
    return run


def identified_draws(
    twin: Twin, distribution: ParamDistribution, *, kappa: float | None = None, skip: Iterable[str] = ()
) -> list[Draw | JointDraw]:
    """Return draws from an identified distribution; parameters that it does not know keep their prior range.

    These are undetermined parameters, and those that the fit knows less well than the twin's default range does. The
    prior range of a parameter is this range. If the twin has none, the parameter is drawn from the prior of the fit. If
    the fit had no prior, the parameter stays nominal. The other parameters are drawn around the fit in which those are
    at the mean of their prior (`ParamDistribution.centred`); these draws are repeated until they are within the
    physical bounds.

    Args:
        twin: The twin whose parameters are drawn.
        distribution: The identified distribution.
        kappa: Factor on the covariance. 1 draws from the estimate's uncertainty, larger values allow for model error.
            By default the calibrated factor, or 1 if the distribution was not calibrated.
        skip: Undetermined parameters that are not drawn; determined parameters are always drawn.

    Raises:
        InputError: If no parameter was determined, or ``kappa`` is not a number ≥ 0.
    """
    if kappa is not None and (
        isinstance(kappa, bool) or not isinstance(kappa, int | float) or not 0 <= kappa < math.inf
    ):
        raise InputError(f"kappa must be a number ≥ 0, a factor on the covariance; given {kappa!r}.")
    factor = distribution.kappa if kappa is None else kappa
    if not any(distribution.determined):
        raise InputError("Identification determined no parameter, so there is nothing to draw from. See its report.")
    joint = [_joint_draw(distribution, factor)] if distribution.drawn.any() else []
    left_out = {*(name for draw in joint for name in draw.names), *skip}
    priors = [
        _prior_draw(distribution, i) for i in _find_without_range(twin, distribution) if _has_prior(distribution, i)
    ]
    return [
        *joint,
        *(draw for draw in priors if draw.names[0] not in left_out),
        *default_draws(twin, skip=left_out, undetermined=distribution.unidentified_parameters),
    ]


def _joint_draw(distribution: ParamDistribution, kappa: float) -> JointDraw:
    """Return the joint draw of the parameters that the fit knows, with the covariance multiplied by ``kappa``."""
    keep = np.flatnonzero(distribution.drawn)
    covariance = kappa * distribution.covariance[np.ix_(keep, keep)]
    return JointDraw(
        names=tuple(distribution.names[i] for i in keep),
        distribution=MultivariateNormal(
            mean=tuple(distribution.centre[keep].tolist()), covariance=tuple(map(tuple, covariance.tolist()))
        ),
        transforms=tuple(distribution.transforms[i] for i in keep),
        source=f"identified from {distribution.clusters} episodes, data {distribution.data_hash[:12]}, kappa {kappa:g}"
        + _calibration_label(distribution, kappa),
    )


def identified_notes(
    twin: Twin, distribution: ParamDistribution, *, kappa: float | None = None, skip: Sequence[str] = ()
) -> list[str]:
    """Return notes for the user on worlds from `identified_draws`: κ, its calibration, and the undetermined parameters.

    Args:
        twin: The twin whose parameters are drawn.
        distribution: The identified distribution.
        kappa: Factor κ on the covariance, see `identified_draws`.
        skip: Undetermined parameters that are not drawn.

    Raises:
        UnknownNameError: If the twin does not have an identified parameter.
    """
    for name in distribution.names:
        if name not in twin.params:
            raise UnknownNameError("identified parameter", name, twin.params, where=f"the twin {twin.name}")
    factor = distribution.kappa if kappa is None else kappa
    calibrated = (
        _calibration_label(distribution, factor) or ", never calibrated: the ranges are the estimate's own uncertainty"
    )
    accepted = _joint_draw(distribution, factor).estimate_acceptance(twin) if distribution.drawn.any() else 1.0
    first = (
        f"{distribution.drawn.sum()} parameters are drawn together as identified from {distribution.clusters} "
        f"episodes, kappa {factor:g}{calibrated}. {accepted:.1%} of the draws are "
        "within the physical bounds; the others are drawn again."
    )
    notes = [distribution.warning, first] if distribution.warning else [first]
    wide = np.flatnonzero(~distribution.drawn & distribution.determined)
    if wide.size:
        ranges = ", ".join(_range_text(twin, distribution.names[i]) for i in wide)
        notes.append(f"Known less well from the data than by the twin's ranges, which are drawn instead: {ranges}.")
    without_range = _find_without_range(twin, distribution)
    rows = [
        i
        for i, name in enumerate(distribution.names)
        if name in distribution.unidentified_parameters and name not in skip
    ]
    declared = [distribution.names[i] for i in rows if i not in without_range and distribution.names[i] in twin.params]
    ranged = [_range_text(twin, name) for name in declared]
    prior = [_prior_text(distribution, i) for i in without_range if i in rows and _has_prior(distribution, i)]
    fixed = [distribution.names[i] for i in without_range if i in rows and not _has_prior(distribution, i)]
    for treatment, listed in (
        ("drawn from the twin's prior ranges", ranged),
        ("drawn from the fit's priors", prior),
        ("without a prior range and kept nominal", fixed),
    ):
        if listed:
            notes.append(f"NOT DETERMINED by the data, {treatment}: {', '.join(listed)}.")
    if distribution.model_error:
        notes.append(f"MODEL ERROR beyond these ranges on real clips: {distribution.model_error}.")
    return notes


def _calibration_label(distribution: ParamDistribution, kappa: float) -> str:
    if kappa != distribution.kappa:
        return ", as asked for"
    return f", {distribution.calibration.label}" if distribution.calibration is not None else ""


def _find_without_range(twin: Twin, distribution: ParamDistribution) -> list[int]:
    """Return the indices of parameters that the data did not determine and that have no default range in the twin."""
    return [
        i
        for i, name in enumerate(distribution.names)
        if not distribution.determined[i] and name in twin.params and twin.params[name].default_range is None
    ]


def _has_prior(distribution: ParamDistribution, i: int) -> bool:
    return bool(len(distribution.prior_sd)) and bool(np.isfinite(distribution.prior_sd[i]))


def _prior_draw(distribution: ParamDistribution, i: int) -> JointDraw:
    """Return a draw of parameter ``i`` from the fit's prior, within its physical bounds."""
    return JointDraw(
        names=(distribution.names[i],),
        distribution=MultivariateNormal(
            mean=(float(distribution.prior_mean[i]),), covariance=((float(distribution.prior_sd[i]) ** 2,),)
        ),
        transforms=(distribution.transforms[i],),
        source=f"{_NOT_DETERMINED}: the fit's, {_prior_text(distribution, i)}",
    )


def _prior_text(distribution: ParamDistribution, i: int) -> str:
    name, mean, sd = distribution.names[i], float(distribution.prior_mean[i]), float(distribution.prior_sd[i])
    if distribution.transforms[i] == "log":
        return f"{name} {math.exp(mean):.4g} within a factor of {math.exp(sd):.3g}"
    return f"{name} {mean:.4g} ± {sd:.3g}"


def _range_text(twin: Twin, name: str) -> str:
    param = twin.params[name]
    assert param.default_range is not None  # noqa: S101 - only called for parameters with a range
    low, high = param.absolute(param.default_range, param.op)
    return f"{name} [{low:.4g}, {high:.4g}] {param.unit}".removesuffix(" 1")
