"""Which parameters a twin's error comes from: groups of them exchanged for their identified values, world by world.

With e(S) the mean squared error of the twin whose groups S are identified and all others nominal, v(S) = e(∅) − e(S) is
what S gains, and the Shapley values of v share the whole gain out among the groups (`stats.shapley`). Squared error is
chosen for three reasons: noise of the sensor adds the same to e of every S and drops out of v; squared errors add up
over frames and episodes, so that shares do too; and where trajectories are linear in the parameters, groups interact in
pairs at most, so that few orders suffice. All worlds replay the same windows, so that what differs between them is the
parameters alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.gap.attribution_design import DrawDesign, design, drawn_values
from twinloop.gap.attribution_result import Attribution
from twinloop.gap.attribution_shares import Tally
from twinloop.gap.errors import window_errors
from twinloop.gap.groups import Group, changed_params
from twinloop.gap.thinning import part_within, physics_steps
from twinloop.simulate import Backend
from twinloop.simulate.replay import at_physics_rate
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import Twin

Array = NDArray[np.float64]
Params = Mapping[str, float] | ParamDistribution
_ROUNDING = 1e-9  # root mean square error, in a channel's unit, that is the arithmetic's


@dataclass(frozen=True, kw_only=True)
class AttributionOptions:
    """How an attribution is made.

    Attributes:
        replay: how the log is cut into windows, and what is compared.
        physics_hz: rate of the physics, at most the twin's own; that of a fit by default (see `identify.FitConfig`).
        exact: most groups of which every coalition is replayed.
        pairs: orders of more groups than that, each walked both ways, at least.
        draws: of the identified distribution; 0 for the estimate alone.
        steps: physics steps of all coalitions together. Where all of them on the whole log would be more, orders are
            sampled, and of a log too long even for those a part is replayed, evenly spread. A million takes an arm of
            six joints about 7 s of one core.
        draw_steps: the same of the draws.
        level: confidence level of the intervals.
        resamples: of the bootstrap over episodes.
        seed: of orders, draws and resamples.
    """

    replay: ReplayOptions = field(default_factory=ReplayOptions)
    physics_hz: float = 240.0
    exact: int = 8
    pairs: int = 6
    draws: int = 12
    steps: float = 2.5e6
    draw_steps: float = 2e6
    level: float = 0.95
    resamples: int = 2000
    seed: int = 0


def attribute(
    backend: Backend,
    twin: Twin,
    episodes: Sequence[Episode],
    params: Params,
    groups: Sequence[Group],
    *,
    options: AttributionOptions | None = None,
    floor: Mapping[str, float] | None = None,
    note: str = "",
) -> Attribution:
    """Share the twin's error out among groups of parameters.

    Args:
        backend: where the worlds run.
        twin: the twin.
        episodes: what is measured, better held out from the fit.
        params: identified parameters; a distribution lets their uncertainty count.
        groups: see `groups.parameter_groups`; they must hold every parameter that differs from nominal, once.
        options: see there.
        floor: mean squared error of the sensor itself by channel, in the square of its unit, where it is known.
        note: what a reader must know of the episodes.

    Raises:
        LogError, InputError: the episodes do not fit the twin; groups that leave a parameter out; a world diverges.
    """
    asked, coarse = options or AttributionOptions(), at_physics_rate(twin, (options or AttributionOptions()).physics_hz)
    known = params.estimate if isinstance(params, ParamDistribution) else params
    estimate = {name: value for name, value in known.items() if name not in asked.replay.conditions}
    _check_groups(groups, changed_params(twin, estimate))
    length = physics_steps(coarse, episodes, asked.replay)
    plan = design(len(groups), exact=asked.exact, worlds=asked.steps / length, least_pairs=asked.pairs, seed=asked.seed)
    part = part_within(coarse, episodes, asked.replay, worlds=plan.nworld, steps=asked.steps)
    errors = window_errors(backend, coarse, part.episodes, plan.table(coarse, groups, estimate), options=part.options)
    errors.require_finite(twin, plan.names(groups))
    rmse, count = errors.rmse(), errors.count.sum(axis=(0, 1))
    drawn = _drawn(backend, coarse, part.episodes, params, groups, replace(asked, replay=part.options))
    tally = Tally(
        sums=errors.squared.sum(axis=2),
        erring=rmse[0] > _ROUNDING,
        plan=plan,
        drawn=drawn,
        clusters=params.clusters if isinstance(params, ParamDistribution) else 0,
        level=asked.level,
        resamples=asked.resamples,
        seed=asked.seed,
    )
    own = np.array([(floor or {}).get(channel.name, np.nan) for channel in errors.channels])
    untold = params.undetermined if isinstance(params, ParamDistribution) else ()
    return Attribution(
        groups=tuple(groups),
        channels=errors.channels,
        episodes=errors.episodes,
        nominal=rmse[0],
        identified=rmse[-1],
        share=tally.shares("share"),
        alone=tally.shares("alone"),
        back=tally.shares("back"),
        left=tally.left(),
        causes=tally.causes([group.name for group in groups]),
        floor=tally.floor(own * count),
        interactions=tally.interactions(),
        worlds=plan.nworld + (0 if drawn is None else drawn[0].nworld),
        coalitions=plan.text(),
        ndraw=0 if drawn is None else drawn[0].ndraw,
        held=tuple(name for group in groups for name in group.params if name in untold),
        replayed=part,
        note=note,
    )


def _drawn(
    backend: Backend,
    twin: Twin,
    episodes: Sequence[Episode],
    params: Params,
    groups: Sequence[Group],
    asked: AttributionOptions,
) -> tuple[DrawDesign, Array] | None:
    """Squared errors of draws of the parameters, ``(nworld, nepisode, nchannel)``."""
    if not isinstance(params, ParamDistribution) or not any(params.determined) or asked.draws < 2:
        return None
    draws = DrawDesign(ngroup=len(groups), ndraw=asked.draws)
    values = drawn_values(params, [name for group in groups for name in group.params], asked.draws, seed=asked.seed)
    part = part_within(twin, episodes, asked.replay, worlds=draws.nworld, steps=asked.draw_steps)
    errors = window_errors(backend, twin, part.episodes, draws.table(twin, groups, values), options=part.options)
    errors.require_finite(twin, draws.names())
    return draws, errors.squared.sum(axis=2)


def _check_groups(groups: Sequence[Group], changed: Sequence[str]) -> None:
    held = [name for group in groups for name in group.params]
    missing = [name for name in changed if name not in held]
    twice = sorted({name for name in held if held.count(name) > 1})
    if missing or twice:
        what = f"leave out {', '.join(missing)}" if missing else f"hold {', '.join(twice)} more than once"
        raise InputError(f"The groups {what}. Every parameter that differs from nominal belongs to one group.")
