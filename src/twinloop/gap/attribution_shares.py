"""From the errors of an attribution's worlds to shares with intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.gap.attribution_causes import Cause, joined_groups, ranked
from twinloop.gap.attribution_design import Design, DrawDesign, Effects
from twinloop.stats.shares import Deviations, Shares, ratios, shares, unsure

Array = NDArray[np.float64]
FEWEST = 4  # episodes; see `measure_intervals.FEWEST`


class Tally:
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
        plan: Design,
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
        self._drawn: Effects | None = None
        self._df = clusters - 1 if clusters > 1 else np.inf
        if drawn is not None:
            design, errors = drawn
            self._drawn, gained = design.effects(errors[0] - errors)
            self._drawn_whole = errors[0] * erring
            self._drawn_left = (errors[0] - gained)[:, None]

    def shares(self, kind: str) -> Shares:
        """Of one of the `Effects`, ``(ngroup, nchannel + 1)``; the last column counts every channel alike."""
        return self._shares(np.asarray(getattr(self._effects, kind)), self._deviations(kind), self._mix)

    def left(self) -> Shares:
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

    def causes(self, names: Sequence[str]) -> tuple[tuple[Cause, ...], ...]:
        """Groups by column, those together that cannot be told apart, ranked."""
        share, back = self.shares("share"), ratios(self._effects.back, self._whole, self._mix)
        return tuple(self._causes(names, share, back[:, column], column) for column in range(self._mix.shape[1]))

    def _causes(self, names: Sequence[str], share: Shares, back: Array, column: int) -> tuple[Cause, ...]:
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
                Cause(
                    groups=tuple(names[row] for row in cluster),
                    share=found.interval.at(number, 0),
                    p_value=float(found.p_values[number, 0]),
                    claimed=bool(claimed[number]),
                    needed=len(cluster) > 1 or bool(back[cluster[0]] > 0),
                )
                for number, cluster in enumerate(clusters)
            ]
        )

    def _shares(self, parts: Array, deviations: Deviations | None, mix: Array) -> Shares:
        nepisode = len(self._whole)
        if nepisode < FEWEST:
            said = "one episode" if nepisode == 1 else f"{nepisode} episodes"
            reason = f"{said}, no interval: at least {FEWEST} are needed"
            return unsure(parts, self._whole, mix=mix, level=self._level, reason=reason)
        return shares(
            parts,
            self._whole,
            mix=mix,
            deviations=deviations,
            level=self._level,
            draws=self._resamples,
            seed=self._seed,
        )

    def _of_draws(self, parts: Array) -> Deviations:
        return Deviations.of_draws(ratios(parts, self._drawn_whole, self._mix), df=self._df)

    def _deviations(self, kind: str) -> Deviations | None:
        """What shares rest on besides the episodes: the uncertainty of parameters, and of sampled orders."""
        found = None
        if self._drawn is not None:
            found = self._of_draws(getattr(self._drawn, kind))
        if kind == "share" and self._pairs is not None and len(self._pairs) > 1:
            sampled = Deviations.of_mean(ratios(self._pairs, self._whole, self._mix))
            found = sampled if found is None else found + sampled
        return found
