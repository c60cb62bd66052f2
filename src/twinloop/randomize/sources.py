"""Plans from what is known: the twin's default ranges, and what identification found."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.files import read_json
from twinloop.randomize.distributions import MultivariateNormal, Uniform
from twinloop.randomize.draws import Draw, JointDraw
from twinloop.twin import Twin


def default_draws(twin: Twin, *, skip: Iterable[str] = ()) -> list[Draw]:
    """A uniform draw for every parameter that declares a default range, except those in ``skip``."""
    skipped = set(skip)
    return [
        Draw(
            names=(param.name,),
            distribution=Uniform(low=param.default_range[0], high=param.default_range[1]),
            op=param.op,
            scope=param.scope,
            source=param.source,
        )
        for param in twin.params.values()
        if param.default_range is not None and param.name not in skipped
    ]


def read_identified(path: Path) -> dict[str, Any]:
    """The result of an identify run: its folder, or its result file.

    Raises:
        InputError: the file is missing, is no JSON, or holds no distribution.
    """
    file = path / "result.json" if path.is_dir() else path
    run = read_json(file)
    if "distribution" not in run:
        raise InputError(f"{file} is no result of `twinloop identify`: it holds no distribution.")
    return run


def identified_draws(
    twin: Twin, distribution: ParamDistribution, *, kappa: float = 1.0, skip: Iterable[str] = ()
) -> list[Draw | JointDraw]:
    """Draws from an identified distribution; what the data did not determine keeps the twin's default range.

    Args:
        kappa: factor on the covariance; 1 draws from the estimate's own uncertainty, more allows for model error.
        skip: parameters whose default ranges are left out.

    Raises:
        InputError: nothing was determined, or ``kappa`` is no number from 0.
    """
    if isinstance(kappa, bool) or not isinstance(kappa, int | float) or not 0 <= kappa < math.inf:
        raise InputError(f"kappa must be a number ≥ 0, a factor on the covariance; given {kappa!r}.")
    keep = np.flatnonzero(distribution.determined)
    if not len(keep):
        raise InputError("Identification determined no parameter, so there is nothing to draw from. See its report.")
    names = tuple(distribution.names[i] for i in keep)
    covariance = kappa * distribution.covariance[np.ix_(keep, keep)]
    joint = JointDraw(
        names=names,
        distribution=MultivariateNormal(
            mean=tuple(distribution.mean[keep].tolist()), covariance=tuple(map(tuple, covariance.tolist()))
        ),
        transforms=tuple(distribution.transforms[i] for i in keep),
        source=f"identified from {distribution.clusters} episodes, data {distribution.data_hash[:12]}, kappa {kappa:g}",
    )
    return [joint, *default_draws(twin, skip=(*names, *skip))]
