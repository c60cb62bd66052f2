"""Attribute a twin's error to groups of parameters, each exchanged for its identified values; shares have intervals.

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
from twinloop.gap.attribution.design import CoalitionDesign, DrawDesign, GroupEffects, design, drawn_values
from twinloop.gap.attribution.groups import ParameterGroup, changed_params
from twinloop.gap.attribution.result import Attribution, ErrorCause, joined_groups, ranked
from twinloop.gap.attribution.thinning import part_within, physics_steps
from twinloop.gap.dynamics.errors import window_errors
from twinloop.gap.dynamics.intervals import FEWEST, why_no_interval
from twinloop.simulate import Backend
from twinloop.simulate.replay import at_physics_rate
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.stats.shares import ShapleyShares, ShareDeviations, ratios, shares, unsure
from twinloop.twin import Twin

Array = NDArray[np.float64]


class SquaredErrorShares:
    """Shares of squared errors.

    Args:
        sums: squared errors ``(nworld, nepisode, nchannel)`` of a design's worlds.
        erring: channels that have an error at all, ``(nchannel,)``.
        plan: the design.
        drawn: the same of a design of draws, on episodes of its own; None for none.
        clusters: on which the covariance of these draws rests.
        level: confidence level.
        resamples: of the bootstrap over episodes.
        seed: of these.
    """

    def __init__(
        self,
        *,
        sums: Array,
        erring: NDArray[np.bool_],
        plan: CoalitionDesign,
        drawn: tuple[DrawDesign, Array] | None,
        clusters: int = 0,
        level: float,
        resamples: int,
        seed: int,
    ) -> None:
        self._whole, self._left = sums[0] * erring, sums[-1]
        self._effects, self._pairs = plan.effects(sums[0] - sums)
        alike = erring / max(int(erring.sum()), 1)
        self._mix = np.concatenate([np.diag(erring.astype(np.float64)), alike[:, None]], axis=1)
        self._level, self._resamples, self._seed = level, resamples, seed
        self._drawn: GroupEffects | None = None
        self._df = clusters - 1 if clusters > 1 else np.inf
        if drawn is not None:
            design, errors = drawn
            self._drawn, gained = design.effects(errors[0] - errors)
            self._drawn_whole = errors[0] * erring
            self._drawn_left = (errors[0] - gained)[:, None]

    def shares(self, kind: str) -> ShapleyShares:
        """Of one of the `GroupEffects`, ``(ngroup, nchannel + 1)``; the last column counts every channel alike."""
        return self._shares(np.asarray(getattr(self._effects, kind)), self._deviations(kind), self._mix)

    def left(self) -> ShapleyShares:
        """Of what stays with all parameters identified, ``(1, nchannel + 1)``."""
        drawn = self._drawn and self._of_draws(self._drawn_left)
        return self._shares(self._left[None], drawn, self._mix)

    def floor(self, squared: Array) -> Array:
        """Shares of squared errors ``(nchannel,)`` that are the sensor's own; of all together where all are known."""
        whole = self._whole.sum(axis=0)
        own = np.divide(squared, whole, out=np.full_like(squared, np.nan), where=whole > 0)
        return np.append(own, own[whole > 0].mean() if (whole > 0).any() else np.nan)

    def interactions(self) -> Array:
        """Largest difference between a share and the mean of joining first and last, by column, ``(nchannel + 1,)``."""
        halves = (self._effects.alone + self._effects.back) / 2
        return np.abs(ratios(self._effects.share - halves, self._whole, self._mix)).max(axis=0)

    def causes(self, names: Sequence[str]) -> tuple[tuple[ErrorCause, ...], ...]:
        """Groups by column, those together that cannot be told apart, ranked."""
        share, back = self.shares("share"), ratios(self._effects.back, self._whole, self._mix)
        return tuple(self._causes(names, share, back[:, column], column) for column in range(self._mix.shape[1]))

    def _causes(self, names: Sequence[str], share: ShapleyShares, back: Array, column: int) -> tuple[ErrorCause, ...]:
        clusters = joined_groups(share.replicates[..., column])
        member = np.zeros((len(clusters), len(names)))
        for number, cluster in enumerate(clusters):
            member[number, cluster] = 1.0
        deviations = self._deviations("share")
        own = deviations and deviations.rows(member).column(column)
        found = self._shares(np.einsum("gm,mck->gck", member, self._effects.share), own, self._mix[:, [column]])
        claimed = found.claimed()[:, 0]
        return ranked(
            [
                ErrorCause(
                    groups=tuple(names[row] for row in cluster),
                    share=found.interval.at(number, 0),
                    p_value=float(found.p_values[number, 0]),
                    claimed=bool(claimed[number]),
                    needed=len(cluster) > 1 or bool(back[cluster[0]] > 0),
                )
                for number, cluster in enumerate(clusters)
            ]
        )

    def _shares(self, parts: Array, deviations: ShareDeviations | None, mix: Array) -> ShapleyShares:
        nepisode = len(self._whole)
        if nepisode < FEWEST:
            return unsure(parts, self._whole, mix=mix, level=self._level, reason=why_no_interval(nepisode))
        return shares(
            parts,
            self._whole,
            mix=mix,
            deviations=deviations,
            level=self._level,
            draws=self._resamples,
            seed=self._seed,
        )

    def _of_draws(self, parts: Array) -> ShareDeviations:
        return ShareDeviations.of_draws(ratios(parts, self._drawn_whole, self._mix), df=self._df)

    def _deviations(self, kind: str) -> ShareDeviations | None:
        """What shares rest on besides the episodes: the uncertainty of parameters, and of sampled orders."""
        found = None
        if self._drawn is not None:
            found = self._of_draws(getattr(self._drawn, kind))
        if kind == "share" and self._pairs is not None and len(self._pairs) > 1:
            sampled = ShareDeviations.of_mean(ratios(self._pairs, self._whole, self._mix))
            found = sampled if found is None else found + sampled
        return found


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
    groups: Sequence[ParameterGroup],
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
    tally = SquaredErrorShares(
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
    groups: Sequence[ParameterGroup],
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


def _check_groups(groups: Sequence[ParameterGroup], changed: Sequence[str]) -> None:
    held = [name for group in groups for name in group.params]
    missing = [name for name in changed if name not in held]
    twice = sorted({name for name in held if held.count(name) > 1})
    if missing or twice:
        what = f"leave out {', '.join(missing)}" if missing else f"hold {', '.join(twice)} more than once"
        raise InputError(f"The groups {what}. Every parameter that differs from nominal belongs to one group.")
