"""Measure how far simulated trajectories are from real ones as distributions, by channel and by feature.

Episodes are cut into clips, and every clip becomes a row of documented features (`trajectory_features`). The rows are
compared by distances and by a classifier; tests and intervals resample whole episodes. If the simulated episodes are
replays of the real ones, they can be compared in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinloop.core.records import Episode
from twinloop.encoders.trajectory import Array, ClipFeature, trajectory_features
from twinloop.gap.trajectories.match import (
    match_clips,
    require_enough_clips,
    require_enough_draws,
    require_positive_length,
)
from twinloop.stats import (
    ClassifierTest,
    ColumnDistances,
    KernelDistance,
    NeighbourMetrics,
    classifier_test,
    energy_distance,
    holm,
    mmd,
    precision_recall_density_coverage,
    wasserstein,
)
from twinloop.stats.discriminant import DiscriminantFeatures

SIDES = ("real", "simulated")
CLIP_S = 2.0  # a movement or two of an arm, and twenty times the lag of its servos (our choice)
_ROUND_OFF = 1e-9  # of a feature's spread
_NEIGHBOUR = 5


@dataclass(frozen=True, kw_only=True)
class TrajectoryGap:
    """Distances and tests between clips of real and simulated trajectories.

    Attributes:
        features: Name, unit and meaning of each of the nfeature features of a clip.
        scale: Standard deviation of each feature over both sets together, shape ``(nfeature,)``.
        mmd: Maximum mean discrepancy of all features, each divided by ``scale``.
        energy: Energy distance of all features, each divided by ``scale``.
        columns: Wasserstein distance of each feature, in the unit of the feature.
        classifier: Test with a classifier that uses all features.
        by_channel: Test with the features of one channel only, by channel.
        by_family: Test with the features of one family (group of related features, such as ``speed``) only, by family.
        p_channel: p-values of ``by_channel``, adjusted for their number (Holm).
        p_family: p-values of ``by_family``, adjusted for their number (Holm).
        neighbours: Precision, recall, density and coverage: whether simulation produces only clips like the real ones,
            and all of the real ones.
        real_rows: Features of the real clips, shape ``(real_clips, nfeature)``.
        sim_rows: Features of the simulated clips, shape ``(sim_clips, nfeature)``.
        real_clips: Number of real clips.
        sim_clips: Number of simulated clips.
        clip_s: Duration of a clip in seconds.
        rate_hz: Frame rate of all clips in Hz.
        paired: True if the simulated episodes are replays of the real ones, compared in pairs.
        level: Confidence level of the intervals.
        notes: Changes that made the sets comparable.
        sides: Names of the two sets in texts, such as ``real`` and ``simulated``.
    """

    features: tuple[ClipFeature, ...]
    scale: Array
    mmd: KernelDistance
    energy: KernelDistance
    columns: ColumnDistances
    classifier: ClassifierTest
    by_channel: Mapping[str, ClassifierTest]
    by_family: Mapping[str, ClassifierTest]
    p_channel: Mapping[str, float]
    p_family: Mapping[str, float]
    neighbours: NeighbourMetrics
    real_rows: Array
    sim_rows: Array
    real_clips: int
    sim_clips: int
    clip_s: float
    rate_hz: float
    paired: bool
    level: float
    notes: tuple[str, ...]
    sides: tuple[str, str] = SIDES

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary (schema 1)."""
        return {
            "schema": 1,
            "clips": {"real": self.real_clips, "sim": self.sim_clips, "seconds": self.clip_s, "rate_hz": self.rate_hz},
            "paired": self.paired,
            "sides": list(self.sides),
            "mmd": self.mmd.to_json(),
            "energy": self.energy.to_json(),
            "classifier": self.classifier.to_json(),
            "by_channel": {k: v.to_json() | {"p_adjusted": self.p_channel[k]} for k, v in self.by_channel.items()},
            "by_family": {k: v.to_json() | {"p_adjusted": self.p_family[k]} for k, v in self.by_family.items()},
            "neighbours": self.neighbours.to_json(),
            "features": [{**vars(feature), "name": feature.name} for feature in self.features],
            "columns": self.columns.to_json() | {"scale": self.scale.tolist()},
            "notes": list(self.notes),
        }


def measure_trajectories(
    real: Sequence[Episode],
    sim: Sequence[Episode],
    *,
    clip_s: float = CLIP_S,
    paired: bool = False,
    level: float = 0.95,
    draws: int = 999,
    seed: int = 0,
    sides: tuple[str, str] = SIDES,
) -> TrajectoryGap:
    """Compare real and simulated trajectories as distributions of clips.

    Args:
        real: Recorded episodes; every test and interval resamples whole episodes.
        sim: Simulated episodes of any twin, policy or generator.
        clip_s: Duration of a clip in seconds.
        paired: True if each simulated episode is a replay of the real episode with the same number.
        level: Confidence level of the intervals; tests are at 1 − ``level``.
        draws: Number of random relabellings of episodes in every test; 0 for distances without tests.
        seed: Seed of relabellings and resamples.
        sides: Names of the two sets in texts and on pages.

    Raises:
        LogError: If there are no episodes or no common channel, or episodes are too short.
        UnitsError: If units differ and cannot be converted.
        InputError: If there are too few episodes or relabellings for a test at this level; the message gives the number
            that is needed.
    """
    require_positive_length(clip_s)
    require_enough_draws(draws, level)
    matched = match_clips(real, sim, clip_s=clip_s)
    for side, clips in zip(sides, (matched.real, matched.sim), strict=True):
        require_enough_clips(clips, _NEIGHBOUR, side=side)
    features, real_rows, sim_rows = trajectory_features(matched.real, matched.sim)
    keys: dict[str, Any] = {
        "real_clusters": matched.real.clusters,
        "sim_clusters": matched.sim.clusters,
        "level": level,
        "seed": seed,
    }
    tests = keys | {"paired": paired, "draws": draws}
    scaled = DiscriminantFeatures.of(np.concatenate([real_rows, sim_rows]), quadratic=False)
    if paired and real_rows.shape == sim_rows.shape:  # a replay that differs only by round-off is the same motion
        sim_rows = np.where(np.abs(sim_rows - real_rows) <= _ROUND_OFF * scaled.sd, real_rows, sim_rows)
    a, b = scaled(real_rows), scaled(sim_rows)
    by_channel = _classify_groups(a, b, features, lambda feature: feature.channel, tests)
    by_family = _classify_groups(a, b, features, lambda feature: feature.family, tests)
    return TrajectoryGap(
        features=features,
        scale=scaled.sd,
        mmd=mmd(a, b, **tests),
        energy=energy_distance(a, b, **tests),
        columns=wasserstein(real_rows, sim_rows, columns=[f.name for f in features], **tests),
        classifier=classifier_test(a, b, columns=[f.name for f in features], **tests),
        by_channel=by_channel,
        by_family=by_family,
        p_channel=_adjust_p_values(by_channel),
        p_family=_adjust_p_values(by_family),
        neighbours=precision_recall_density_coverage(a, b, k=_NEIGHBOUR, draws=min(draws, 99), **keys),
        real_rows=real_rows,
        sim_rows=sim_rows,
        real_clips=len(matched.real),
        sim_clips=len(matched.sim),
        clip_s=clip_s,
        rate_hz=matched.real.rate_hz,
        paired=paired,
        level=level,
        notes=matched.notes,
        sides=sides,
    )


def _classify_groups(
    real: Array,
    sim: Array,
    features: Sequence[ClipFeature],
    key: Callable[[ClipFeature], str],
    tests: Mapping[str, Any],
) -> dict[str, ClassifierTest]:
    """Train and test one classifier for each group of features.

    Args:
        real: Scaled features of the real clips, shape ``(nclip, nfeature)``.
        sim: Scaled features of the simulated clips.
        features: Description of the features.
        key: Function that returns the group of a feature.
        tests: Keyword arguments of `classifier_test`.
    """
    found = {}
    for name in dict.fromkeys(key(feature) for feature in features):
        chosen = [i for i, feature in enumerate(features) if key(feature) == name]
        names = [features[i].name for i in chosen]
        found[name] = classifier_test(real[:, chosen], sim[:, chosen], columns=names, **tests)
    return found


def _adjust_p_values(tests: Mapping[str, ClassifierTest]) -> dict[str, float]:
    p = [test.p_value for test in tests.values()]
    if np.isnan(p).any():
        return dict.fromkeys(tests, float("nan"))
    return dict(zip(tests, holm(p).tolist(), strict=True))


_MOST = 12
_FACTOR = 1.5  # larger ratios are reported as a factor
_LEVELS = ("position_mean", "command_mean", "tracking_mean")  # their zero is arbitrary: no factor


def format_verdict(gap: TrajectoryGap) -> str:
    """Return one or two sentences: whether clips of both sides can be distinguished, and by which channels.

    The sides, such as real and simulated, are compared on held-out clips.
    """
    auc = gap.classifier.auc
    metric = f"{float(auc.estimate):.2f} [{float(auc.low):.2f}, {float(auc.high):.2f}]"
    if np.isnan(gap.classifier.p_value):
        return (
            f"Of pairs of held-out clips, one {gap.sides[0]} and one {gap.sides[1]}, a classifier orders a share of "
            f"{metric} correctly, where 0.5 is chance; no test was made."
        )
    p = f"p = {gap.classifier.p_value:.2g}"
    if gap.classifier.p_value > 1 - gap.level:
        alone = [name for name, value in gap.p_channel.items() if value <= 1 - gap.level]
        also = (
            f" Of single channels {', '.join(alone)} can be distinguished."
            if alone
            else " This does not show equality: with few episodes only large gaps are significant."
        )
        return f"Clips cannot be distinguished: area under the curve {metric}, where 0.5 is chance ({p}).{also}"
    rows = sorted(gap.p_channel, key=lambda name: -float(gap.by_channel[name].auc.estimate))
    seen = [
        f"{name} ({float(gap.by_channel[name].auc.estimate):.2f})"
        for name in rows
        if gap.p_channel[name] <= 1 - gap.level
    ]
    which = f" Channels that suffice alone: {', '.join(seen)}." if seen else " No single channel suffices."
    return f"Clips can be distinguished: area under the curve {metric}, where 0.5 is chance ({p}).{which}"


def list_differences(gap: TrajectoryGap, most: int = _MOST) -> list[str]:
    """Return a sentence for every feature that differs significantly, with the largest difference first.

    Differences are sorted by their size relative to the feature's standard deviation. The list is empty if no test was
    made.

    Args:
        gap: The measured gap.
        most: Largest number of sentences.
    """
    table = gap.columns
    effect = table.distance.estimate / gap.scale
    rows = [i for i in np.argsort(-effect) if table.p_adjusted[i] <= 1 - gap.level]
    return [_format_difference(gap, int(i)) for i in rows[:most]]


def _format_difference(gap: TrajectoryGap, row: int) -> str:
    feature, table = gap.features[row], gap.columns
    unit = "" if feature.unit == "1" else f" {feature.unit}"
    moved, low, high = (float(getattr(table.distance, end)[row]) for end in ("estimate", "low", "high"))
    distance = f"W₁ {moved:.3g}{unit} [{low:.3g}, {high:.3g}], p = {table.p_adjusted[row]:.2g}"
    return f"{feature.channel}: {feature.meaning} {_format_change(gap, row, unit)} ({distance})."


def _format_change(gap: TrajectoryGap, row: int, unit: str) -> str:
    """Describe how the simulated values of a feature differ from the real ones: shifted, scaled, or more varied.

    Args:
        gap: The measured gap.
        row: Index of the feature.
        unit: Unit with a leading space; empty for a dimensionless feature.
    """
    there = "in simulation" if gap.sides[1] == "simulated" else f"in {gap.sides[1]}"
    real, sim = (float(rows[:, row].mean()) for rows in (gap.real_rows, gap.sim_rows))
    if abs(sim - real) < 0.5 * float(
        gap.columns.distance.estimate[row]
    ):  # values moved to both sides: the spread or the shape differs
        spread = float(gap.columns.spread[row])
        how = "varies more" if spread > 1 else "varies less"
        times = f", {spread:.2g} times as much" if np.isfinite(spread) else ""
        return f"{how} {there}{times}"
    side = "larger" if sim > real else "smaller"
    level = gap.features[row].kind in _LEVELS
    if not level and min(real, sim) > 0 and max(real, sim) / min(real, sim) >= _FACTOR:
        times = max(real, sim) / min(real, sim)
        how = "as large" if sim > real else "smaller"
        return f"is {times:.2g} times {how} {there}, {sim:.3g}{unit} for {real:.3g}{unit}"
    return f"is {abs(sim - real):.3g}{unit} {side} {there}, {sim:.3g}{unit} for {real:.3g}{unit}"
