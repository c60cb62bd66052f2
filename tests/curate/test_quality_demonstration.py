"""Checks of how a demonstration was given: closed forms, planted faults, good data left alone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.demonstrations import CLOSED, HZ, OPEN, changed, demonstration, flagged, many, recordings
from twinloop.core.errors import InputError
from twinloop.curate.demonstration.consistency import ActionConsistency
from twinloop.curate.demonstration.duplicates import NearDuplicates
from twinloop.curate.demonstration.gripper import FLUTTER, HOLD, GripperUse, find_grip_events
from twinloop.curate.demonstration.movement import Movement
from twinloop.curate.demonstration.outcome import OutcomeConsistency, predict_outcomes
from twinloop.curate.demonstration.smoothness import (
    DimensionlessJerk,
    Hesitation,
    PathEfficiency,
    Smoothness,
    find_pauses,
)
from twinloop.stats.novelty import fence
from twinloop.stats.ridge import cross_validated_logistic, fit_logistic
from twinloop.stats.series import log_dimensionless_jerk, spectral_arc_length
from twinloop.stats.time_alignment import aligned_distances, nearest_pairs

REAL = Path(os.environ.get("TWINLOOP_DATA", "")) / "so101_pick_place_tape"


def minimum_jerk(rate_hz: float, seconds: float = 1.0, size: float = 1.0) -> np.ndarray:
    """Velocity of a minimum-jerk reach (Flash & Hogan 1985)."""
    t = (np.arange(round(seconds * rate_hz)) + 0.5) / (seconds * rate_hz)
    return size / seconds * (30 * t**2 - 60 * t**3 + 30 * t**4)


def test_a_minimum_jerk_reach_has_its_known_jerk_and_arc() -> None:
    velocity = minimum_jerk(1000.0)
    # T³/v² ∫ jerk² = 720 / 1.875² = 204.8
    assert log_dimensionless_jerk(velocity[:, None], 1000.0) == pytest.approx(-np.log(204.8), abs=0.01)
    # Slow, obvious twin: the curve of the spectrum's amplitude up to where it falls below 5 %, by a fine sum.
    frequency = np.linspace(0, 10.0, 20_001)
    time = np.arange(len(velocity)) / 1000.0
    curve = np.array([abs(np.sum(velocity * np.exp(-2j * np.pi * f * time))) for f in frequency[::20]])
    curve /= curve[0]
    last = np.flatnonzero(curve >= 0.05)[-1]
    arc = np.sum(np.hypot(np.diff(curve[: last + 1]), 1.0 / last))
    assert spectral_arc_length(velocity, 1000.0) == pytest.approx(-arc, abs=0.02)


@settings(deadline=None, max_examples=30)
@given(st.floats(0.5, 4.0), st.floats(0.01, 100.0))
def test_smoothness_knows_neither_size_nor_unit(seconds: float, size: float) -> None:
    one, other = minimum_jerk(200.0, seconds), minimum_jerk(200.0, seconds, size)
    assert spectral_arc_length(other, 200.0) == pytest.approx(spectral_arc_length(one, 200.0), rel=1e-9)
    assert log_dimensionless_jerk(other[:, None], 200.0) == pytest.approx(
        log_dimensionless_jerk(one[:, None], 200.0), rel=1e-9
    )


def test_more_submovements_are_less_smooth() -> None:
    reach = minimum_jerk(200.0)
    parts = [np.concatenate([reach] * count) for count in (1, 2, 4)]
    arcs = [float(spectral_arc_length(part, 200.0)) for part in parts]
    jerks = [float(log_dimensionless_jerk(part[:, None], 200.0)) for part in parts]
    assert arcs[0] > arcs[1] > arcs[2]
    assert jerks[0] > jerks[1] > jerks[2]
    assert np.isnan(spectral_arc_length(np.zeros(50), 30.0))
    with pytest.raises(InputError, match="3 samples are too few"):
        spectral_arc_length(np.ones(3), 30.0)


def test_a_fence_holds_normal_values_and_bears_wrong_ones() -> None:
    rng = np.random.default_rng(0)
    outside = 0
    for _ in range(300):
        values = rng.normal(size=40)
        ends = fence(values)
        outside += int(np.sum((values < ends.low) | (values > ends.high)))
    assert outside / (300 * 40) < 0.005
    mixed = np.concatenate([rng.normal(size=80), rng.normal(30.0, 1.0, size=20)])
    assert np.all(mixed[80:] > fence(mixed).high)
    with pytest.raises(InputError, match="a fence needs 10"):
        fence(np.ones(9))


def every() -> list:
    """The checks that need no outcomes."""
    kinds = (Smoothness, DimensionlessJerk, PathEfficiency, Hesitation, GripperUse, ActionConsistency, NearDuplicates)
    return [kind() for kind in kinds]


@pytest.fixture(scope="module")
def good() -> list:
    return many(24)


def test_good_demonstrations_are_left_alone(good: list, tmp_path: Path) -> None:
    found = recordings(tmp_path / "good", good)
    wrong = {check.name: flagged(check, found) for check in every()}
    assert sum(map(len, wrong.values())) <= 1, wrong


def tremor(episode, size: float = 0.01):
    time = np.arange(len(episode)) / HZ
    shaken = episode.state.copy()
    shaken[:, :3] += size * np.sin(2 * np.pi * 6.0 * time)[:, None]
    return changed(episode, state=shaken)


def test_tremor_is_rough(good: list, tmp_path: Path) -> None:
    found = recordings(tmp_path / "rough", [tremor(good[0]), tremor(good[1]), *good[2:]])
    assert flagged(Smoothness(), found) == {0, 1}
    assert {0, 1} <= flagged(DimensionlessJerk(), found)
    worst = next(s for s in Smoothness().score(found) if s.episode_id == found[0].episode_id and s.channel == "")
    assert "spectral arc length" in worst.reason
    assert "of 24 episodes of this task" in worst.reason
    assert worst.first_frame is not None


def paused(episode, at: int, frames: int):
    rows = np.concatenate([np.arange(at), np.full(frames, at), np.arange(at, len(episode))])
    return changed(episode, state=episode.state[rows], action=episode.action[rows])


def test_pauses_are_found_where_they_are(good: list, tmp_path: Path) -> None:
    stopped = paused(good[3], 25, 60)
    (only,) = find_pauses(Movement.of(stopped))
    assert abs(only[0] - 25) <= 3
    assert abs(only[1] - 85) <= 3
    found = recordings(tmp_path / "paused", [*good[:3], stopped, *good[4:]])
    assert flagged(Hesitation(), found) == {3}


def test_a_detour_is_inefficient(good: list, tmp_path: Path) -> None:
    state, action = good[5].state.copy(), good[5].action.copy()
    bump = 0.7 * np.sin(np.linspace(0, 4 * np.pi, 45)) * np.hanning(45)
    state[5:50, 1] += bump
    action[5:50, 1] += bump
    found = recordings(tmp_path / "detour", [*good[:5], changed(good[5], state=state, action=action), *good[6:]])
    assert flagged(PathEfficiency(), found) == {5}


def test_gripper_flutter_empty_closing_and_idleness(good: list, tmp_path: Path) -> None:
    flutter, empty, idle = good[0].action.copy(), good[1].state.copy(), good[2].state.copy()
    flutter[90:120, 3] = np.where(np.arange(30) // 4 % 2 == 0, OPEN, CLOSED)
    empty[:, 3] = np.minimum(empty[:, 3], good[1].action[:, 3] + 0.001)
    action = good[2].action.copy()
    idle[:, 3] = action[:, 3] = OPEN
    planted = [
        changed(good[0], action=flutter),
        changed(good[1], state=empty),
        changed(good[2], state=idle, action=action),
    ]
    found = recordings(tmp_path / "grip", [*planted, *good[3:]])
    assert flagged(GripperUse(), found, FLUTTER) == {0}
    assert flagged(GripperUse(), found, HOLD) == {1}
    assert flagged(GripperUse(), found) == {0, 1, 2}
    events = find_grip_events(Movement.of(good[4]))
    assert events is not None
    assert [change.closes for change in events.changes] == [True, False]
    assert events.gap == pytest.approx(0.2, abs=0.01)


def test_actions_that_nobody_else_would_take(good: list, tmp_path: Path) -> None:
    wrong = 2 * good[4].state - good[4].action  # the other way round
    found = recordings(tmp_path / "conflict", [*good[:4], changed(good[4], action=wrong), *good[5:]])
    assert flagged(ActionConsistency(), found) == {4}


def copies(good: list) -> list:
    """Exact, cut at the beginning, noisy, slower, cut and noisy."""
    rng = np.random.default_rng(1)
    cut = changed(good[1], state=good[1].state[40:], action=good[1].action[40:])
    noisy = changed(good[2], state=good[2].state + 0.005 * rng.normal(size=good[2].state.shape))
    at = np.linspace(0, len(good[3]) - 1, round(1.25 * len(good[3])))
    slow = [np.column_stack([np.interp(at, np.arange(len(good[3])), column) for column in table.T])
            for table in (good[3].state, good[3].action)]  # fmt: skip
    both = changed(good[4], state=good[4].state[25:-20] + 0.003 * rng.normal(size=good[4].state[25:-20].shape),
                   action=good[4].action[25:-20])  # fmt: skip
    return [good[0], cut, noisy, changed(good[3], state=slow[0], action=slow[1]), both]


def test_copies_are_found_and_named(good: list, tmp_path: Path) -> None:
    found = recordings(tmp_path / "copies", [*good, *copies(good)])
    scores = {score.episode_id: score for score in NearDuplicates().score(found)}
    # equal content has one name in our datasets only if provenance is equal, so that rows are looked up by recording
    assert flagged(NearDuplicates(), found) == set(range(24, 29))
    assert scores[found[24].episode_id].verdict == "bad"
    for place, original in zip(range(24, 29), range(5), strict=True):
        assert f"episode {original} of copies" in scores[found[place].episode_id].reason
    assert "1.25 times the time" in scores[found[27].episode_id].reason


def test_alignment_equals_the_obvious_loop() -> None:
    rng = np.random.default_rng(0)
    series, lengths = np.cumsum(rng.normal(size=(6, 40, 2)), axis=1), np.array([40, 30, 40, 35, 40, 25])
    pairs = np.array([(0, 1), (2, 3), (4, 5), (0, 5)])
    found = aligned_distances(series, lengths, pairs)
    for (a, b), distance, shift in zip(pairs, found.distance, found.shift, strict=True):
        x, y = series[a, : lengths[a]], series[b, : lengths[b]]
        best = {}
        for lag in range(-39, 40):
            rows = [t for t in range(len(x)) if 0 <= t + lag < len(y)]
            if len(rows) >= max(0.75 * min(len(x), len(y)), max(len(x), len(y)) / 3) - 0.5:
                best[lag] = np.sqrt(np.mean(np.sum((x[rows] - y[[t + lag for t in rows]]) ** 2, axis=1)))
        assert best[int(shift)] == pytest.approx(min(best.values()))
        assert 0.5 * best[int(shift)] < distance <= best[int(shift)] + 1e-9
    near = nearest_pairs(np.array([[0.0], [0.1], [5.0], [5.2]]), 1)
    assert near.tolist() == [[0, 1], [2, 3]]


@pytest.mark.slow
def test_thousands_of_episodes_are_compared_in_seconds() -> None:
    import time

    from twinloop.curate.demonstration.duplicates import find_copies

    rng = np.random.default_rng(0)
    traces = np.cumsum(rng.normal(size=(1000, 64, 6)), axis=1).astype(np.float32)
    facts = [{"trace": row, "course": row[::2], "content": str(i)} for i, row in enumerate(traces)]
    facts.append({"trace": traces[7, 10:], "course": traces[7, np.linspace(10, 63, 32).astype(int)], "content": "copy"})
    begin = time.process_time()
    found = find_copies(facts)
    assert time.process_time() - begin < 10.0
    assert found[-1] is not None
    assert found[-1].other == 7
    assert found[-1].distance < 0.1


def outcomes(count: int) -> tuple[list, list[bool]]:
    """Demonstrations in which every third drops the held object on the way, and fails."""
    made, success = [], []
    for episode in many(count, seed=5):
        lost = episode.index % 3 == 0
        if lost:
            state = episode.state.copy()
            state[85:, 3] = np.minimum(state[85:, 3], episode.action[85:, 3] + 0.001)
            episode = changed(episode, state=state)
        made.append(episode)
        success.append(not lost)
    return made, success


@pytest.mark.slow
def test_outcomes_are_predicted_and_wrong_labels_found(tmp_path: Path) -> None:
    made, success = outcomes(45)
    stated = list(success)
    stated[1], stated[3] = False, True
    found = recordings(tmp_path / "outcomes", made, successes=stated)
    prediction = predict_outcomes(found)
    assert prediction.auc is not None
    assert float(prediction.auc.low) > 0.7
    assert "gap" in prediction.coefficients()[0][0]
    assert "is evidence for success" in prediction.describe_features()[0]
    wrong = flagged(OutcomeConsistency(), found)
    assert {1, 3} <= wrong
    assert len(wrong) <= 4


@pytest.mark.slow
def test_outcomes_that_chance_decides_are_refused(tmp_path: Path) -> None:
    made = many(24, seed=9)
    rng = np.random.default_rng(3)
    found = recordings(tmp_path / "chance", made, successes=(rng.random(24) < 0.5).tolist())
    prediction = predict_outcomes(found)
    assert "no better than chance" in prediction.refusal_reason
    assert np.isnan(prediction.probability).all()
    assert {score.verdict for score in OutcomeConsistency().score(found)} == {"unknown"}
    few = predict_outcomes(found[:10])
    assert "at least 20 outcomes are needed" in few.refusal_reason


def test_logistic_regression_recovers_what_was_planted() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4000, 3))
    chance = 1 / (1 + np.exp(-(0.5 + rows @ np.array([1.0, -2.0, 0.0]))))
    outcome = rng.random(4000) < chance
    model = fit_logistic(rows, outcome, 1e-6)
    assert model.coefficients / model.sd == pytest.approx([1.0, -2.0, 0.0], abs=0.2)
    assert np.mean(model.probability(rows)) == pytest.approx(np.mean(outcome), abs=1e-4)
    found = cross_validated_logistic(rows[:300], outcome[:300], draws=200)
    assert found.auc.covers(0.88)
    with pytest.raises(InputError, match="too few for 5 folds"):
        cross_validated_logistic(rows[:20], np.arange(20) < 2)


def test_few_episodes_are_not_judged_and_bad_ones_say_why(good: list, tmp_path: Path) -> None:
    found = recordings(tmp_path / "few", good[:4])
    for check in (Smoothness(), Hesitation(), PathEfficiency(), GripperUse(), ActionConsistency()):
        scores = list(check.score(found))
        assert {score.verdict for score in scores} == {"unknown"}, check.name
        assert "only 4 episodes of this task" in scores[0].reason
    short = recordings(tmp_path / "short", [changed(good[0], state=good[0].state[:5], action=good[0].action[:5])])
    (score,) = Hesitation().score(short)
    assert score.verdict == "unknown"
    assert "at least 8 frames" in score.reason


def test_uneven_times_are_put_on_a_grid(good: list) -> None:
    rng = np.random.default_rng(0)
    episode = good[0]
    keep = np.sort(rng.choice(len(episode), len(episode) * 3 // 4, replace=False))
    thinned = replace(episode, time=episode.time[keep], state=episode.state[keep], action=episode.action[keep])
    motion = Movement.of(thinned)
    assert motion.rate_hz == pytest.approx(HZ)
    reference = Movement.of(episode)
    same = min(len(motion), len(reference)) - 4
    offset = int(keep[0])
    assert np.abs(motion.position[: same - offset, :3] - reference.position[offset:same, :3]).max() < 0.02


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="TWINLOOP_DATA has no so101_pick_place_tape")
def test_recorded_tape_is_left_alone(tmp_path: Path) -> None:
    from twinloop.dataset.logs.sets.registry import load

    found = recordings(tmp_path / "real", load("so101_pick_place_tape")[0])
    wrong = {check.name: len(flagged(check, found)) for check in every()}
    assert sum(wrong.values()) <= 3, wrong
    assert wrong["demonstration/near_duplicates"] == 0


def test_the_hand_is_where_the_twin_says(tmp_path: Path) -> None:
    from twinloop.curate.demonstration.movement import ToolPositions
    from twinloop.twin import load_twin

    twin = load_twin("so101_tabletop")
    position = np.repeat(
        np.array([twin.home()[0][twin.model.joint(j).qposadr[0]] for j in twin.robot.joints])[None], 20, 0
    )
    position[:, 0] += np.linspace(0.0, 0.5, 20)
    units = twin.unit_map(["deg"] * 5 + ["range_0_100"])
    episode = demonstration(0)
    arm = replace(
        episode, time=np.arange(20) / HZ, state=units.from_si(position), action=units.from_si(position), units=units
    )
    found = recordings(tmp_path / "arm", [arm])[0]
    hand = ToolPositions(lambda recording: twin).compute_positions(found)
    assert hand is not None
    radius = np.linalg.norm(hand[:, :2] - hand[:, :2].mean(axis=0), axis=1)
    assert np.ptp(hand[:, 2]) < 1e-6  # a turn about the vertical keeps the height
    assert radius.max() > 0.02
    assert ToolPositions(None).compute_positions(found) is None
