"""Predict the outcome of a demonstration, and find stated outcomes that contradict the motion.

Using a classifier trained on rollouts with known outcomes to select demonstrations is the idea of Demo-SCORE (Chen,
Lessing, Liu & Finn, "Curating demonstrations using online experience", 2025, arXiv:2503.03707), which uses policies'
observations. Ours uses about two dozen named features of the whole episode and is linear, so that it can give reasons.
It is tested on episodes that it was not trained on, and makes no prediction if this test is no better than chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, TwinloopError
from twinloop.curate.check import CheckScore, Measurement, MeasuringCheck
from twinloop.curate.demonstration.gripper import find_grip_events
from twinloop.curate.demonstration.movement import Array, Movement, compute_movement, split_movements
from twinloop.curate.demonstration.peers import format_unit, group_recordings
from twinloop.curate.demonstration.smoothness import find_pauses, split_path
from twinloop.curate.recording import RecordedEpisode
from twinloop.stats.interval import Interval
from twinloop.stats.ridge import LogisticRidge, cross_validated_logistic
from twinloop.stats.series import log_dimensionless_jerk, spectral_arc_length

_END_S = 1.0


@dataclass(frozen=True, kw_only=True)
class OutcomeFeature:
    """One feature of an episode: name, meaning, unit (``u`` is the log's own) and value."""

    name: str
    meaning: str
    unit: str
    value: float


def compute_outcome_features(motion: Movement) -> tuple[OutcomeFeature, ...]:
    """Return the features of one motion; episodes with the same joints have the same feature names."""
    rows = (*_compute_course_features(motion), *_compute_grip_features(motion), *_find_end_positions(motion))
    return tuple(OutcomeFeature(name=n, meaning=m, unit=u, value=v) for n, m, u, v in rows)


Row = tuple[str, str, str, float]  # as an `OutcomeFeature`


def _compute_course_features(motion: Movement) -> tuple[Row, ...]:
    rate, speed = motion.rate_hz, motion.speed
    parts = split_movements(motion)
    arc = [float(spectral_arc_length(speed[a:b], rate)) for a, b in parts] or [np.nan]
    jerk = [min(float(log_dimensionless_jerk(motion.velocity[a:b], rate)), 0.0) for a, b in parts] or [np.nan]
    straight, taken, _ = split_path(motion.position[:, motion.arm], [], rate, norm=1)
    stops = find_pauses(motion) if speed.max() > 0 else []
    end = speed[-max(1, round(_END_S * rate)) :]
    unit = "rad" if motion.si else "u"
    return (
        ("duration", "duration", "s", len(motion) / rate),
        ("way", "path length of the joints", unit, float(taken.sum())),
        ("efficiency", "straight distance over path length", "1", float(straight.sum() / max(taken.sum(), 1e-12))),
        ("top_speed", "95th percentile of speed", f"{unit}/s", float(np.quantile(speed, 0.95))),
        ("smoothness", "median spectral arc length", "1", float(np.median(arc))),
        ("jerk", "median log dimensionless jerk", "1", float(np.median(jerk))),
        ("paused", "time paused in the middle", "s", sum(b - a for a, b in stops) / rate),
        ("end_speed", "mean speed in the last second", f"{unit}/s", float(end.mean())),
        ("tracking", "command − position, root mean square", unit, _compute_tracking_error(motion)),
    )


def _compute_tracking_error(motion: Movement) -> float:
    if motion.command is None:
        return float("nan")
    return float(np.sqrt(np.mean(np.sum((motion.command - motion.position)[:, motion.arm] ** 2, axis=1))))


def _compute_grip_features(motion: Movement) -> tuple[Row, ...]:
    """Return the gripper features; zeros without gripper motion, empty without a gripper."""
    if motion.gripper is None:
        return ()
    events = find_grip_events(motion)
    changes = [] if events is None else events.changes
    first = next((change.frame / motion.rate_hz for change in changes if change.closes), 0.0)
    return (
        ("grip/changes", "closings and openings", "1", float(len(changes))),
        ("grip/flutter", "quick reversals of the gripper", "1", 0.0 if events is None else float(len(events.turns))),
        (
            "grip/gap",
            "gap of the closed gripper, as a share of its range",
            "1",
            _replace_none(events and events.gap),
        ),
        (
            "grip/kept",
            "gap at the end of its last closing, as a share of its range",
            "1",
            _replace_none(events and events.last_gap),
        ),
        ("grip/first", "time of the first closing", "s", first),
    )


def _replace_none(value: float | None) -> float:
    return 0.0 if value is None else value


def _find_end_positions(motion: Movement) -> tuple[Row, ...]:
    """Return the last position of each joint."""
    unit = "rad" if motion.si else "u"
    ends = [(motion.joints[column], float(motion.position[-1, column])) for column in motion.arm]
    return tuple((f"end/{joint}", f"last position of {joint}", unit, end) for joint, end in ends)


LEAST_LABELS, LEAST_OF_EACH = 20, 8  # fewer give no useful interval of the area under the curve (our choice)
# A stated outcome is suspect if its predicted chance is below the first number, or below the mean chance that episodes
# with the other outcome get (as in confident learning: Northcutt, Jiang & Chuang, J. Artif. Intell. Res. 70, 2021).
# Wrong outcomes raise this mean, so the second number limits it. Both numbers are our choice.
LIMIT, _MOST = 0.1, 0.15
_BAD = 0.02


@dataclass(frozen=True, kw_only=True)
class OutcomePrediction:
    """Probabilities of success of episodes ``(n,)``, in the given order, and their model.

    ``probability`` of labelled episodes comes from fits that excluded them, of others from ``model``; it is NaN for
    unreadable episodes. ``auc`` is the held-out probability that a success is ranked above a failure. ``refused`` is
    the reason if nothing is predicted; the other fields are then empty or None.
    """

    probability: Array
    labels: tuple[bool | None, ...]
    features: tuple[OutcomeFeature, ...]
    rows: Array
    auc: Interval | None
    model: LogisticRidge | None
    refused: str

    def coefficients(self) -> list[tuple[str, float]]:
        """Return each feature's meaning with its change of log odds per standard deviation, the largest first."""
        if self.model is None:
            return []
        order = np.argsort(-np.abs(self.model.coefficients))
        return [(self.features[i].meaning, float(self.model.coefficients[i])) for i in order]

    def describe_features(self, most: int = 5) -> tuple[str, ...]:
        """Describe the features that increase or decrease the chance of success, one sentence each."""
        return tuple(
            f"More of '{meaning}' is evidence {'for' if weight > 0 else 'against'} success ({weight:+.2f} log odds per "
            "standard deviation)."
            for meaning, weight in self.coefficients()[:most]
        )

    def describe_contradiction(self, place: int, *, success: bool, most: int = 2) -> str:
        """Describe the features of an episode that contradict an outcome most."""
        if self.model is None:
            return ""
        parts = self.model.parts(self.rows[[place]])[0] * (-1.0 if success else 1.0)
        chosen = [i for i in np.argsort(-parts)[:most] if parts[i] > 0]
        return "; ".join(
            f"{self.features[i].meaning} is {self.rows[place, i]:.3g}{format_unit(self.features[i].unit)}, "
            f"the mean {self.model.mean[i]:.3g}"
            for i in chosen
        )

    def compute_limit(self, success: bool) -> float:
        """Return the chance of a stated outcome below which it is suspect; see `LIMIT`."""
        other = [
            float(chance if success else 1.0 - chance)
            for chance, label in zip(self.probability, self.labels, strict=True)
            if label is not None and label is not success and np.isfinite(chance)
        ]
        return LIMIT if not other else float(np.clip(np.mean(other), LIMIT, _MOST))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
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
    """Predict outcomes with a model trained on the episodes with known outcome.

    Args:
        recordings: episodes of one robot and task; otherwise the model would separate tasks, not outcomes.
        labels: outcomes by episode id; by default the success of the recordings.
        level: level of the interval of the area under the curve; if it includes ½, nothing is predicted.
        seed: seed of the folds.

    Raises:
        InputError: the recordings have different joints.
    """
    features: list[tuple[OutcomeFeature, ...] | None] = []
    for recording in recordings:
        try:
            features.append(compute_outcome_features(compute_movement(recording)))
        except TwinloopError:
            features.append(None)
        recording.free_arrays()
    known = [recording.success if labels is None else labels.get(recording.episode_id) for recording in recordings]
    return predict_from_features(features, known, level=level, seed=seed)


def predict_from_features(
    features: Sequence[tuple[OutcomeFeature, ...] | None],
    labels: Sequence[bool | None],
    *,
    level: float = 0.95,
    seed: int = 0,
) -> OutcomePrediction:
    """Predict outcomes from given features, None for unreadable episodes; see `predict_outcomes`."""
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
    refused = _explain_refusal(outcome[known])
    rows = _impute_means(rows, known)
    found = None if refused else cross_validated_logistic(rows[known], outcome[known], level=level, seed=seed)
    if found is not None and float(found.auc.low) <= 0.5:
        ranked, low = 100 * float(found.auc.estimate), 100 * float(found.auc.low)
        refused = (
            f"held-out successes are ranked above failures {ranked:.0f} % of the time, and the {100 * level:.0f} % "
            f"interval begins at {low:.0f} %: no better than chance"
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
    """Chance of the stated outcome by a classifier; without a stated outcome, the chance of success."""

    name = "demonstration/outcome"
    meaning = "chance of the stated outcome by a classifier that did not see the episode"
    unit = "1"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Limits of the check; part of its hash."""
        return {"limit": LIMIT, "labels": LEAST_LABELS}

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the outcome features of the episode, in the facts of one measurement."""
        return [Measurement(value=0.0, facts={"features": compute_outcome_features(compute_movement(recording))})]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Judge each stated outcome by its predicted chance, separately for each group of comparable episodes."""
        for places in group_recordings(recordings).values():
            features = [measured[place][0].facts.get("features") for place in places]
            made = predict_from_features(features, [recordings[place].success for place in places])
            for here, place in enumerate(places):
                yield self._score_outcome(recordings[place], made, here, measured[place][0])

    def _score_outcome(
        self, recording: RecordedEpisode, made: OutcomePrediction, here: int, found: Measurement
    ) -> CheckScore:
        if found.value is None:
            return self.make_score(recording, found, "unknown")
        if made.refused or made.auc is None:
            return self.make_score(recording, Measurement(value=None, said=f"Not judged: {made.refused}."), "unknown")
        label, chance = made.labels[here], float(made.probability[here])
        stated = True if label is None else label
        fits, limit = chance if stated else 1.0 - chance, made.compute_limit(stated)
        verdict = "bad" if label is not None and fits < _BAD else "suspect" if fits < limit else "good"
        word = "success" if stated else "failure"
        what = (
            f"No outcome is stated; the chance of {word}"
            if label is None
            else f"The stated outcome is {word}; its chance"
        )
        why = made.describe_contradiction(here, success=stated) if verdict != "good" else ""
        ranked = f"{100 * float(made.auc.low):.0f}–{100 * float(made.auc.high):.0f} % of pairs are ranked correctly"
        reason = f"{what} is {fits:.2f}{': ' + why if why else ''} (held out, {ranked})."
        return self.make_score(recording, Measurement(value=fits), verdict, limit=limit, reason=reason)


def _explain_refusal(outcome: NDArray[np.bool_]) -> str:
    yes, no = int(outcome.sum()), int((~outcome).sum())
    if yes + no >= LEAST_LABELS and min(yes, no) >= LEAST_OF_EACH:
        return ""
    return (
        f"{yes} successes and {no} failures are stated; at least {LEAST_LABELS} outcomes are needed, {LEAST_OF_EACH} "
        "of each kind"
    )


def _impute_means(rows: Array, known: NDArray[np.bool_]) -> Array:
    """Replace missing features by the mean over episodes with known outcome."""
    counts = np.isfinite(rows[known]).sum(axis=0)
    sums = np.where(np.isfinite(rows[known]), rows[known], 0.0).sum(axis=0)
    return np.where(np.isfinite(rows), rows, sums / np.maximum(counts, 1))
