"""Predict from a demonstration how it ended, and find outcomes that do not fit what happened.

That a classifier learned from rollouts with known outcomes says which demonstrations are worth keeping is the idea of
Demo-SCORE (Chen, Lessing, Liu & Finn, "Curating demonstrations using online experience", 2025, arXiv:2503.03707), which
learns from policies' observations. Ours sees two dozen named numbers of the whole episode and is linear in them, so
that it says why; it is judged by episodes that it did not see, and says nothing where that judgement is no better than
a coin's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, TwinloopError
from twinloop.curate.check import CheckScore, Measurement, MeasuringCheck
from twinloop.curate.demonstration.gripper import grip_events
from twinloop.curate.demonstration.movement import Array, Movement, movement, movements
from twinloop.curate.demonstration.peers import by_group, unit_words
from twinloop.curate.demonstration.smoothness import path_pieces, pauses
from twinloop.curate.recording import RecordedEpisode
from twinloop.stats.interval import Interval
from twinloop.stats.ridge import LogisticRidge, cross_validated_logistic
from twinloop.stats.series import log_dimensionless_jerk, spectral_arc_length

_END_S = 1.0


@dataclass(frozen=True, kw_only=True)
class OutcomeFeature:
    """One number of an episode: its name, what it means, and its unit (``u`` is the log's own)."""

    name: str
    meaning: str
    unit: str
    value: float


def outcome_features(motion: Movement) -> tuple[OutcomeFeature, ...]:
    """The numbers of one movement; the same names for episodes of the same joints."""
    rows = (*_course(motion), *_grip(motion), *_places(motion))
    return tuple(OutcomeFeature(name=n, meaning=m, unit=u, value=v) for n, m, u, v in rows)


Row = tuple[str, str, str, float]  # as an `OutcomeFeature`


def _course(motion: Movement) -> tuple[Row, ...]:
    rate, speed = motion.rate_hz, motion.speed
    parts = movements(motion)
    arc = [float(spectral_arc_length(speed[a:b], rate)) for a, b in parts] or [np.nan]
    jerk = [min(float(log_dimensionless_jerk(motion.velocity[a:b], rate)), 0.0) for a, b in parts] or [np.nan]
    straight, taken, _ = path_pieces(motion.position[:, motion.arm], [], rate, norm=1)
    stops = pauses(motion) if speed.max() > 0 else []
    end = speed[-max(1, round(_END_S * rate)) :]
    unit = "rad" if motion.si else "u"
    return (
        ("duration", "duration", "s", len(motion) / rate),
        ("way", "way of the joints", unit, float(taken.sum())),
        ("efficiency", "straight way over way taken", "1", float(straight.sum() / max(taken.sum(), 1e-12))),
        ("top_speed", "95th percentile of speed", f"{unit}/s", float(np.quantile(speed, 0.95))),
        ("smoothness", "median spectral arc length", "1", float(np.median(arc))),
        ("jerk", "median log dimensionless jerk", "1", float(np.median(jerk))),
        ("paused", "time paused in the middle", "s", sum(b - a for a, b in stops) / rate),
        ("end_speed", "mean speed in the last second", f"{unit}/s", float(end.mean())),
        ("tracking", "command − position, root mean square", unit, _tracking(motion)),
    )


def _tracking(motion: Movement) -> float:
    if motion.command is None:
        return float("nan")
    return float(np.sqrt(np.mean(np.sum((motion.command - motion.position)[:, motion.arm] ** 2, axis=1))))


def _grip(motion: Movement) -> tuple[Row, ...]:
    """What the gripper did; zeros where it did nothing, none without a gripper."""
    if motion.gripper is None:
        return ()
    events = grip_events(motion)
    changes = [] if events is None else events.changes
    first = next((change.frame / motion.rate_hz for change in changes if change.closes), 0.0)
    return (
        ("grip/changes", "closings and openings", "1", float(len(changes))),
        ("grip/flutter", "quick reversals of the gripper", "1", 0.0 if events is None else float(len(events.turns))),
        (
            "grip/gap",
            "share of its range that the gripper is held off when closed",
            "1",
            _or_zero(events and events.gap),
        ),
        ("grip/kept", "the same at the end of its last closing", "1", _or_zero(events and events.last_gap)),
        ("grip/first", "time of the first closing", "s", first),
    )


def _or_zero(value: float | None) -> float:
    return 0.0 if value is None else value


def _places(motion: Movement) -> tuple[Row, ...]:
    """Where each joint ends."""
    unit = "rad" if motion.si else "u"
    ends = [(motion.joints[column], float(motion.position[-1, column])) for column in motion.arm]
    return tuple((f"end/{joint}", f"last position of {joint}", unit, end) for joint, end in ends)


LEAST_LABELS, LEAST_OF_EACH = 20, 8  # fewer give no interval of the area under the curve worth the name (our choice)
# A stated outcome is suspect where its chance, by other episodes, is below this, or below what the other outcome's own
# episodes have on average, which outcomes that are wrong drive up (as in confident learning: Northcutt, Jiang & Chuang,
# J. Artif. Intell. Res. 70, 2021), up to the second one. Both are our choice.
LIMIT, _MOST = 0.1, 0.15
_BAD = 0.02


@dataclass(frozen=True, kw_only=True)
class OutcomePrediction:
    """Chances of success of episodes ``(n,)`` in the order given, and how they are made.

    ``probability`` of labelled ones is by fits that did not see them, of others by ``model``; NaN of what could not be
    read. ``auc`` is how well successes are ranked above failures, held out. ``refused`` says why nothing is predicted;
    then the other fields are empty or None.
    """

    probability: Array
    labels: tuple[bool | None, ...]
    features: tuple[OutcomeFeature, ...]
    rows: Array
    auc: Interval | None
    model: LogisticRidge | None
    refused: str

    def coefficients(self) -> list[tuple[str, float]]:
        """Features in words with the log odds that a standard deviation more of each adds, the largest first."""
        if self.model is None:
            return []
        order = np.argsort(-np.abs(self.model.coefficients))
        return [(self.features[i].meaning, float(self.model.coefficients[i])) for i in order]

    def words(self, most: int = 5) -> tuple[str, ...]:
        """What speaks for success and what against it, one sentence each."""
        return tuple(
            f"More of '{meaning}' speaks {'for' if weight > 0 else 'against'} success ({weight:+.2f} log odds a "
            "standard deviation)."
            for meaning, weight in self.coefficients()[:most]
        )

    def because(self, place: int, *, success: bool, most: int = 2) -> str:
        """Which features of an episode speak most against an outcome, in words."""
        if self.model is None:
            return ""
        parts = self.model.parts(self.rows[[place]])[0] * (-1.0 if success else 1.0)
        chosen = [i for i in np.argsort(-parts)[:most] if parts[i] > 0]
        return "; ".join(
            f"{self.features[i].meaning} is {self.rows[place, i]:.3g}{unit_words(self.features[i].unit)}, "
            f"the mean {self.model.mean[i]:.3g}"
            for i in chosen
        )

    def limit(self, success: bool) -> float:
        """The chance of a stated outcome below which it is suspect: see `LIMIT`."""
        other = [
            float(chance if success else 1.0 - chance)
            for chance, label in zip(self.probability, self.labels, strict=True)
            if label is not None and label is not success and np.isfinite(chance)
        ]
        return LIMIT if not other else float(np.clip(np.mean(other), LIMIT, _MOST))

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {
            "auc": None if self.auc is None else self.auc.to_json(),
            "refused": self.refused,
            "labels": sum(label is not None for label in self.labels),
            "coefficients": [{"feature": meaning, "log_odds": weight} for meaning, weight in self.coefficients()],
        }


def predict_outcomes(
    recordings: Sequence[RecordedEpisode],
    labels: Mapping[str, bool] | None = None,
    *,
    level: float = 0.95,
    seed: int = 0,
) -> OutcomePrediction:
    """Learn from the episodes whose outcome is known how the others end.

    Args:
        recordings: of one robot and task; others are told apart by where they stand, not by how they end.
        labels: outcomes by name of the episode; by default what the recordings say of themselves.
        level: of the interval of the area under the curve; where it reaches down to ½ nothing is predicted.
        seed: of the folds.

    Raises:
        InputError: recordings of different joints.
    """
    features: list[tuple[OutcomeFeature, ...] | None] = []
    for recording in recordings:
        try:
            features.append(outcome_features(movement(recording)))
        except TwinloopError:
            features.append(None)
        recording.forget()
    known = [recording.success if labels is None else labels.get(recording.episode_id) for recording in recordings]
    return predict_from_features(features, known, level=level, seed=seed)


def predict_from_features(
    features: Sequence[tuple[OutcomeFeature, ...] | None],
    labels: Sequence[bool | None],
    *,
    level: float = 0.95,
    seed: int = 0,
) -> OutcomePrediction:
    """As `predict_outcomes`, of numbers that are known already; None where an episode could not be read."""
    names = {tuple(feature.name for feature in row) for row in features if row is not None}
    if len(names) > 1:
        raise InputError("The episodes have different joints. Predict outcomes of one robot at a time.")
    first = next((row for row in features if row is not None), ())
    rows = np.array(
        [[np.nan] * len(first) if row is None else [feature.value for feature in row] for row in features]
    ).reshape(len(features), len(first))
    readable = np.array([row is not None for row in features], dtype=bool)
    known = readable & np.array([label is not None for label in labels], dtype=bool)
    outcome = np.array([bool(label) for label in labels])
    refused = _refused(outcome[known])
    rows = _filled(rows, known)
    found = None if refused else cross_validated_logistic(rows[known], outcome[known], level=level, seed=seed)
    if found is not None and float(found.auc.low) <= 0.5:
        ranked, low = 100 * float(found.auc.estimate), 100 * float(found.auc.low)
        refused = (
            f"held-out successes are ranked above failures {ranked:.0f} % of the time, and the {100 * level:.0f} % "
            f"interval begins at {low:.0f} %: no better than a coin"
        )
    probability = np.full(len(rows), np.nan)
    if found is not None and not refused:
        probability[readable] = found.model.probability(rows[readable])
        probability[known] = found.held_out
    return OutcomePrediction(
        probability=probability,
        labels=tuple(labels),
        features=first,
        rows=rows,
        auc=None if found is None else found.auc,
        model=None if found is None or refused else found.model,
        refused=refused,
    )


class OutcomeConsistency(MeasuringCheck):
    """Whether the outcome that is stated fits what the episode is like; where none is, whether it looks failed."""

    name = "demonstration/outcome"
    meaning = "chance of the stated outcome by a classifier that did not see the episode"
    unit = "1"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Limits."""
        return {"limit": LIMIT, "labels": LEAST_LABELS}

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """See `MeasuringCheck`."""
        return [Measurement(value=0.0, facts={"features": outcome_features(movement(recording))})]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """See `MeasuringCheck`."""
        for places in by_group(recordings).values():
            features = [measured[place][0].facts.get("features") for place in places]
            made = predict_from_features(features, [recordings[place].success for place in places])
            for here, place in enumerate(places):
                yield self._scored(recordings[place], made, here, measured[place][0])

    def _scored(self, recording: RecordedEpisode, made: OutcomePrediction, here: int, found: Measurement) -> CheckScore:
        if found.value is None:
            return self.of(recording, found, "unknown")
        if made.refused or made.auc is None:
            return self.of(recording, Measurement(value=None, said=f"Not judged: {made.refused}."), "unknown")
        label, chance = made.labels[here], float(made.probability[here])
        stated = True if label is None else label
        fits, limit = chance if stated else 1.0 - chance, made.limit(stated)
        verdict = "bad" if label is not None and fits < _BAD else "suspect" if fits < limit else "good"
        word = "success" if stated else "failure"
        what = f"No outcome is stated; the chance of {word}" if label is None else f"Stated is {word}, the chance of it"
        why = made.because(here, success=stated) if verdict != "good" else ""
        ranked = f"{100 * float(made.auc.low):.0f}–{100 * float(made.auc.high):.0f} % of pairs are ranked right"
        reason = f"{what} is {fits:.2f}{': ' + why if why else ''} (held out, {ranked})."
        return self.of(recording, Measurement(value=fits), verdict, limit=limit, reason=reason)


def _refused(outcome: NDArray[np.bool_]) -> str:
    yes, no = int(outcome.sum()), int((~outcome).sum())
    if yes + no >= LEAST_LABELS and min(yes, no) >= LEAST_OF_EACH:
        return ""
    return (
        f"{yes} successes and {no} failures are stated; it takes {LEAST_LABELS} outcomes, {LEAST_OF_EACH} of each kind"
    )


def _filled(rows: Array, known: NDArray[np.bool_]) -> Array:
    """Rows with the mean of the known ones where a number is not told."""
    counts = np.isfinite(rows[known]).sum(axis=0)
    sums = np.where(np.isfinite(rows[known]), rows[known], 0.0).sum(axis=0)
    return np.where(np.isfinite(rows), rows, sums / np.maximum(counts, 1))
