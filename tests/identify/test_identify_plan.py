"""Report before a fit: expected errors, unidentifiable directions, and parameters to hold or share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.identify import FitConfig
from twinloop.identify.fisher import (
    FisherInformation,
    ResidualNoiseModel,
    compute_excitation,
    compute_information,
    estimate_residual_noise,
)
from twinloop.identify.plan import plan_identification
from twinloop.identify.problem import FitProblem, ParameterBlock, linearize
from twinloop.identify.solver import solve
from twinloop.identify.survey import Survey, SurveyOptions, survey
from twinloop.simulate import open_backend
from twinloop.twin import load_twin
from twinloop.workflows.identify.excitation import run_plan
from twinloop.workflows.identify.requests import IdentifyRequest, PlanOptions

BACKEND = open_backend("threads", nthread=1)


def ar1(rng, shape, rho, sd):
    """A stationary first order autoregression along the second axis."""
    white = rng.normal(size=shape)
    series = np.empty(shape)
    series[:, 0] = white[:, 0]
    for t in range(1, shape[1]):
        series[:, t] = rho * series[:, t - 1] + np.sqrt(1 - rho**2) * white[:, t]
    return sd * series


def linear(design, measured, sd=5.0):
    """Readings design @ x of one channel: ``(nwindow, nframe, p)``."""
    count = design.shape[-1]
    return FitProblem(
        readings=lambda points, local: np.einsum("efp,wp->wef", design, points)[..., None],
        measured=measured[..., None],
        blocks=(ParameterBlock(columns=np.arange(count), channels=np.array([0])),),
        centre=np.zeros(count),
        sd=np.full(count, sd),
        low=np.full(count, -100.0),
        high=np.full(count, 100.0),
        width=np.ones(1),
    )


def smooth_design(rng, windows=4, frames=120):
    """A constant, a slow and a fast column: noise that remembers hurts them unlike."""
    time = np.arange(frames) / 30.0
    waves = [np.ones(frames), np.sin(2 * np.pi * 0.3 * time), np.sin(2 * np.pi * 4.0 * time)]
    return np.stack([rng.uniform(0.5, 1.5) * np.array(waves).T for _ in range(windows)])


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.9])
def test_expected_errors_are_those_of_repeated_least_squares_under_noise_that_remembers(rho):
    rng = np.random.default_rng(0)
    design, sd = smooth_design(rng), 0.3
    problem = linear(design, np.zeros(design.shape[:2]), sd=1e3)
    told = compute_information(
        problem, linearize(problem, np.zeros(3)), ResidualNoiseModel(sd=np.array([sd]), rho=np.array([rho]))
    ).total()
    expected = np.sqrt(np.diag(told.covariance(problem.sd)))
    noise = ar1(rng, (1500 * len(design), design.shape[1]), rho, sd).reshape(1500, -1)
    fits = noise @ np.linalg.pinv(design.reshape(-1, 3)).T
    assert np.std(fits, axis=0) == pytest.approx(expected, rel=0.08)


def test_a_fast_column_suffers_less_from_noise_that_remembers_than_a_constant():
    design = smooth_design(np.random.default_rng(0))
    problem = linear(design, np.zeros(design.shape[:2]))
    here = linearize(problem, np.zeros(3))
    white, coloured = (
        np.sqrt(
            np.diag(
                compute_information(problem, here, ResidualNoiseModel(sd=np.ones(1), rho=np.array([r])))
                .total()
                .covariance(problem.sd)
            )
        )
        for r in (0.0, 0.9)
    )
    constant, _, fast = coloured / white
    assert constant > 3.0 > 1.0 > fast


def test_information_adds_and_never_knows_less_than_the_prior():
    rng = np.random.default_rng(1)
    design = rng.normal(size=(3, 40, 3))
    design[..., 2] = 0.0
    problem = linear(design, np.zeros((3, 40)), sd=2.0)
    told = compute_information(
        problem, linearize(problem, np.zeros(3)), ResidualNoiseModel(sd=np.ones(1), rho=np.array([0.5]))
    )
    one, all_three = told.take(np.array([0])).total(), told.total()
    again = one + told.take(np.array([1, 2])).total()
    np.testing.assert_allclose(again.matrix, all_three.matrix)
    first, both = (np.diag(i.covariance(problem.sd)) for i in (one, all_three))
    assert (both <= first + 1e-12).all()
    assert both[2] == pytest.approx(4.0)
    np.testing.assert_allclose(told.take(np.array([0])).total().times(2.0).matrix, 2.0 * one.matrix)
    np.testing.assert_allclose(told.times(0.0).total().covariance(problem.sd), 4.0 * np.eye(3))
    assert np.linalg.eigvalsh(all_three.added_precision(problem.sd)).min() > -1e-9


def test_the_noise_is_what_a_step_of_the_fit_would_leave():
    rng = np.random.default_rng(2)
    design = rng.normal(size=(6, 200, 3))
    noise = ar1(rng, (6, 200), 0.8, 0.05)
    problem = linear(design, design @ [1.0, -2.0, 0.5] + noise)
    problem = replace(problem, width=np.array([0.05]))
    near = solve(problem, np.zeros(3), iterations=2).point + 0.01
    found = estimate_residual_noise(problem, linearize(problem, near), np.array([1e-6]))
    assert found.sd[0] == pytest.approx(0.05, rel=0.1)
    assert found.rho[0] == pytest.approx(0.8, abs=0.05)
    assert found.inflation[0] == pytest.approx(9.0, rel=0.35)


def test_excitation_is_the_move_of_the_readings_in_units_of_the_noise():
    design = np.stack([np.tile([1.0, 0.1, 0.0], (50, 1))] * 2)
    problem = linear(design, np.zeros((2, 50)), sd=3.0)
    moved = compute_excitation(
        problem, linearize(problem, np.zeros(3)), ResidualNoiseModel(sd=np.array([0.5]), rho=np.zeros(1))
    )
    assert moved == pytest.approx([6.0, 0.6, 0.0])


def surveyed(matrix, *, names_of=None, **fields) -> Survey:
    """A survey of the SO-101's first parameters with a given information in prior deviations, white noise."""
    twin = load_twin("so101_tabletop")
    from twinloop.identify.assembly import select_free_parameters

    space = select_free_parameters(twin, FitConfig(free=names_of))
    sd, count = space.column("sd"), len(space.free)
    scaled = np.asarray(matrix, dtype=float) / np.outer(sd, sd)
    told = FisherInformation(matrix=scaled[None], score=scaled[None])
    return Survey(
        twin=twin,
        space=space,
        points=space.column("centre")[None],
        information=told,
        excitation=np.sqrt(np.diag(np.asarray(matrix, dtype=float)))[None],
        noise=ResidualNoiseModel(sd=np.ones(6), rho=np.zeros(6)),
        channels=tuple(f"position/{joint}" for joint in twin.robot.joints),
        units=tuple(unit.unit for unit in twin.units.joints),
        groups={"all parameters": np.arange(count)},
        **{"frames": 100, "episodes": 5, **fields},
    )


PAIR = ("joint/elbow_flex/damping", "joint/elbow_flex/frictionloss", "joint/elbow_flex/armature")


def test_a_direction_that_nothing_determines_is_named_held_and_grouped():
    # damping and friction loss act as one, armature on nothing.
    one = np.array([1.0, -1.0, 0.0])
    found = plan_identification(surveyed(400.0 * np.outer(one, one), names_of=PAIR))
    verdicts = {row.name: row.with_data.verdict for row in found.parameters}
    assert verdicts == dict.fromkeys(PAIR[:2], "not determined") | {PAIR[2]: "not excited"}
    assert {frozenset(d.moves) for d in found.directions} == {frozenset(PAIR[:2]), frozenset(PAIR[2:])}
    assert len(found.freeze) == 2
    assert PAIR[2] in found.freeze
    (kept,) = set(PAIR) - set(found.freeze)
    assert found.with_frozen[kept] == pytest.approx(1 / np.sqrt(401.0))
    assert [pair[:2] for pair in found.correlated_pairs] == [PAIR[:2]]
    assert found.correlated_pairs[0][2] > 0.99
    text = found.text()
    assert "Fix these, and the others are determined" in text
    assert "oscillations of several hertz" in text


def test_alike_joints_may_share_what_none_determines_alone():
    names = tuple(f"joint/{joint}/armature" for joint in ("elbow_flex", "shoulder_lift", "shoulder_pan", "wrist_flex"))
    found = plan_identification(surveyed(2.0 * np.eye(4), names_of=names))  # each alone: 1 / sqrt(3) of the prior
    assert {row.with_data.verdict for row in found.parameters} == {"not determined"}
    ((name, error),) = found.shared.items()
    assert name.startswith("joint/*/armature")
    assert error == pytest.approx(1 / 3)  # 1 + 4 × 2 = 9 priors' worth


def test_what_is_wrong_with_a_log_is_said_with_its_joint():
    found = plan_identification(surveyed(100.0 * np.eye(3), names_of=PAIR, episodes=1, still_joints=("elbow_flex",)))
    first, second = found.findings
    assert "elbow_flex does not move" in first
    assert PAIR[0] in first
    assert "only one episode" in second
    assert all(line in found.text() for line in found.findings)
    assert plan_identification(surveyed(np.zeros((3, 3)), names_of=PAIR)).findings == (
        "No parameter affects any reading in this log: there is no excitation. Record the motion of --excitation.",
    )


def still_log(twin, hz=30.0, frames=60, moving=()):
    from twinloop.core.records import Episode

    time = np.arange(frames) / hz
    pose = np.tile(twin.units.from_si(twin.home()[1]), (frames, 1))
    for joint in moving:
        pose[:, joint] += 10.0 * np.sin(2 * np.pi * time)
    return Episode(index=0, time=time, action=pose, state=pose, units=twin.units)


def test_a_joint_that_stands_still_in_the_log_is_found():
    twin = load_twin("so101_tabletop")
    seen = survey(twin, [still_log(twin, moving=(0, 4))], backend=BACKEND, options=SurveyOptions(points=1, steps=0))
    assert seen.still_joints == ("shoulder_lift", "elbow_flex", "wrist_flex", "gripper")
    found = plan_identification(seen)
    assert len(found.findings) == 5
    moves = {row.name: row.with_data.excitation[0] for row in found.parameters}
    assert moves["actuator/shoulder_pan/delay"] > 100 * moves["actuator/gripper/delay"]
    assert len(found.to_json()["parameters"]) == len(seen.space.names)


def test_points_are_reproducible_and_within_bounds():
    twin = load_twin("double_pendulum")
    options = SurveyOptions(points=4, seed=5)
    one, two = (survey(twin, [], backend=BACKEND, options=options) for _ in range(2))
    np.testing.assert_array_equal(one.points, two.points)
    assert len(one.points) == 4
    assert (one.points >= one.space.column("low")).all()
    assert (one.points <= one.space.column("high")).all()
    assert not np.allclose(one.points[1], one.points[2])
    assert {row.with_data.verdict for row in plan_identification(one).parameters} == {"not excited"}


def test_a_thing_without_a_robot_cannot_be_excited(tmp_path):
    from rich.console import Console

    with pytest.raises(
        InputError, match="cube_toss has no robot that could be moved. Leave --excitation, and give --data"
    ):
        request = IdentifyRequest(twin="cube_toss", planning=PlanOptions(excitation=tmp_path / "x.yaml"))
        run_plan(request, None, FitConfig(), Console())
