"""Detect structure in a fit's residuals that the twin's physics does not explain, and name physics that may be missing.

Intervals come from the variation of the data between episodes or blocks of time. They do not contain an error that is
the same in all of them, such as friction that the twin lacks. Such an error is seen as residuals that are correlated
in time. Parameters whose information comes from these residuals are *conditional* on the twin's physics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import TwinloopError
from twinloop.core.records import Episode
from twinloop.identify.assembly import FitSpace
from twinloop.identify.config import FitConfig
from twinloop.identify.physics_rate import limit_physics_rate
from twinloop.identify.problem import FitProblem, Linearization
from twinloop.identify.structures import BUILTIN, Structure
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import pooled_autocorrelation, quantization_step
from twinloop.twin import Twin

Array = NDArray[np.float64]
# A residual is structured if its autocorrelation exceeds the first number, and its correlated part the second, in
# rounding steps of the log. Chosen on planted robots with seeds from 1000 on.
_CORRELATED, _ROUNDING = 0.6, 0.5
# A parameter is conditional if structured channels give more than this part of its information; our choice.
_SHARE = 0.1
_PART = 0.2  # of a structure's start values, from which responses are computed; our choice
_NAMED = 0.1  # least part of the squared residual that missing physics must explain to be named; our choice


@dataclass(frozen=True, kw_only=True)
class ModelError:
    """Structure in the residuals of a fit, and the physics that may be missing.

    Attributes:
        structured: Whether the residual of each channel is structured, ``(nchannel,)``.
        conditional: Whether each parameter is conditional on the twin's physics, ``(p,)``.
        responses: Responses of the readings to missing physics, by name of the structure and of structure and joint, in
            the channels' units, ``(nwindow, nframe, nchannel)``.
        explained: Part of the squared residuals of the structured channels that missing physics would explain, by name
            of the structure; at most 1, the largest first.
    """

    structured: NDArray[np.bool_]
    conditional: NDArray[np.bool_]
    responses: Mapping[str, Mapping[str, Array]] = field(default_factory=dict[str, Mapping[str, Array]])
    explained: Mapping[str, float] = field(default_factory=dict[str, float])

    def describe(self, channels: Sequence[str]) -> list[str]:
        """Return a note for the user; the list is empty without structured residuals.

        Args:
            channels: Names of the channels.
        """
        if not self.structured.any():
            return []
        names = ", ".join(name for name, chosen in zip(channels, self.structured, strict=True) if chosen)
        likely = [f"{name} would explain {part:.0%} of it" for name, part in self.explained.items() if part > _NAMED]
        hint = f" {'; '.join(likely[:2]).capitalize()}." if likely else ""
        note = (
            f"The residuals of {names} are correlated in time: the twin's physics does not explain them, or the search "
            f"did not find the best values.{hint} Intervals marked † hold only if the twin's physics is right. Compare "
            "other physics with --compare, or search from many starts (search: multistart)."
        )
        return [note]


def find_model_error(
    backend: Backend,
    logs: ReplayLogs,
    space: FitSpace,
    config: FitConfig,
    problem: FitProblem,
    here: Linearization,
    episodes: Sequence[Episode],
    step_errors: Array | None = None,
) -> ModelError:
    """Find structure in the residuals of a fit, and the built-in physics that would explain it.

    Args:
        backend: The backend that simulates the replays.
        logs: The training windows.
        space: The free parameters.
        config: Configuration of the fit.
        problem: Least-squares problem of the fit.
        here: Linearization at its solution, of a problem with one block.
        episodes: The training episodes.
        step_errors: Errors of the physics step, see `OptimizationResult`; None for none.
    """
    structured = find_structured_channels(here.residual * problem.width, problem.measured, step_errors)
    conditional = conditional_parameters(here, problem, structured)
    if not logs.joints or len(logs.channels) != len(logs.joints):
        return ModelError(structured=structured, conditional=conditional)
    responses, explained = dict[str, Mapping[str, Array]](), {}
    for structure in BUILTIN:
        try:
            own = _structure_responses(backend, logs, space, config, here, structure, episodes)
        except TwinloopError:  # physics that this twin cannot have
            continue
        if not own:
            continue
        likely = [change for joint, change in own.items() if structured[joint]]
        if likely:
            explained[structure.name] = _explained_part(problem, here, structured, np.array(likely))
        responses[structure.name] = {f"{structure.name} of {logs.joints[j]}": change for j, change in own.items()}
    ordered = dict(sorted(explained.items(), key=lambda item: -item[1]))
    return ModelError(structured=structured, conditional=conditional, responses=responses, explained=ordered)


def find_structured_channels(
    residual: Array, measured: Array, step_errors: Array | None = None, *, least: float = _CORRELATED
) -> NDArray[np.bool_]:
    """Return which channels have residuals that are correlated in time, ``(nchannel,)``.

    Residuals within the rounding of the log, or within the errors of the physics step, do not count.

    Args:
        residual: Residuals ``(nwindow, nframe, nchannel)`` in the channels' units; NaN marks missing measurements.
        measured: Measured readings of the same shape.
        step_errors: Errors of the physics step, ``(k, nwindow, nframe, nchannel)``; None for none.
        least: Autocorrelation from which on residuals are structured.
    """
    found, numerical = [], np.zeros(residual.shape[-1])
    if step_errors is not None:
        numerical = np.sqrt(np.sum(np.mean(step_errors**2, axis=(1, 2)), axis=0))
    for column in range(residual.shape[-1]):
        clips = [window[~np.isnan(window)] for window in residual[..., column]]
        rho = pooled_autocorrelation(clips)
        size = float(np.sqrt(max(rho, 0.0) * np.mean(np.concatenate(clips) ** 2)))
        values = measured[..., column]
        step = quantization_step(values[~np.isnan(values)]) or 0.0
        found.append(bool(rho > least and size > max(_ROUNDING * step, float(numerical[column]))))
    return np.array(found)


def conditional_parameters(
    here: Linearization, problem: FitProblem, structured: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which parameters get a considerable part of their information from structured channels, ``(p,)``."""
    weight = np.where(np.isnan(here.residual), 0.0, problem.frame_weight)
    information = np.zeros((len(here.point), len(structured)))
    for block, slopes in zip(problem.blocks, here.jacobians, strict=True):
        own = np.einsum("efcp,efc->pc", np.nan_to_num(slopes) ** 2, weight[..., block.channels])
        information[np.ix_(block.columns, block.channels)] = own
    total = information.sum(axis=1)
    return information[:, structured].sum(axis=1) > _SHARE * np.where(total > 0, total, np.inf)


def _structure_responses(
    backend: Backend,
    logs: ReplayLogs,
    space: FitSpace,
    config: FitConfig,
    here: Linearization,
    structure: Structure,
    episodes: Sequence[Episode],
) -> dict[int, Array]:
    """Return the responses to a structure in each joint, by the joint's number; those without effect are omitted.

    The change is for the structure's start values, computed from a part of them: sticking joints respond to the whole
    effect in another way.
    """
    if structure.gears != "none" or structure.needs != "nothing":
        return {}
    twin = structure.apply_to(logs.twin, episodes)
    added = [name for name in structure.names(twin) if name not in space.names]
    if not added or set(structure.names(twin)) & set(space.names):
        return {}
    neutral, start = structure.values(twin, "neutral"), structure.values(twin, "start")
    part = _PART if start else 1.0  # a no-load speed has its effect only near its value
    rows = [{name for name in added if _belongs_to(twin, name, joint)} for joint in range(len(logs.joints))]
    values = {**space.fixed, **space.scalar_values(here.point)}
    count = len(rows) + 1
    table = {name: np.full(count, value) for name, value in values.items()}
    for name in added:
        present = start.get(name, twin.params[name].nominal)
        absent = neutral.get(name, present)
        table[name] = np.full(count, absent)
        table[name][[i for i, row in enumerate(rows) if name in row]] += part * (present - absent)
    seen = limit_physics_rate(replace(logs, twin=twin), config.replay_hz)
    read = replay(backend, seen, twin.table(count, table), np.repeat(here.local[None], count, axis=0))
    change = np.nan_to_num((read[:-1] - read[-1]) / part, posinf=0.0, neginf=0.0)
    return {joint: one for joint, one in enumerate(change) if np.any(one)}


def _belongs_to(twin: Twin, name: str, joint: int) -> bool:
    member = name.split("/")[1]
    return member in (twin.robot.joints[joint], twin.robot.actuator_names[joint])


def _explained_part(problem: FitProblem, here: Linearization, structured: NDArray[np.bool_], responses: Array) -> float:
    """Return the part of the squared residuals of structured channels that positive amounts of responses explain.

    The parameters of the fit follow. The problem is linear, and large residuals have the weight of Huber's loss.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at its solution, of a problem with one block.
        structured: Mask of the channels.
        responses: Changes of the readings, ``(q, nwindow, nframe, nchannel)``.
    """
    present = ~np.isnan(here.residual)
    error = np.where(present, here.residual, 0.0)
    weight = np.where(present, np.sqrt(problem.frame_weight / np.maximum(np.abs(error), 1.0)), 0.0)
    known = (np.where(present[..., None], here.jacobians[0], 0.0) * weight[..., None]).reshape(-1, len(here.point))
    prior = np.diag(np.sqrt(problem.prior_weight) / problem.sd)
    added = (np.moveaxis(responses / problem.width, 0, -1) * weight[..., None]).reshape(len(known), -1)
    target = (-error * weight).ravel()
    design = np.concatenate([known, added], axis=1)
    padded = np.concatenate([design, np.pad(prior, ((0, 0), (0, added.shape[1])))])
    keep = np.ones(design.shape[1], dtype=bool)
    while True:
        gram = padded[:, keep].T @ padded[:, keep]
        solution = np.zeros(design.shape[1])
        ridge = 1e-9 * np.diag(np.maximum(np.diag(gram), 1e-12))
        solution[keep] = np.linalg.solve(gram + ridge, padded[: len(target), keep].T @ target)
        negative = (solution < 0) & (np.arange(len(solution)) >= known.shape[1])
        if not negative.any():
            break
        keep &= ~negative
    seen = np.broadcast_to(structured, present.shape).ravel()
    left = target - design @ solution
    return float(max(0.0, 1.0 - np.sum(left[seen] ** 2) / max(np.sum(target[seen] ** 2), 1e-300)))
