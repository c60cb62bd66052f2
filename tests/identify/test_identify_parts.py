"""Hold-out specs, the encoder's step, and the solver against problems with known answers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.identify import FitConfig, HoldoutSpec
from twinloop.identify.assembly import fit_space, scale_from_quantization
from twinloop.identify.problem import (
    FitProblem,
    ParameterBlock,
    average_slopes,
    eliminate_initial_states,
    huber_loss,
    linearize,
)
from twinloop.identify.solver import solve
from twinloop.identify.uncertainty import compute_uncertainty
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.stats import quantization_step
from twinloop.twin import load_twin
from twinloop.twin.quantities import Prior


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("last:2", [3, 4]),
        ("every:2", [1, 3]),
        ("11, 13", [1, 3]),
        (None, []),
    ],
)
def test_holdout_forms(text, held):
    training, held_out = HoldoutSpec.parse(text).split([10, 11, 12, 13, 14])
    assert held_out == held
    assert sorted(training + held_out) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("first:3", "Write last:K, every:K or a list of episode numbers"),
        ("last:0", "would hold out nothing"),
        ("every:1", "would hold out all"),
        ("3;4", "is not understood"),
        ("", "--holdout is empty"),
        (" ", "--holdout is empty"),
    ],
)
def test_holdout_mistakes_in_form(text, message):
    with pytest.raises(InputError, match=message):
        HoldoutSpec.parse(text)


@pytest.mark.parametrize(
    ("text", "message"), [("last:5", "leaves no episode to train on"), ("2,9", "no episode 9 to hold")]
)
def test_holdout_mistakes_in_numbers(text, message):
    with pytest.raises(InputError, match=message):
        HoldoutSpec.parse(text).split([0, 1, 2, 3, 4])


def test_a_holdout_that_holds_out_nothing_is_refused():
    with pytest.raises(InputError, match="--holdout every:7 holds out none of 2 episodes"):
        HoldoutSpec.parse("every:7").split([0, 1])


@given(st.sampled_from(["none", "last:3", "every:4", "1,5,6"]))
def test_a_printed_holdout_parses_to_itself(text):
    spec = HoldoutSpec.parse(None if text == "none" else text)
    assert str(spec) == text


@given(st.floats(0.02, 0.3), st.floats(-5, 5), st.integers(0, 2**31))
def test_the_step_of_a_quantized_log_is_found(step, shift, seed):
    smooth = 30 * np.sin(np.cumsum(np.random.default_rng(seed).normal(scale=0.02, size=4000)))
    logged = np.round(np.round((smooth - shift) / step) * step + shift, 5)
    if len(np.unique(logged)) >= 60:
        assert quantization_step(logged) == pytest.approx(step, rel=1e-3)


def test_noise_and_short_logs_have_no_step():
    rng = np.random.default_rng(0)
    assert quantization_step(rng.normal(size=9000)) is None
    assert quantization_step(np.repeat([0.0, 0.1, 0.2], 100)) is None


def test_scale_makes_one_step_one_count():
    values = np.round(np.arange(-800, 800).repeat(3) * 0.08, 5)
    # 0.08 units a count, nominally 0.02 rad a unit: a count would be 1.6 mrad, and is 2 pi / 4096 = 1.534 mrad.
    assert scale_from_quantization(values, 0.02, 4096) == pytest.approx(2 * np.pi / 4096 / (0.08 * 0.02), rel=1e-6)


def linear_problem(*, outliers=0.0, blocks=None, low=-10.0, width=0.02, seed=0):
    """Readings A x per episode with x = (1, -2, 0.5, 3): two channels of two parameters each."""
    rng = np.random.default_rng(seed)
    truth = np.array([1.0, -2.0, 0.5, 3.0])
    design = rng.normal(size=(6, 50, 2, 4))
    design[..., 0, 2:] = design[..., 1, :2] = 0.0
    measured = design @ truth + 0.01 * rng.normal(size=(6, 50, 2))
    measured[rng.random(measured.shape) < outliers] += 5.0
    blocks = blocks or (
        ParameterBlock(columns=np.array([0, 1]), channels=np.array([0])),
        ParameterBlock(columns=np.array([2, 3]), channels=np.array([1])),
    )
    problem = FitProblem(
        readings=lambda points, local: np.einsum("efcp,wp->wefc", design, points),
        measured=measured,
        blocks=blocks,
        centre=np.zeros(4),
        sd=np.full(4, 5.0),
        low=np.full(4, low),
        high=np.full(4, 10.0),
        width=np.full(2, width),
    )
    return problem, truth


WHOLE = (ParameterBlock(columns=np.arange(4), channels=np.arange(2)),)


@pytest.mark.parametrize("blocks", [None, WHOLE])
@pytest.mark.parametrize("outliers", [0.0, 0.1])
def test_linear_problem_is_solved_and_outliers_do_not_pull(blocks, outliers):
    problem, truth = linear_problem(outliers=outliers, blocks=blocks)
    solution = solve(problem, np.zeros(4))
    assert solution.point == pytest.approx(truth, abs=0.01)
    assert list(solution.history) == sorted(solution.history, reverse=True)


def test_a_bound_holds_and_the_rest_is_solved_around_it():
    problem, truth = linear_problem(low=-1.0, width=5.0)
    point = solve(problem, np.zeros(4)).point
    assert point[1] == pytest.approx(-1.0)
    assert point[2:] == pytest.approx(truth[2:], abs=0.03)  # the prior pulls a little
    reasons = compute_uncertainty(problem, linearize(problem, point), ["a", "b", "c", "d"]).reasons
    assert reasons == ("", "ends on its bound", "", "")


def test_missing_frames_do_not_count():
    problem, truth = linear_problem()
    problem.measured[2, 20:] = np.nan
    assert solve(problem, np.zeros(4)).point == pytest.approx(truth, abs=0.01)


def test_parameters_that_act_as_one_are_named_together():
    problem, _ = linear_problem()
    twice = FitProblem(
        **{
            **{name: getattr(problem, name) for name in problem.__dataclass_fields__},
            "readings": lambda p, local: problem.readings(p[:, [0, 0, 2, 3]] + p[:, [1, 1, 2, 3]], local),
        }
    )
    end = linearize(twice, solve(twice, np.zeros(4)).point)
    found = compute_uncertainty(twice, end, ["joint/a/x", "joint/a/y", "joint/b/x", "joint/b/y"])
    assert found.reasons[:2] == ("the data do not constrain it",) * 2
    assert len(found.directions) == 1
    assert sorted(found.directions[0].replace("+", "").split()) == ["-3.5", "3.5", "joint/a/x", "joint/a/y"]
    assert found.condition[0] > 1e12 > found.condition[1]


def test_slopes_alone_equal_slopes_together_where_blocks_are_apart():
    problem, _ = linear_problem()
    together, alone = (linearize(problem, np.ones(4), separate_worlds=flag) for flag in (False, True))
    for first, second in zip(together.jacobians, alone.jacobians, strict=True):
        assert first == pytest.approx(second, abs=1e-9)


def test_opposite_steps_cancel_curvature_and_stay_within_bounds():
    problem, _ = linear_problem(blocks=WHOLE, low=0.0)
    seen = []

    def readings(points, local):
        seen.append(points)
        return problem.readings(points + points**2, local)

    curved = replace(problem, readings=readings)
    point, step = np.array([1.0, 2.0, 3.0, 0.0]), np.full(4, 0.5)
    mean = average_slopes(linearize(curved, point, step=step), linearize(curved, point, step=-step))
    exact = linearize(problem, point).jacobians[0] * (1 + 2 * point)
    assert mean.jacobians[0][..., :3] == pytest.approx(exact[..., :3], abs=1e-9)
    assert min(points.min() for points in seen) >= 0.0


def test_the_scale_of_a_unit_that_the_log_states_is_known():
    twin = load_twin("so101_tabletop")
    first, *others = twin.units.joints
    frames = twin.units.from_si(twin.home()[0][twin.joint_qpos] + 0.01 * np.arange(20)[:, None])

    def scales(units, **settings):
        log = Episode(index=0, time=np.arange(20) / 30, action=frames, state=frames, units=units)
        logs = prepare_replay(twin, [log])
        free = fit_space(logs, FitConfig(**settings))[0].names
        return logs, [name.split("/")[1] for name in free if name.endswith("/scale")]

    stated = replace(twin.units, joints=(replace(first, scale=2.0 * first.scale), *others))
    assert scales(stated)[1] == []
    assert scales(stated, priors={"sensor/gripper/scale": Prior(spread=0.1)})[1] == ["gripper"]
    logs, free = scales(replace(stated, joints=(stated.joints[0], replace(others[0], scale=None), *others[1:])))
    assert free == [others[0].joint]
    assert not logs.calibrated
    assert logs.units.joints[0].scale == 2.0 * first.scale
    assert logs.units.joints[1].scale == others[0].scale


def test_quantization_gives_the_scale_only_of_joints_whose_unit_is_not_stated():
    twin, rng = load_twin("so101_tabletop"), np.random.default_rng(0)
    count = 2 * np.pi / twin.robot.encoder_counts
    rows = np.round(np.cumsum(rng.normal(0, 4 * count, (400, 6)), axis=0) / count) * count
    first, second, *others = twin.units.joints
    mixed = replace(twin.units, joints=(replace(first, scale=1.1 * first.scale), replace(second, scale=None), *others))
    log = Episode(index=0, time=np.arange(400) / 30, action=rows, state=twin.units.from_si(rows), units=mixed)
    space, scales = fit_space(prepare_replay(twin, [log]), FitConfig())
    assert scales == {f"sensor/{second.joint}/scale": pytest.approx(1.0, abs=1e-3)}
    assert not [name for name in space.names if name.endswith("/scale")]


def test_huber_is_smooth_at_its_width():
    assert huber_loss(np.array([0.5, 1.0, 3.0])) == pytest.approx([0.125, 0.5, 2.5])


def test_first_states_are_found_beside_the_parameters_and_do_not_bend_them():
    """y = a t + s_w with another s in every window: the slope comes back, and so do the windows' beginnings."""
    rng = np.random.default_rng(3)
    time, starts = np.linspace(0.0, 1.0, 40), rng.normal(scale=0.3, size=12)
    measured = (2.0 * time + starts[:, None])[..., None] + 1e-3 * rng.normal(size=(12, 40, 1))

    def readings(points, local):
        return (points[:, None, 0, None] * time + local)[..., None]

    problem = FitProblem(
        readings=readings,
        measured=measured,
        blocks=(ParameterBlock(columns=np.arange(1), channels=np.arange(1)),),
        centre=np.zeros(1),
        sd=np.full(1, 5.0),
        low=np.full(1, -10.0),
        high=np.full(1, 10.0),
        width=np.full(1, 1e-3),
        local_sd=np.full(1, 1.0),
    )
    solution = solve(problem, np.zeros(1), iterations=30)
    assert solution.point == pytest.approx([2.0], abs=2e-3)
    assert solution.end.local[:, 0] == pytest.approx(starts, abs=2e-3)
    slopes = eliminate_initial_states(problem, solution.end, 0)
    weight = 1.0 / np.maximum(np.abs(solution.end.residual), 1.0)
    constant = (weight[..., None] * slopes).sum(axis=1)
    assert constant == pytest.approx(0.0, abs=1.0)  # of 40 times up to 400: a constant is the beginning's


@pytest.mark.parametrize("start", np.linspace(-2.0, 4.0, 7))
def test_a_rough_loss_is_left_by_coarser_derivatives(start):
    """Readings follow the parameter with ripples whose slope is four times as steep, as with contacts and stiction."""
    problem = FitProblem(
        readings=lambda points, local: (points + 0.2 * np.sin(20.0 * points))[:, None, :, None],
        measured=np.ones((1, 1, 1)),
        blocks=(ParameterBlock(columns=np.arange(1), channels=np.arange(1)),),
        centre=np.zeros(1),
        sd=np.ones(1),
        low=np.full(1, -5.0),
        high=np.full(1, 5.0),
        width=np.full(1, 10.0),
        prior_weight=1e-9,
    )
    assert solve(problem, np.array([start]), iterations=40, tolerance=1e-9).point == pytest.approx([1.0], abs=0.35)
