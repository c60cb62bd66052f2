"""Suggested motions: at rest at both ends, within limits and clear of things, better than chance, the same again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.hardware.excite import ExcitationPlan, load_excitation, save_excitation
from twinloop.hardware.limits import ClearanceCheck, MotionLimits, motion_limits
from twinloop.identify.config import FitConfig
from twinloop.identify.excitation import ExcitationOptions, _exchange_segments, _make_scorer, suggest_excitation
from twinloop.identify.excitation_motions import SHAPES, MotionTrials, scale_into_limits
from twinloop.identify.fisher import FisherInformation
from twinloop.identify.survey import SurveyOptions, survey
from twinloop.simulate import open_backend
from twinloop.twin import load_twin

TWIN = load_twin("so101_tabletop")
LIMITS = motion_limits(TWIN)
HOME = TWIN.home()[1]
BACKEND = open_backend("threads", nthread=1)
TIME = np.arange(150) / 30.0


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(list(SHAPES)), st.integers(0, 10**6))
def test_pieces_begin_and_end_at_rest_at_home_and_keep_the_limits_once_fitted(kind, seed):
    drawn = SHAPES[kind](np.random.default_rng(seed), TIME, HOME, LIMITS)
    assert drawn.shape == (150, 6)
    assert np.isfinite(drawn).all()
    kept = scale_into_limits(drawn, HOME, LIMITS, 30.0, None)
    assert kept is not None
    np.testing.assert_allclose(kept[[0, -1]], [HOME, HOME], atol=1e-9)
    speed = np.diff(kept, axis=0) * 30.0
    assert np.abs(speed[[0, -1]]).max() < 0.35  # the first frame of a quick move
    assert (np.abs(speed) <= LIMITS.speed * (1 + 1e-9)).all()
    assert (np.abs(np.diff(speed, axis=0)) * 30.0 <= LIMITS.acceleration * (1 + 1e-9)).all()
    assert ((kept >= LIMITS.low - 1e-9) & (kept <= LIMITS.high + 1e-9)).all()


def test_a_motion_into_the_table_is_drawn_back_until_it_is_clear():
    clearance = ClearanceCheck(TWIN)
    low = np.array([0.0, 1.2, 0.6, 1.4, 0.0, 0.6])  # the arm laid forward and down
    blend = np.sin(np.pi * TIME / TIME[-1])[:, None] ** 2
    into = HOME + blend * (low - HOME)
    frame, what = clearance.find_first_contact(into)
    assert 0 < frame < 150
    assert "table" in what or "floor" in what or "cube" in what or "target" in what
    kept = scale_into_limits(into, HOME, LIMITS, 30.0, clearance)
    assert kept is not None
    assert clearance.find_first_contact(kept) is None
    assert np.abs(kept - HOME).max() < np.abs(into - HOME).max()


def test_limits_come_from_the_twin():
    # 3.25 N·m over 0.608 N·m·s/rad is a no-load speed of 5.35 rad/s; 0.6 of it may be used.
    assert LIMITS.speed[:5] == pytest.approx(0.6 * 3.25 / 0.608)
    assert LIMITS.torque[:5] == pytest.approx(1.625)
    half = np.diff(TWIN.joint_ranges, axis=1)[:, 0] / 2
    assert TWIN.joint_ranges[:, 1] - LIMITS.high == pytest.approx(0.05 * half)
    free = motion_limits(load_twin("double_pendulum"))
    assert free.high == pytest.approx([5.0, 5.0])  # half of the drive's torque


def random_information(seed, count=12, p=3):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, 6, p)) * rng.uniform(0.1, 3.0, size=(count, 1, p))
    matrix = np.einsum("mfp,mfq->mpq", rows, rows)[None]
    return FisherInformation(matrix=matrix, score=matrix)


@pytest.mark.parametrize("criterion", ["D", "A", "E"])
def test_exchange_finds_the_best_of_all_sets(criterion):
    from itertools import combinations_with_replacement

    sd, options = np.ones(3), ExcitationOptions(duration=6.0, segment_duration=2.0, criterion=criterion)
    hits = 0
    for seed in range(5):
        told = random_information(seed)
        score = _make_scorer(sd, np.arange(3), criterion)

        def gain(chosen, told=told, score=score):
            rows = list(chosen)
            return score(
                FisherInformation(matrix=told.matrix[:, rows].sum(axis=1), score=told.score[:, rows].sum(axis=1))
            )

        best = max(gain(chosen) for chosen in combinations_with_replacement(range(12), 3))
        found = gain(_exchange_segments(gain, 12, options))
        assert found >= best - 0.05 * abs(best)
        hits += found >= best - 1e-9
    assert hits >= 4


def test_criteria_are_what_they_say_on_a_known_covariance():
    matrix = np.diag([3.0, 8.0, 0.0])[None]  # with a prior of 1: variances 1/4, 1/9, 1
    told = FisherInformation(matrix=matrix, score=matrix)
    values = {c: _make_scorer(np.ones(3), np.array([0, 1]), c)(told) for c in ("D", "A", "E")}
    assert values["D"] == pytest.approx(0.5 * np.log(36.0))
    assert values["A"] == pytest.approx(-(1 / 4 + 1 / 9))
    assert values["E"] == pytest.approx(-1 / 4)


def pendulum_trials():
    twin = load_twin("double_pendulum")
    config = FitConfig(free=("joint/*/damping", "joint/*/frictionloss"))
    seen = survey(twin, [], backend=BACKEND, config=config, options=SurveyOptions(points=1))
    trials = MotionTrials(
        twin=twin,
        space=seen.space,
        points=seen.points,
        noise=seen.joint_noise(),
        config=config,
        backend=BACKEND,
        limits=motion_limits(twin),
    )
    return trials, seen


def test_a_torque_controlled_arm_is_excited_better_than_by_chance_and_alike_for_a_seed():
    trials, seen = pendulum_trials()
    options = ExcitationOptions(duration=4.0, segment_duration=2.0, pool=5, rounds=0, repeat=2)
    one, two = (suggest_excitation(trials, seen.information, range(len(trials.space.free)), options) for _ in range(2))
    np.testing.assert_array_equal(one.commands, two.commands)
    assert one.gain >= one.random_gain[1]
    assert one.gain > one.random_gain[0] > 0.0
    assert np.abs(one.commands).max() <= 5.0
    error = np.sqrt(np.diagonal(one.information.covariance(seen.space.column("sd")), axis1=1, axis2=2))
    assert (error < seen.space.column("sd")).all()


def test_limits_that_allow_nothing_are_refused():
    trials, seen = pendulum_trials()
    still = replace(trials.limits, torque=np.full(2, 1e-9))
    with pytest.raises(InputError, match="None of 4 motions of double_pendulum keeps its limits"):
        suggest_excitation(
            replace(trials, limits=still),
            seen.information,
            [0],
            ExcitationOptions(duration=2.0, segment_duration=2.0, pool=4),
        )


def test_too_short_an_excitation_is_refused():
    with pytest.raises(InputError, match="too short to move and return home"):
        ExcitationOptions(duration=1.0)


def small_plan(**changes) -> ExcitationPlan:
    blend = np.sin(np.pi * TIME / TIME[-1])[:, None] ** 2
    value = {
        "twin": "so101_tabletop",
        "twin_hash": TWIN.hash,
        "joints": tuple(TWIN.robot.joints),
        "control": "position",
        "hz": 30.0,
        "commands": HOME + blend * [0.3, -0.2, 0.2, -0.3, 0.4, 0.2],
        "home": HOME,
        "limits": LIMITS,
        "tracking_error": np.full(6, 0.1),
        "provenance": {"seed": 3},
    }
    return ExcitationPlan(**{**value, **changes})


def test_a_plan_comes_back_from_its_file_bit_for_bit(tmp_path):
    plan = small_plan(expected={"joint/elbow_flex/damping": {"unit": "N·m·s/rad", "before": 0.6, "after": 0.02}})
    save_excitation(plan, tmp_path / "p.yaml")
    again = load_excitation(tmp_path / "p.yaml")
    np.testing.assert_array_equal(again.commands, plan.commands)
    np.testing.assert_array_equal(again.limits.speed, plan.limits.speed)
    assert (again.joints, again.twin_hash, again.provenance, again.expected) == (
        plan.joints,
        plan.twin_hash,
        plan.provenance,
        plan.expected,
    )


def test_a_torque_plan_with_unbounded_limits_comes_back(tmp_path):
    limits = MotionLimits(low=[-1.0], high=[1.0], speed=[20.0], acceleration=[np.inf], torque=[np.inf])
    plan = small_plan(
        joints=("a",), control="torque", commands=np.zeros((5, 1)), home=[0.0], limits=limits, tracking_error=[0.0]
    )
    save_excitation(plan, tmp_path / "p.yaml")
    assert np.isinf(load_excitation(tmp_path / "p.yaml").limits.torque[0])


def test_a_changed_or_broken_plan_is_refused(tmp_path):
    path = tmp_path / "p.yaml"
    save_excitation(small_plan(), path)
    table = path.with_suffix(".csv")
    data = table.read_text()
    table.write_text(data.replace("0.0,0.0,-0.6", "0.0,0.1,-0.6", 1))
    with pytest.raises(InputError, match=r"was changed after .* was written: its SHA-256 differs"):
        load_excitation(path)
    table.unlink()
    with pytest.raises(InputError, match="needs its commands p.csv, which are missing"):
        load_excitation(path)
    path.write_text(path.read_text().replace("hz: 30.0", "hz: -1"))
    with pytest.raises(InputError, match="is not an excitation plan: hz"):
        load_excitation(path)
    with pytest.raises(InputError, match=r"Use the suffix \.yaml"):
        save_excitation(small_plan(), tmp_path / "p.txt")


def test_a_plan_that_leaves_its_limits_is_refused(tmp_path):
    far = np.array(small_plan().commands)
    far[70, 2] = 1.7
    save_excitation(small_plan(commands=far), tmp_path / "far.yaml")
    with pytest.raises(InputError, match=r"commands elbow_flex from .* its limits are -1\.60\d to 1\.60"):
        load_excitation(tmp_path / "far.yaml")
    quick = np.array(small_plan().commands)
    quick[70, 0] += 0.3
    save_excitation(small_plan(commands=quick), tmp_path / "quick.yaml")
    with pytest.raises(InputError, match="moves shoulder_pan at .*its limit is 3.207"):
        load_excitation(tmp_path / "quick.yaml")
