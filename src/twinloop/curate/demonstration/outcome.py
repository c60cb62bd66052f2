"""Predict the outcome of a demonstration from its motion, and find stated outcomes that contradict the prediction.

A classifier trained on rollouts with known outcomes can select demonstrations; this is the idea of Demo-SCORE (Chen,
Lessing, Liu & Finn, "Curating demonstrations using online experience", 2025, arXiv:2503.03707), which uses policies'
observations. This classifier uses about two dozen named features of the whole episode. It is linear, so that it can
give reasons. It is tested on episodes on which it was not trained, and makes no prediction if it is no better than
chance there.
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
    """One feature of an episode for the prediction of its outcome; the unit ``u`` is the log's unit of positions."""

    name: str
    meaning: str
    unit: str
    value: float


def compute_outcome_features(motion: Movement) -> tuple[OutcomeFeature, ...]:
    """Compute the features of one episode's motion; episodes with the same joints have the same feature names."""
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
    """Return the features of the gripper: zeros if it does not move, none if the robot has no gripper."""
    if motion.gripper is None:
        return ()
    events = find_grip_events(motion)
    changes = [] if events is None else events.changes
    first = next((change.frame / motion.rate_hz for change in changes if change.closes), 0.0)
    return (
        ("grip/changes", "closings and openings", "1", float(len(changes))),
        (
            "grip/flutter",
            "quick reversals of the gripper",
            "1",
            0.0 if events is None else float(len(events.quick_reversals)),
        ),
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
    """Return one feature per joint of the arm: its last position."""
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
    """Predicted probabilities of success for n episodes, and the model.

    If nothing is predicted, ``refusal_reason`` gives the reason, the probabilities are NaN and the model is None.

    Attributes:
        probability: probability of success ``(n,)``. For episodes with a stated outcome it comes from a fit that
            excluded the episode, for others from ``model``. It is NaN for unreadable episodes.
        labels: stated outcomes; None if unknown.
        features: names, meanings and units of the features; the values are those of the first readable episode.
        rows: values of the d features ``(n, d)``; missing values are replaced by the mean.
        auc: area under the ROC curve on held-out episodes: the probability that a success is ranked above a failure.
        model: logistic ridge regression, fitted to all episodes with a stated outcome.
        refusal_reason: reason why nothing is predicted; "" if there are predictions.
    """

    probability: Array
    labels: tuple[bool | None, ...]
    features: tuple[OutcomeFeature, ...]
    rows: Array
    auc: Interval | None
    model: LogisticRidge | None
    refusal_reason: str

    def coefficients(self) -> list[tuple[str, float]]:
        """Return the meaning of each feature and its effect on success, the largest effect first.

        The effect is the change of the log odds of success per standard deviation of the feature.
        """
        if self.model is None:
            return []
        order = np.argsort(-np.abs(self.model.coefficients))
        return [(self.features[i].meaning, float(self.model.coefficients[i])) for i in order]

    def describe_features(self, most: int = 5) -> tuple[str, ...]:
        """Return one sentence for each of the ``most`` features with the largest effect on the predicted success."""
        return tuple(
            f"More of '{meaning}' is evidence {'for' if weight > 0 else 'against'} success ({weight:+.2f} log odds per "
            "standard deviation)."
            for meaning, weight in self.coefficients()[:most]
        )

    def describe_contradiction(self, place: int, *, success: bool, most: int = 2) -> str:
        """Describe the features of an episode that contradict an outcome most; "" if there is no model.

        Args:
            place: index of the episode.
            success: the outcome.
            most: largest number of features.
        """
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
        """Return the predicted probability of an episode's labelled outcome below which the label is suspect.

        The limit for the label success is the mean predicted probability of success of the episodes that are labelled
        as failures. The limit for the label failure is the mean predicted probability of failure of the episodes that
        are labelled as successes. Both are clipped to the range from 0.1 to 0.15; the limit is 0.1 if there are no such
        episodes.

        Args:
            success: the label.
        """
        other = [
            float(chance if success else 1.0 - chance)
            for chance, label in zip(self.probability, self.labels, strict=True)
            if label is not None and label is not success and np.isfinite(chance)
        ]
        return LIMIT if not other else float(np.clip(np.mean(other), LIMIT, _MOST))

    def to_json(self) -> dict[str, Any]:
        """Return AUC, reason, number of labels and coefficients as a JSON-compatible dictionary."""
        return {
            "auc": None if self.auc is None else self.auc.to_json(),
            "refused": self.refusal_reason,
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
    """Predict the outcomes of episodes with a model that is trained on the episodes with a known outcome.

    Args:
        recordings: episodes of one robot and task; otherwise the model would distinguish tasks instead of outcomes.
        labels: outcomes by episode id; by default the success of the recordings.
        level: confidence level of the interval of the area under the ROC curve. If the interval includes 0.5, nothing
            is predicted.
        seed: seed of the cross-validation folds.

    Raises:
        InputError: If the recordings have different joints.
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
    """Predict outcomes from features that were computed before.

    Args:
        features: features of each episode; None for an unreadable episode.
        labels: outcome of each episode; None if unknown.
        level: confidence level of the interval of the area under the ROC curve. If the interval includes 0.5, nothing
            is predicted.
        seed: seed of the cross-validation folds.

    Raises:
        InputError: If the episodes have different features, namely different joints.
    """
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
        refusal_reason=refused,
    )


class OutcomeConsistency(MeasuringCheck):
    """Check for stated outcomes that are improbable by a classifier which was not trained on the episode.

    The value is the probability of the stated outcome, or of success if no outcome is stated.
    """

    name = "demonstration/outcome"
    meaning = "chance of the stated outcome by a classifier that did not see the episode"
    unit = "1"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Limits of the check; they are part of the check's hash."""
        return {"limit": LIMIT, "labels": LEAST_LABELS}

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return one measurement, whose ``facts`` hold the features of the episode's motion.

        Its value is 0; `judge` computes the probability of the outcome.
        """
        return [Measurement(value=0.0, facts={"features": compute_outcome_features(compute_movement(recording))})]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Train one classifier per group of comparable episodes, and judge each stated outcome by its probability."""
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
        if made.refusal_reason or made.auc is None:
            return self.make_score(
                recording, Measurement(value=None, text=f"Not judged: {made.refusal_reason}."), "unknown"
            )
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
    """Replace missing features by their mean over the episodes with a known outcome.

    Args:
        rows: features ``(n, d)`` of n episodes; not finite if missing.
        known: whether the outcome of each episode is known ``(n,)``.
    """
    counts = np.isfinite(rows[known]).sum(axis=0)
    sums = np.where(np.isfinite(rows[known]), rows[known], 0.0).sum(axis=0)
    return np.where(np.isfinite(rows), rows, sums / np.maximum(counts, 1))
