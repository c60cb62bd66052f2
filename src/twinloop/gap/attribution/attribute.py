"""Attribute the error of a nominal twin to groups of parameters that identification changed, with intervals.

S is a set of groups (a coalition). e(S) is the mean squared error of the twin whose groups in S have identified values
and whose other groups have nominal values. The gain of S is v(S) = e(∅) − e(S), and the Shapley values of v divide the
whole gain among the groups (`stats.shapley`). The squared error has three advantages. Sensor noise adds the same amount
to e of every S and cancels in v. Squared errors, and therefore shares, are sums over frames and episodes. If
trajectories are linear in the parameters, at most two groups interact. Then a few random orders in which the groups
change from nominal to identified values are enough to estimate Shapley values. All worlds replay the same windows, so
that they differ in the parameters alone.
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
    """Shares of a nominal twin's squared error that groups of parameters explain.

    Results have one column for each of the n channels and a last column with the mean over channels. Draws of the
    identified distribution show how uncertain the shares are because the parameters are uncertain.

    Args:
        sums: Squared error of each world of ``plan``, summed over frames, shape ``(nworld, nepisode, nchannel)``.
        erring: Mask of the channels with a nonzero error, shape ``(nchannel,)``.
        plan: Design of the replayed worlds: in each world, some groups have identified values and all others nominal
            values.
        drawn: Design of the worlds with drawn parameters, and their squared errors in the shape of ``sums``, possibly
            on other episodes; None if there are no draws.
        clusters: Number of independent clusters of data (such as episodes) from which the covariance of the drawn
            parameters was estimated; 0 if unknown.
        level: Confidence level.
        resamples: Number of bootstrap resamples over episodes.
        seed: Seed of the bootstrap.
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
        """Return one kind of effect as shares of the squared error, shape ``(ngroup, nchannel + 1)``.

        The last column is the mean over channels.

        Args:
            kind: ``share`` (Shapley value), ``join_first_gain`` (gain when only this group changes to identified
                values) or ``join_last_gain`` (gain that is lost when only this group returns to nominal values), see
                `GroupEffects`.
        """
        return self._shares(np.asarray(getattr(self._effects, kind)), self._deviations(kind), self._mix)

    def remaining_shares(self) -> ShapleyShares:
        """Return the share of the error that remains with all parameters identified, shape ``(1, nchannel + 1)``.

        The last column is the mean over channels.
        """
        drawn = self._drawn and self._draw_deviations(self._drawn_left)
        return self._shares(self._left[None], drawn, self._mix)

    def floor(self, squared: Array) -> Array:
        """Return the noise floor as a share of the nominal twin's squared error.

        The shape is ``(nchannel + 1,)``; the last value is for all channels together. A value is NaN if the noise is
        unknown.

        Args:
            squared: Squared error that sensor noise alone causes, summed over all replayed frames, shape
                ``(nchannel,)``.
        """
        whole = self._whole.sum(axis=0)
        own = np.divide(squared, whole, out=np.full_like(squared, np.nan), where=whole > 0)
        return np.append(own, own[whole > 0].mean() if (whole > 0).any() else np.nan)

    def interactions(self) -> Array:
        """Return a measure of interactions of more than two groups of parameters, shape ``(nchannel + 1,)``.

        Gain is the reduction of the squared error. A group's first gain results if it alone is identified, its last
        gain if all other groups are already identified. The measure is the largest difference over groups between the
        Shapley value and the mean of both gains. It is 0 if there are no such interactions. The last value is for all
        channels together.
        """
        halves = (self._effects.join_first_gain + self._effects.join_last_gain) / 2
        return np.abs(ratios(self._effects.share - halves, self._whole, self._mix)).max(axis=0)

    def causes(self, names: Sequence[str]) -> tuple[tuple[ErrorCause, ...], ...]:
        """Return the groups of parameters ranked by share, for each channel and last for all channels together.

        Groups that the data cannot separate are joined. ``names`` are the names of the groups.
        """
        share, back = self.shares("share"), ratios(self._effects.join_last_gain, self._whole, self._mix)
        return tuple(self._causes(names, share, back[:, column], column) for column in range(self._mix.shape[1]))

    def _causes(self, names: Sequence[str], share: ShapleyShares, back: Array, column: int) -> tuple[ErrorCause, ...]:
        clusters = join_groups(share.replicates[..., column])
        member = np.zeros((len(clusters), len(names)))
        for number, cluster in enumerate(clusters):
            member[number, cluster] = 1.0
        deviations = self._deviations("share")
        own = deviations and deviations.sum_groups(member).column(column)
        found = self._shares(np.einsum("gm,mck->gck", member, self._effects.share), own, self._mix[:, [column]])
        significant = found.significant_mask()[:, 0]
        return rank_causes(
            [
                ErrorCause(
                    groups=tuple(names[row] for row in cluster),
                    share=found.interval.at(number, 0),
                    p_value=float(found.p_values[number, 0]),
                    significant=bool(significant[number]),
                    needed=len(cluster) > 1 or bool(back[cluster[0]] > 0),
                )
                for number, cluster in enumerate(clusters)
            ]
        )

    def _shares(self, parts: Array, deviations: ShareDeviations | None, mix: Array) -> ShapleyShares:
        nepisode = len(self._whole)
        if nepisode < FEWEST:
            return shares_without_intervals(
                parts, self._whole, weights=mix, level=self._level, reason=explain_missing_interval(nepisode)
            )
        return compute_shares(
            parts,
            self._whole,
            weights=mix,
            deviations=deviations,
            level=self._level,
            draws=self._resamples,
            seed=self._seed,
        )

    def _draw_deviations(self, parts: Array) -> ShareDeviations:
        return ShareDeviations.of_draws(ratios(parts, self._drawn_whole, self._mix), df=self._df)

    def _deviations(self, kind: str) -> ShareDeviations | None:
        """Return the uncertainty of the groups' shares of the error that does not come from the choice of episodes.

        It comes from the uncertainty of the parameters. For Shapley values, it also comes from the random choice of the
        orders in which groups change from nominal to identified values, if not every coalition (set of groups with
        identified values) is replayed. Returns None if neither applies.

        Args:
            kind: ``share``, ``join_first_gain`` or ``join_last_gain``, see `shares`.
        """
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
        replay: Division of the log into windows, and the compared channels.
        physics_hz: Rate of the physics in Hz, at most the twin's own; the default is that of a fit (see
            `identify.FitConfig`).
        exact: Largest number of groups for which every coalition is replayed. A coalition is a set of groups with
            identified values, while all other groups are nominal.
        pairs: For more groups, the least number of random orders in which groups change from nominal to identified
            values; the reverse of each order is used too.
        draws: Number of draws of the identified distribution; 0 for the estimate alone.
        steps: Limit of the physics steps of all coalitions together. If all coalitions on the whole log need more, only
            the coalitions of random orders are replayed. If the log is too long even for these, an evenly spread part
            of it is replayed. A million steps take an arm of six joints about 7 s of one core.
        draw_steps: Limit of the physics steps of all draws together.
        level: Confidence level of the intervals.
        resamples: Number of bootstrap resamples over episodes.
        seed: Seed of orders, draws and resamples.
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
    """Attribute the error of the nominal twin to groups of identified parameters.

    Args:
        backend: The backend that runs the worlds.
        twin: The twin.
        episodes: The episodes to replay, preferably held out from the fit.
        params: Identified parameters; the uncertainty of a distribution widens the intervals.
        groups: Groups of parameters, see `groups.parameter_groups`; together they must contain every parameter that
            differs from nominal, once.
        options: Limits and settings of the computation.
        floor: Mean squared error of the sensor by channel, in the square of its unit, if known.
        note: A remark on the episodes for the reader of the result.

    Raises:
        LogError, InputError: If the episodes do not fit the twin, the groups leave a parameter out, or a world
            diverges.
    """
    settings = options or AttributionOptions()
    coarse = change_physics_rate(twin, settings.physics_hz)
    known = params.estimate if isinstance(params, ParamDistribution) else params
    estimate = {name: value for name, value in known.items() if name not in settings.replay.conditions}
    _check_groups(groups, changed_params(twin, estimate))
    length = count_physics_steps(coarse, episodes, settings.replay)
    plan = design(
        len(groups),
        exact=settings.exact,
        worlds=settings.steps / length,
        least_pairs=settings.pairs,
        seed=settings.seed,
    )
    part = thin_log(coarse, episodes, settings.replay, worlds=plan.nworld, steps=settings.steps)
    errors = window_errors(backend, coarse, part.episodes, plan.table(coarse, groups, estimate), options=part.options)
    errors.require_finite(twin, plan.names(groups))
    rmse, count = errors.rmse(), errors.count.sum(axis=(0, 1))
    drawn = _replay_draws(backend, coarse, part.episodes, params, groups, replace(settings, replay=part.options))
    error_shares = SquaredErrorShares(
        sums=errors.squared.sum(axis=2),
        erring=rmse[0] > _ROUNDING,
        plan=plan,
        drawn=drawn,
        clusters=params.clusters if isinstance(params, ParamDistribution) else 0,
        level=settings.level,
        resamples=settings.resamples,
        seed=settings.seed,
    )
    own = np.array([(floor or {}).get(channel.name, np.nan) for channel in errors.channels])
    undetermined = params.unidentified_parameters if isinstance(params, ParamDistribution) else ()
    return Attribution(
        groups=tuple(groups),
        channels=errors.channels,
        episodes=errors.episodes,
        nominal=rmse[0],
        identified=rmse[-1],
        share=error_shares.shares("share"),
        join_first_gain=error_shares.shares("join_first_gain"),
        join_last_gain=error_shares.shares("join_last_gain"),
        remaining=error_shares.remaining_shares(),
        causes=error_shares.causes([group.name for group in groups]),
        floor=error_shares.floor(own * count),
        interactions=error_shares.interactions(),
        worlds=plan.nworld + (0 if drawn is None else drawn[0].nworld),
        coalitions=plan.text(),
        ndraw=0 if drawn is None else drawn[0].ndraw,
        undetermined=tuple(name for group in groups for name in group.params if name in undetermined),
        replayed_log=part,
        note=note,
    )


def _replay_draws(
    backend: Backend,
    twin: Twin,
    episodes: Sequence[Episode],
    params: Params,
    groups: Sequence[ParameterGroup],
    settings: AttributionOptions,
) -> tuple[DrawDesign, Array] | None:
    """Replay worlds with draws of the parameters; return their design and squared errors.

    The squared errors have the shape ``(nworld, nepisode, nchannel)``. Returns None if the parameters have no
    distribution or the options have fewer than two draws.
    """
    if not isinstance(params, ParamDistribution) or not any(params.determined) or settings.draws < 2:
        return None
    draws = DrawDesign(ngroup=len(groups), ndraw=settings.draws)
    values = draw_values(
        params, [name for group in groups for name in group.params], settings.draws, seed=settings.seed
    )
    part = thin_log(twin, episodes, settings.replay, worlds=draws.nworld, steps=settings.draw_steps)
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
