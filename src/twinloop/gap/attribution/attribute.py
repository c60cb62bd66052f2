"""Attribute a twin's error to groups of parameters that change from nominal to identified; shares have intervals.

e(S) is the mean squared error of the twin whose groups S are identified and all others nominal. The gain of S is v(S) =
e(∅) − e(S), and the Shapley values of v divide the whole gain among the groups (`stats.shapley`). There are three
reasons for the squared error: sensor noise adds the same to e of every S and cancels in v; squared errors add over
frames and episodes, so that shares do too; and if trajectories are linear in the parameters, groups interact at most in
pairs, so that few orders suffice. All worlds replay the same windows, so that they differ in the parameters alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.gap.attribution.design import CoalitionDesign, DrawDesign, GroupEffects, design, draw_values
from twinloop.gap.attribution.groups import ParameterGroup, changed_params
from twinloop.gap.attribution.result import Attribution, ErrorCause, join_groups, rank_causes
from twinloop.gap.attribution.thinning import count_physics_steps, thin_log
from twinloop.gap.dynamics.errors import window_errors
from twinloop.gap.dynamics.intervals import FEWEST, explain_missing_interval
from twinloop.simulate import Backend
from twinloop.simulate.replay import change_physics_rate
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.stats.shares import ShapleyShares, ShareDeviations, compute_shares, ratios, shares_without_intervals
from twinloop.twin import Twin

Array = NDArray[np.float64]


class SquaredErrorShares:
    """Computation of the shares of a squared error that groups of parameters explain.

    Args:
        sums: squared errors ``(nworld, nepisode, nchannel)`` of a design's worlds.
        erring: channels with a nonzero error, ``(nchannel,)``.
        plan: the design.
        drawn: a design of draws with its squared errors, possibly on other episodes; None for none.
        clusters: number of clusters from which the covariance of the draws was estimated.
        level: confidence level.
        resamples: number of bootstrap resamples over episodes.
        seed: seed of the bootstrap.
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
        """Return the shares of one kind of `GroupEffects`, ``(ngroup, nchannel + 1)``; the last column is a mean."""
        return self._shares(np.asarray(getattr(self._effects, kind)), self._deviations(kind), self._mix)

    def remaining_shares(self) -> ShapleyShares:
        """Return the shares that remain with all parameters identified, ``(1, nchannel + 1)``."""
        drawn = self._drawn and self._draw_deviations(self._drawn_left)
        return self._shares(self._left[None], drawn, self._mix)

    def floor(self, squared: Array) -> Array:
        """Return the shares of the sensors' squared errors ``(nchannel,)``, and their mean if all are known."""
        whole = self._whole.sum(axis=0)
        own = np.divide(squared, whole, out=np.full_like(squared, np.nan), where=whole > 0)
        return np.append(own, own[whole > 0].mean() if (whole > 0).any() else np.nan)

    def interactions(self) -> Array:
        """Return the largest |share − mean of joining first and last| over groups, by column, ``(nchannel + 1,)``."""
        halves = (self._effects.alone + self._effects.back) / 2
        return np.abs(ratios(self._effects.share - halves, self._whole, self._mix)).max(axis=0)

    def causes(self, names: Sequence[str]) -> tuple[tuple[ErrorCause, ...], ...]:
        """Return ranked groups by column; groups that the data cannot separate are joined."""
        share, back = self.shares("share"), ratios(self._effects.back, self._whole, self._mix)
        return tuple(self._causes(names, share, back[:, column], column) for column in range(self._mix.shape[1]))

    def _causes(self, names: Sequence[str], share: ShapleyShares, back: Array, column: int) -> tuple[ErrorCause, ...]:
        clusters = join_groups(share.replicates[..., column])
        member = np.zeros((len(clusters), len(names)))
        for number, cluster in enumerate(clusters):
            member[number, cluster] = 1.0
        deviations = self._deviations("share")
        own = deviations and deviations.sum_groups(member).column(column)
        found = self._shares(np.einsum("gm,mck->gck", member, self._effects.share), own, self._mix[:, [column]])
        claimed = found.significant_mask()[:, 0]
        return rank_causes(
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
            return shares_without_intervals(
                parts, self._whole, mix=mix, level=self._level, reason=explain_missing_interval(nepisode)
            )
        return compute_shares(
            parts,
            self._whole,
            mix=mix,
            deviations=deviations,
            level=self._level,
            draws=self._resamples,
            seed=self._seed,
        )

    def _draw_deviations(self, parts: Array) -> ShareDeviations:
        return ShareDeviations.of_draws(ratios(parts, self._drawn_whole, self._mix), df=self._df)

    def _deviations(self, kind: str) -> ShareDeviations | None:
        """Return the uncertainty of shares from parameters and sampled orders, in addition to that from episodes."""
        found = None
        if self._drawn is not None:
            found = self._draw_deviations(getattr(self._drawn, kind))
        if kind == "share" and self._pairs is not None and len(self._pairs) > 1:
            sampled = ShareDeviations.of_mean(ratios(self._pairs, self._whole, self._mix))
            found = sampled if found is None else found + sampled
        return found


Params = Mapping[str, float] | ParamDistribution
_ROUNDING = 1e-9  # root mean square error, in a channel's unit, that is rounding error


@dataclass(frozen=True, kw_only=True)
class AttributionOptions:
    """Options of an attribution.

    Attributes:
        replay: how the log is divided into windows, and which channels are compared.
        physics_hz: rate of the physics, at most the twin's own; that of a fit by default (see `identify.FitConfig`).
        exact: largest number of groups for which every coalition is replayed.
        pairs: for more groups, the least number of random orders; each is used forwards and backwards.
        draws: number of draws of the identified distribution; 0 for the estimate alone.
        steps: limit of the physics steps of all coalitions together. If all coalitions on the whole log need more,
            orders are sampled; if the log is too long even for these, an evenly spread part of it is replayed. A
            million steps take an arm of six joints about 7 s of one core.
        draw_steps: the same limit for the draws.
        level: confidence level of the intervals.
        resamples: number of bootstrap resamples over episodes.
        seed: seed of orders, draws and resamples.
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
    """Attribute the twin's error to groups of parameters.

    Args:
        backend: the backend that runs the worlds.
        twin: the twin.
        episodes: the episodes to replay, preferably held out from the fit.
        params: identified parameters; the uncertainty of a distribution widens the intervals.
        groups: see `groups.parameter_groups`; together they must contain every parameter that differs from nominal,
            once.
        options: see `AttributionOptions`.
        floor: mean squared error of the sensor by channel, in the square of its unit, if known.
        note: a remark on the episodes for the reader of the result.

    Raises:
        LogError, InputError: the episodes do not fit the twin, the groups leave a parameter out, or a world diverges.
    """
    asked, coarse = (
        options or AttributionOptions(),
        change_physics_rate(twin, (options or AttributionOptions()).physics_hz),
    )
    known = params.estimate if isinstance(params, ParamDistribution) else params
    estimate = {name: value for name, value in known.items() if name not in asked.replay.conditions}
    _check_groups(groups, changed_params(twin, estimate))
    length = count_physics_steps(coarse, episodes, asked.replay)
    plan = design(len(groups), exact=asked.exact, worlds=asked.steps / length, least_pairs=asked.pairs, seed=asked.seed)
    part = thin_log(coarse, episodes, asked.replay, worlds=plan.nworld, steps=asked.steps)
    errors = window_errors(backend, coarse, part.episodes, plan.table(coarse, groups, estimate), options=part.options)
    errors.require_finite(twin, plan.names(groups))
    rmse, count = errors.rmse(), errors.count.sum(axis=(0, 1))
    drawn = _replay_draws(backend, coarse, part.episodes, params, groups, replace(asked, replay=part.options))
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
    untold = params.unidentified_parameters if isinstance(params, ParamDistribution) else ()
    return Attribution(
        groups=tuple(groups),
        channels=errors.channels,
        episodes=errors.episodes,
        nominal=rmse[0],
        identified=rmse[-1],
        share=tally.shares("share"),
        alone=tally.shares("alone"),
        back=tally.shares("back"),
        left=tally.remaining_shares(),
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


def _replay_draws(
    backend: Backend,
    twin: Twin,
    episodes: Sequence[Episode],
    params: Params,
    groups: Sequence[ParameterGroup],
    asked: AttributionOptions,
) -> tuple[DrawDesign, Array] | None:
    """Return the squared errors of draws of the parameters, ``(nworld, nepisode, nchannel)``."""
    if not isinstance(params, ParamDistribution) or not any(params.determined) or asked.draws < 2:
        return None
    draws = DrawDesign(ngroup=len(groups), ndraw=asked.draws)
    values = draw_values(params, [name for group in groups for name in group.params], asked.draws, seed=asked.seed)
    part = thin_log(twin, episodes, asked.replay, worlds=draws.nworld, steps=asked.draw_steps)
    errors = window_errors(backend, twin, part.episodes, draws.table(twin, groups, values), options=part.options)
    errors.require_finite(twin, draws.names())
    return draws, errors.squared.sum(axis=2)


def _check_groups(groups: Sequence[ParameterGroup], changed: Sequence[str]) -> None:
    held = [name for group in groups for name in group.params]
    missing = [name for name in changed if name not in held]
    twice = sorted({name for name in held if held.count(name) > 1})
    if missing or twice:
        what = f"leave out {', '.join(missing)}" if missing else f"contain {', '.join(twice)} more than once"
        raise InputError(f"The groups {what}. Put every parameter that differs from nominal into one group.")
