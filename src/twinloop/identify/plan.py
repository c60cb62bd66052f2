"""Before the fit: what data can tell, what to hold or to share, and what a suggested excitation would add."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from twinloop.identify.directions import Direction, determination, scaled_condition
from twinloop.identify.excitation import Excitation
from twinloop.identify.fisher import Information
from twinloop.identify.plan_result import Outlook, Plan, PlannedParam, outlook
from twinloop.identify.space import FreeParam
from twinloop.identify.survey import Survey

Array = NDArray[np.float64]
# A parameter counts as determined when its standard error is at most this part of what was known beforehand, as after
# a fit (see `uncertainty`).
DETERMINED = 0.5
_ALIKE = 0.9


def plan(seen: Survey, suggested: Excitation | None = None, *, repeat: int = 1, data: str = "") -> Plan:
    """What a survey says, and what ``repeat`` recordings of a suggested excitation would add."""
    space, sd = seen.space, seen.space.column("sd")
    now = _outlooks(seen.told, seen.excited, sd)
    then = None
    if suggested is not None:
        frames = np.array([seen.frames, repeat * len(suggested.commands)])
        power = (frames[0] * seen.excited**2 + frames[1] * suggested.excited**2) / frames.sum()
        then = _outlooks(seen.told + suggested.told.times(repeat), np.sqrt(power), sd)
    covariance, gained = seen.told.covariance(sd)[0], seen.told.gained(sd)[0]
    found = _directions(gained, seen, sd)
    undetermined = [outlook.verdict != "determined" for outlook in now]
    freeze = _freeze(gained, sd) if any(undetermined) and seen.frames else np.zeros(0, dtype=np.intp)
    return Plan(
        twin=seen.twin.name,
        data=data,
        frames=seen.frames,
        episodes=seen.episodes,
        points=len(seen.points),
        parameters=tuple(
            planned_param(parameter, now[i], None if then is None else then[i])
            for i, parameter in enumerate(space.free)
        ),
        noise=seen.noise,
        channels=seen.channels,
        units=seen.units,
        condition=_conditions(seen) if seen.frames else {},
        directions=found if seen.frames else (),
        freeze=tuple(space.names[i] for i in freeze),
        with_frozen=_with_frozen(seen.told.take(np.array([0])), freeze, sd, space.names) if len(freeze) else {},
        grouped=_grouped(covariance, undetermined, space.names),
        shared=_shared(covariance, sd, undetermined, space.free),
        findings=_findings(seen),
    )


def _outlooks(told: Information, excited: Array, sd: Array) -> list[Outlook]:
    variance = np.diagonal(told.covariance(sd), axis1=1, axis2=2)
    error = np.sqrt(variance) / sd
    return [outlook(excited[:, i], error[:, i], DETERMINED) for i in range(len(sd))]


def planned_param(parameter: FreeParam, now: Outlook, then: Outlook | None) -> PlannedParam:
    """Return the row of a parameter, with the motion that would determine it where nothing has."""
    last = then or now
    return PlannedParam(
        name=parameter.name,
        unit=parameter.param.unit,
        nominal=parameter.param.nominal,
        prior=float(parameter.sd),
        log=parameter.log,
        now=now,
        then=then,
        advice="" if last.verdict == "determined" else parameter.param.quantity.fit.excitation,
    )


def _directions(gained: Array, seen: Survey, sd: Array) -> tuple[Direction, ...]:
    """Open directions of every group of parameters that are judged together, at the first point."""
    found: list[Direction] = []
    for columns in seen.groups.values():
        names = [seen.space.names[i] for i in columns]
        found += determination(gained[np.ix_(columns, columns)], sd[columns], names).directions
    return tuple(found)


def _conditions(seen: Survey) -> dict[str, tuple[float, float]]:
    each = {
        name: [scaled_condition(matrix[np.ix_(columns, columns)]) for matrix in seen.told.matrix]
        for name, columns in seen.groups.items()
    }
    return {name: (values[0], max(values)) for name, values in each.items()}


def _freeze(gained: Array, sd: Array) -> NDArray[np.intp]:
    """Parameters to hold so that what remains is determined.

    Pivoted QR of the information's square root orders parameters by what the data tell of each beyond those before it
    (subset selection, Golub, Klema & Stewart 1976); those told less than `DETERMINED` asks are held.
    """
    values, vectors = np.linalg.eigh(gained * np.outer(sd, sd))
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    found: Any = qr(root, pivoting=True)
    new, order = np.diag(found[1]) ** 2, np.asarray(found[2], dtype=np.intp)
    return np.sort(order[new < 1.0 / DETERMINED**2 - 1.0])


def _with_frozen(told: Information, freeze: NDArray[np.intp], sd: Array, names: tuple[str, ...]) -> dict[str, float]:
    """Expected errors of the others, in prior deviations, at the first point."""
    kept = np.setdiff1d(np.arange(len(sd)), freeze)
    held = sd.copy()
    held[freeze] = 0.0
    error = np.sqrt(np.diag(told.covariance(held)[0]))[kept] / sd[kept]
    return {names[i]: float(value) for i, value in zip(kept, error, strict=True)}


def _grouped(covariance: Array, undetermined: list[bool], names: tuple[str, ...]) -> tuple[tuple[str, str, float], ...]:
    """Pairs with an undetermined member whose estimates would move together."""
    size = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(size, size)
    pairs = np.argwhere(np.triu(np.abs(correlation) > _ALIKE, k=1))
    return tuple((names[a], names[b], float(correlation[a, b])) for a, b in pairs if undetermined[a] or undetermined[b])


def _shared(covariance: Array, sd: Array, undetermined: list[bool], free: tuple[FreeParam, ...]) -> dict[str, float]:
    """Quantities of which one value for all joints of the same nominal would be determined where each alone is not."""
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


def _findings(seen: Survey) -> tuple[str, ...]:
    """What is wrong with a log, with its joint or parameter and what to do."""
    said = [
        f"{joint} stands still in the whole log, so nothing is said about "
        f"{', '.join(p.name for p in seen.space.free if p.name.split('/')[1] == joint) or 'it'}. Record motion of it, "
        "or hold these parameters."
        for joint in seen.standing
    ]
    if seen.episodes == 1:
        said.append(
            "There is one episode only: no interval can be clustered by episode, and nothing can be held out. Record "
            "several, such as with --repeat."
        )
    if seen.frames and not (seen.told.matrix[0] > 0).any():
        said.append(
            "Nothing in this log moves any reading: there is no excitation at all. Record what --excitation says."
        )
    return tuple(said)
