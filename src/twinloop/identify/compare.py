"""Find missing physics: fit alternative model structures of a twin, and compare their errors on held-out episodes.

A structure is an optional physical effect, such as backlash. It is compared by two fits: one with its parameters free,
one with them fixed at values that disable the effect. Both fits predict episodes that neither was trained on. If the
base fit already frees the structure's parameters (for example a delay), the base fit is the one with the structure.

If there is no hold-out, the episodes are split into ``folds``, and each episode is predicted by fits to the other folds
(cross-fitting), so that few episodes suffice. Episodes of one fold share a fit. The bootstrap over episodes does not
account for that: with few folds its intervals are slightly too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.plain import JsonRecord
from twinloop.core.records import Episode
from twinloop.identify.config import FitConfig, HoldoutSpec
from twinloop.identify.fit import identify
from twinloop.identify.structures import BUILTIN, Structure
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.stats import Interval, bootstrap, bootstrap_mean, holm, paired_test
from twinloop.twin import Twin

Array = NDArray[np.float64]

# A smaller relative improvement of the error is not worth a change of the twin; our choice.
LEAST_GAIN = 0.01
# Chance of any false alarm among all structures together.
ALPHA = 0.05


@dataclass(frozen=True, kw_only=True)
class StructureResult:
    """Held-out comparison of one model structure (optional physical effect) with the same fit without it.

    Attributes:
        name: Name of the structure.
        meaning: Its physics in words.
        added: Number of added parameters.
        in_base: Whether the base fit already includes the structure.
        error: Mean absolute error with the structure divided by that without it, averaged over channels.
        improvement: 1 − ``error`` over the held-out episodes, with its interval.
        p_value: P-value of the improvement, adjusted by Holm's method over all structures.
        verdict: Conclusion in words.
        reason: Why the structure was not compared, for example because it does not apply; then there are no metrics.
        channel_errors: Mean absolute error without and with the structure by channel, in the channel's unit.
        values: Added parameters as fitted in the last fold, SI.
    """

    name: str
    meaning: str
    added: int = 0
    in_base: bool = False
    error: Interval | None = None
    improvement: Interval | None = None
    p_value: float = 1.0
    verdict: str = ""
    reason: str = ""
    channel_errors: Mapping[str, tuple[float, float]]
    values: Mapping[str, float]

    @property
    def per_parameter(self) -> float:
        """Relative reduction of the held-out error per added parameter; NaN if the structure was not compared."""
        return float("nan") if self.improvement is None else float(self.improvement.estimate) / self.added

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "name": self.name,
            "meaning": self.meaning,
            "added": self.added,
            "in_base": self.in_base,
            "error": None if self.error is None else self.error.to_json(),
            "improvement": None if self.improvement is None else self.improvement.to_json(),
            "improvement_per_parameter": None if self.improvement is None else self.per_parameter,
            "p_holm": None if self.improvement is None else self.p_value,
            "verdict": self.verdict,
            "not_applicable": self.reason,
            "channels": {name: {"without": pair[0], "with": pair[1]} for name, pair in self.channel_errors.items()},
            "values": dict(self.values),
        }


@dataclass(frozen=True, kw_only=True)
class StructureComparison(JsonRecord):
    """Comparison of model structures (optional physical effects) on held-out episodes.

    Attributes:
        twin: Name of the base twin.
        base: Held-out mean absolute error of the base fit by channel, in the channel's unit.
        units: Unit of each channel.
        episodes: Number of held-out episodes.
        folds: Number of folds; 1 for a single hold-out.
        results: One result per structure.
    """

    twin: str
    base: Mapping[str, float]
    units: Mapping[str, str]
    episodes: int
    folds: int
    results: tuple[StructureResult, ...]
    least_gain, alpha = LEAST_GAIN, ALPHA
    json_schema = 1
    json_names: ClassVar = {"results": "structures"}
    json_also = ("least_gain", "alpha")

    def text(self) -> str:
        """Return a table for a terminal."""
        how = f"cross-fitted over {self.folds} folds of" if self.folds > 1 else "evaluated on"
        lines = [
            f"Structures of {self.twin}, {how} {self.episodes} episodes; held-out error relative to the fit without.",
            f"{'structure':<20}{'added':>6}{'error':>8}  {'improvement':<28}{'each':>8}{'p (Holm)':>10}  verdict",
        ]
        for row in self.results:
            if row.improvement is None or row.error is None:
                lines.append(f"{row.name:<20}{'':>6}{'':>8}  not compared: {row.reason}")
                continue
            gain = row.improvement
            span = f"{gain.estimate:+.1%} [{float(gain.low):+.1%}, {float(gain.high):+.1%}]"
            lines.append(
                f"{row.name:<20}{row.added:>6}{float(row.error.estimate):>8.3g}  {span:<28}{row.per_parameter:>+8.2%}"
                f"{row.p_value:>10.4f}  {row.verdict}"
            )
        return "\n".join(lines)


def adjust_p_values(results: Sequence[StructureResult]) -> tuple[StructureResult, ...]:
    """Adjust the p-values of the compared structures by Holm's method, and set the verdicts."""
    compared = [result for result in results if result.improvement is not None]
    p_values = dict(zip([r.name for r in compared], holm([r.p_value for r in compared]), strict=True))
    rows = [replace(r, p_value=float(p_values[r.name])) if r.name in p_values else r for r in results]
    missing = {r.name: _gain(r) for r in rows if not r.in_base and r.improvement and _is_relevant_gain(r)}
    best = max(missing, key=missing.__getitem__, default="")
    return tuple(row if row.improvement is None else replace(row, verdict=_verdict(row, best)) for row in rows)


def _gain(row: StructureResult) -> float:
    assert row.improvement is not None  # noqa: S101 - only called for compared structures
    return float(row.improvement.estimate)


def _is_relevant_gain(row: StructureResult) -> bool:
    return row.p_value <= ALPHA and _gain(row) >= LEAST_GAIN


def _verdict(row: StructureResult, best: str) -> str:
    """Return the verdict on one model structure (optional physical effect, such as backlash).

    Args:
        row: Result of the structure.
        best: Name of the structure with the largest improvement among those that the base fit lacks and whose
            improvement is significant and at least 1 %.

    Returns:
        ``needed, the base has it``, ``MISSING from the base``, ``helps, but BEST explains more``, ``makes it worse on
        new clips``, or a text that begins with ``no relevant gain`` or ``no significant gain``.
    """
    assert row.improvement is not None  # noqa: S101 - only called for compared structures
    if _is_relevant_gain(row) and row.in_base:
        return "needed, the base has it"
    if _is_relevant_gain(row):
        return "MISSING from the base" if row.name == best else f"helps, but {best} explains more"
    if row.p_value <= ALPHA:
        return f"no relevant gain: significant, but less than {LEAST_GAIN:.0%}"
    if row.improvement.high < 0:
        return "makes it worse on new clips"
    if row.improvement.high < LEAST_GAIN:
        return f"no relevant gain: below {LEAST_GAIN:.0%}"
    return f"no significant gain on these clips (at most {float(row.improvement.high):+.1%})"


_FOLDS = 3
# Hz, above any twin's rate: an elastic gear vibrates as fast as the twin's own physics step can resolve.
_FULL_RATE = 1e6


def compare_structures(
    twin: Twin,
    episodes: Sequence[Episode],
    *,
    backend: Backend,
    structures: Sequence[Structure] = BUILTIN,
    holdout: HoldoutSpec | None = None,
    folds: int = _FOLDS,
    config: FitConfig | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> StructureComparison:
    """Compare model structures (optional physical effects) by their held-out error relative to a fit without them.

    Args:
        twin: The base twin.
        episodes: The episodes of the log.
        backend: The backend that simulates the replays.
        structures: The structures to compare.
        holdout: The held-out episodes; by default all episodes are cross-fitted over ``folds``.
        folds: Number of folds; each fold holds out every ``folds``-th episode.
        config: Configuration of the base fit.
        progress: Called with a line of text before each fit.

    Raises:
        InputError: If fewer than two episodes are held out, or there are fewer episodes than folds.
    """
    config, numbers = config or FitConfig(), [episode.index for episode in episodes]
    splits = held_out_splits(numbers, holdout, folds)
    runs: dict[str, list[_FoldErrors]] = {structure.name: [] for structure in structures}
    reasons: dict[str, str] = {}
    base_errors: list[Array] = []
    for number, held in enumerate(splits):
        fold = _CrossValidationFold(twin, episodes, held, backend, config)
        progress(f"fold {number + 1} of {len(splits)}: base")
        base_errors.append(fold.fit_base())
        for structure in structures:
            if structure.name in reasons:
                continue
            progress(f"fold {number + 1} of {len(splits)}: {structure.name}")
            try:
                runs[structure.name].append(fold.evaluate_structure(structure))
            except InputError as error:
                reasons[structure.name] = str(error)
    channels = prepare_replay(twin, episodes[:1], config.replay).channels
    names = [channel.name for channel in channels]
    judged = [_summarize_structure(s, runs[s.name], reasons.get(s.name, ""), names) for s in structures]
    base = np.concatenate(base_errors).mean(axis=0)
    return StructureComparison(
        twin=twin.name,
        base=dict(zip(names, base.tolist(), strict=True)),
        units={channel.name: channel.unit for channel in channels},
        episodes=sum(map(len, splits)),
        folds=len(splits),
        results=adjust_p_values(judged),
    )


def held_out_splits(numbers: Sequence[int], holdout: HoldoutSpec | None, folds: int) -> list[list[int]]:
    """Return the held-out episode numbers of each fold; a hold-out gives a single fold.

    Args:
        numbers: Numbers of all episodes.
        holdout: The held-out episodes; None splits all episodes into ``folds``.
        folds: Number of folds.

    Raises:
        InputError: If ``folds`` does not fit the number of episodes, or fewer than two episodes are held out.
    """
    if holdout is not None and holdout.kind != "none":
        splits = [[numbers[i] for i in holdout.split(numbers)[1]]]
    else:
        if not 2 <= folds <= len(numbers):
            raise InputError(
                f"--folds: {folds} folds of {len(numbers)} episodes: give from 2 to as many folds as episodes."
            )
        splits = [list(numbers[number::folds]) for number in range(folds)]
    if sum(map(len, splits)) < 2:  # a bootstrap over episodes needs at least two
        raise InputError("One held-out episode does not show the variation between episodes. Hold out at least two.")
    return splits


@dataclass(frozen=True, kw_only=True)
class _FoldErrors:
    """Held-out errors of one fold without and with a model structure.

    Attributes:
        without_structure: Mean absolute errors without the structure, ``(nepisode, nchannel)``, in the channels' units.
        with_structure: Errors with the structure, same shape.
        added: Names of the added parameters.
        in_base: Whether the base fit already includes the structure.
        values: Fitted values of the added parameters, SI.
    """

    without_structure: Array
    with_structure: Array
    added: tuple[str, ...]
    in_base: bool
    values: Mapping[str, float]


class _CrossValidationFold:
    """Fits to the training episodes of one fold, and their errors on its held-out episodes."""

    def __init__(
        self, twin: Twin, episodes: Sequence[Episode], held: Sequence[int], backend: Backend, config: FitConfig
    ) -> None:
        self._twin, self._backend, self._config = twin, backend, config
        self._held = [episode for episode in episodes if episode.index in set(held)]
        self._training = [episode for episode in episodes if episode.index not in set(held)]

    def fit_base(self) -> Array:
        """Fit the base twin and return its held-out errors ``(nepisode, nchannel)``.

        Call it first, because `evaluate_structure` starts from its estimate.
        """
        result = identify(self._twin, self._training, backend=self._backend, config=self._config)
        distribution = result.distribution
        measured = {name for name, sd in zip(distribution.names, distribution.prior_sd, strict=True) if np.isnan(sd)}
        self._estimate = {name: value for name, value in distribution.estimate.items() if name not in measured}
        self._base = self._held_out_errors(self._twin, {**self._config.fixed, **distribution.estimate}, self._config)
        return self._base

    def evaluate_structure(self, structure: Structure) -> _FoldErrors:
        """Return the held-out errors without and with a structure.

        Raises:
            InputError: If the structure does not apply to the twin or the replay, or its fit diverges on held-out
                episodes.
        """
        if structure.needs == "contacts" and not self._config.replay.contacts:
            raise InputError("the replay simulates no contacts (replay.contacts is false)")
        extended = structure.apply_to(self._twin, self._training)
        added = structure.names(extended)
        if set(added) <= set(self._estimate):
            without, _ = self._fit_twin(
                self._twin, [n for n in self._estimate if n not in added], structure.values(extended, "neutral"), {}, {}
            )
            values = {name: self._estimate[name] for name in added}
            return _FoldErrors(
                without_structure=without, with_structure=self._base, added=added, in_base=True, values=values
            )
        having, estimate = self._fit_twin(
            extended,
            [*self._estimate, *(name for name in added if name not in self._estimate)],
            {},
            structure.values(extended, "start"),
            structure.priors,
            elastic=structure.gears == "elastic",
        )
        values = {name: estimate[name] for name in added}
        return _FoldErrors(
            without_structure=self._base, with_structure=having, added=added, in_base=False, values=values
        )

    def _fit_twin(
        self,
        twin: Twin,
        free: Sequence[str],
        fixed: Mapping[str, float],
        start: Mapping[str, float],
        priors: Mapping[str, Any],
        *,
        elastic: bool = False,
    ) -> tuple[Array, dict[str, float]]:
        config = self._config
        known = {name: value for name, value in self._estimate.items() if name in free}
        changed = replace(
            config,
            free=tuple(free),
            quantities=None,
            fixed={**config.fixed, **fixed},
            start={**known, **start},
            priors={**config.priors, **priors},
            checkpoint=None,
            physics_hz=_FULL_RATE if elastic else config.physics_hz,
        )
        estimate = identify(twin, self._training, backend=self._backend, config=changed).distribution.estimate
        return self._held_out_errors(twin, {**changed.fixed, **estimate}, changed), estimate

    def _held_out_errors(self, twin: Twin, values: Mapping[str, float], config: FitConfig) -> Array:
        logs = prepare_replay(twin, self._held, config.replay)
        known = {name: value for name, value in values.items() if name in logs.twin.params}
        readings = replay(self._backend, logs, logs.twin.table(1, known))[0]
        if not np.isfinite(readings[~np.isnan(logs.measured)]).all():
            raise InputError("its fit diverges on held-out episodes")
        return logs.episode_errors(readings)


def _summarize_structure(
    structure: Structure, pairs: Sequence[_FoldErrors], reason: str, channels: Sequence[str]
) -> StructureResult:
    if reason:
        return StructureResult(
            name=structure.name, meaning=structure.meaning, reason=reason, channel_errors={}, values={}
        )
    without = np.concatenate([pair.without_structure for pair in pairs])
    having = np.concatenate([pair.with_structure for pair in pairs])
    scale = np.maximum(without.mean(axis=0), np.finfo(float).tiny)
    relative, before = (having / scale).mean(axis=1), (without / scale).mean(axis=1)
    test = paired_test(before - relative, stream=f"compare/{structure.name}")

    def gain(rows: NDArray[np.intp]) -> Array:
        return 1.0 - relative[rows].sum(axis=1) / before[rows].sum(axis=1)

    means = zip(without.mean(axis=0).tolist(), having.mean(axis=0).tolist(), strict=True)
    return StructureResult(
        name=structure.name,
        meaning=structure.meaning,
        added=len(pairs[0].added),
        in_base=pairs[0].in_base,
        error=bootstrap_mean(relative),
        improvement=bootstrap(gain, len(relative)),
        p_value=test.p_value,
        channel_errors=dict(zip(channels, means, strict=True)),
        values=pairs[-1].values,
    )
