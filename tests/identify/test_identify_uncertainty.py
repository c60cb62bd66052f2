"""Scores and curvature are the loss's own; bounds, blocks, refits and profiles against problems with answers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.signal import lfilter

from benchmarks.error_rates.coverage.cases import SERVO
from benchmarks.error_rates.coverage.study import Population
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.identify import identify
from twinloop.identify.problem import FitProblem, ParameterBlock, linearize
from twinloop.identify.solver import FitCheckpoint, SolverState, solve
from twinloop.identify.uncertainty import choose_fit_clusters, compute_uncertainty
from twinloop.identify.uncertainty_scores import FrameTimes, frame_scores
from twinloop.identify.variants import profile_likelihood, refit_bootstrap
from twinloop.simulate import open_backend
from twinloop.stats import cluster_weights
from twinloop.workflows.identify.identify import build_fit_config
from twinloop.workflows.identify.requests import FitOptions

NAMES = ("gain", "friction", "offset")


def problem_of(*, windows=10, frames=40, truth=(1.0, -2.0, 0.5), low=-10.0, width=20.0, local=False, seed=0, bent=0.0):
    """Readings X b, with a cubic part ``bent``, plus AR(1) noise; with ``local`` each window has its own level."""
    rng = np.random.default_rng(seed)
    design = lfilter([1.0], [1.0, -0.8], rng.normal(size=(windows, frames, 3)), axis=1)
    noise = 0.3 * lfilter([1.0], [1.0, -0.8], rng.normal(size=(windows, frames)), axis=1)
    level = 0.5 * rng.normal(size=(windows, 1)) * local
    truth = np.asarray(truth)

    def readings(points, local):
        at = points + bent * points**3
        return (np.einsum("efp,wp->wef", design, at) + local.sum(axis=-1)[..., None])[..., None]

    clean = readings(truth[None], np.zeros((1, windows, 0)))[0, ..., 0]
    return FitProblem(
        readings=readings,
        measured=(clean + noise + level)[..., None],
        blocks=(ParameterBlock(columns=np.arange(3), channels=np.arange(1)),),
        centre=np.zeros(3),
        sd=np.full(3, 5.0),
        low=np.full(3, low),
        high=np.full(3, 10.0),
        width=np.full(1, width),
        local_sd=np.full(1, 0.5) if local else np.zeros(0),
        prior_weight=1e-9,
    )


def solved(problem):
    return solve(problem, np.zeros(3), iterations=60, tolerance=1e-12).end


def least_loss(problem, point):
    """Loss at parameters with the best levels there, by a general optimizer, prior of the parameters left out."""
    point = np.asarray(point, dtype=float)

    def loss(local):
        corrections = local.reshape(1, *problem.zero_corrections.shape)
        total = problem.losses(problem.residual(point[None], corrections), point[None], corrections)[0, 0]
        return total - 0.5 * problem.prior_weight * np.sum((point / problem.sd) ** 2)

    if not len(problem.local_sd):
        return loss(problem.zero_corrections)
    return minimize(loss, np.zeros(problem.zero_corrections.size), tol=1e-12, options={"gtol": 1e-10}).fun


@pytest.mark.parametrize("local", [False, True])
def test_scores_and_curvature_are_derivatives_of_hubers_loss_with_first_states_following(local):
    problem = problem_of(windows=4, frames=12, local=local, width=0.4)
    end = solved(problem)
    off = end.point + np.array([0.03, -0.02, 0.01])
    there = linearize(problem, off, _best_local(problem, off))
    score, step = frame_scores(problem, there, 0), 1e-3
    gradient = [(least_loss(problem, off + d) - least_loss(problem, off - d)) / (2 * step) for d in step * np.eye(3)]
    assert score.gradient == pytest.approx(np.array(gradient), rel=5e-3, abs=1e-6)
    if local:  # levels are found to a tolerance, which second differences of a loss with kinks do not forgive
        problem, step = replace(problem, width=np.full(1, 20.0)), 0.3
        score = frame_scores(problem, linearize(problem, off, _best_local(problem, off)), 0)
        here = least_loss(problem, off)
        second = [least_loss(problem, off + d) - 2 * here + least_loss(problem, off - d) for d in step * np.eye(3)]
        assert np.diag(score.curvature) == pytest.approx(np.array(second) / step**2, rel=0.02)
    else:
        ends = [
            [frame_scores(problem, linearize(problem, off + d), 0).gradient for d in (h, -h)] for h in 1e-7 * np.eye(3)
        ]
        assert score.curvature == pytest.approx(np.array([up - down for up, down in ends]) / 2e-7, rel=1e-4, abs=1e-4)
    labels = np.repeat(np.arange(4)[:, None], 12, axis=1)
    curvatures, gradients = score.sum_by_cluster(labels)
    assert curvatures.sum(axis=0) == pytest.approx(score.curvature)
    assert gradients.sum(axis=0) == pytest.approx(score.gradient)


def _best_local(problem, point):
    if not len(problem.local_sd):
        return problem.zero_corrections
    held = replace(problem, low=point - 1e-12, high=point + 1e-12)
    return solve(held, point, iterations=40, tolerance=1e-14).end.local


def test_windows_of_few_episodes_make_blocks_and_one_short_episode_none():
    problem = replace(problem_of(windows=20), clusters=np.repeat([0, 1], 10))
    times = FrameTimes(start_times=np.tile(4.0 * np.arange(10), 2), dt=0.1)
    found = compute_uncertainty(problem, solved(problem), NAMES, times=times)
    assert found.clusters.kind == "time block"
    assert found.clusters.count >= 6
    assert found.clusters.length >= 4 * found.clusters.correlated
    assert all(reason == "" for reason in found.reasons)
    short = problem_of(windows=1, frames=15)
    alone = compute_uncertainty(short, solved(short), NAMES)
    assert alone.clusters is None
    assert alone.reasons == ("one episode gives no interval",) * 3
    assert np.isnan(alone.low).all()


def test_few_episodes_prefer_the_bootstrap_and_keep_their_rank():
    problem = problem_of(windows=4, frames=30)
    level = 0.5 * np.random.default_rng(3).normal(size=(4, 1, 1))  # as long as an episode: no block is independent
    problem = replace(problem, measured=problem.measured + level)
    found = compute_uncertainty(problem, solved(problem), NAMES)
    assert (found.clusters.kind, found.clusters.count) == ("episode", 4)
    assert found.method == "score bootstrap"
    assert found.draws == 2000
    assert found.rank == 3


def test_a_parameter_on_its_bound_has_one_side():
    problem = problem_of(truth=(0.005, -2.0, 0.5), windows=12)
    free = compute_uncertainty(problem, solved(problem), NAMES)
    bounded = replace(problem, low=np.array([free.high[0] - 1e-9 - (free.high[0] - free.low[0]) * 0.4, -10.0, -10.0]))
    end = solved(bounded)
    assert end.point[0] == pytest.approx(bounded.low[0])
    found = compute_uncertainty(bounded, end, NAMES)
    assert found.sides == ("at most", "", "")
    assert found.low[0] == bounded.low[0]
    assert bounded.low[0] < found.high[0] < free.high[0] + 0.1
    past = replace(problem, low=np.array([0.5, -10.0, -10.0]))
    excluded = compute_uncertainty(past, solved(past), NAMES)
    assert excluded.reasons[0] == "ends on its bound"
    assert excluded.reasons[1:] == ("", "")
    assert np.isnan(excluded.high[0])
    nowhere = replace(problem, low=end.point + 0.4, high=end.point + 0.8)
    cornered = compute_uncertainty(nowhere, solve(nowhere, end.point).end, NAMES)
    assert all(reason or side for reason, side in zip(cornered.reasons, cornered.sides, strict=True))


def test_a_walk_that_stops_early_says_how_far_it_had_to_go():
    problem = problem_of()
    end = solved(problem)
    found = compute_uncertainty(problem, end, NAMES)
    assert found.distance_to_optimum.max() < 0.01
    error = np.sqrt(found.covariance[1, 1])
    moved = compute_uncertainty(problem, linearize(problem, end.point + np.array([0, 2 * error, 0])), NAMES)
    assert moved.distance_to_optimum[1] == pytest.approx(2.0, rel=0.35)  # residuals and their spread have grown


def test_refits_of_least_squares_are_the_weighted_solutions():
    problem = problem_of(windows=8)
    end = solved(problem)
    clusters = choose_fit_clusters(problem, end)
    found = refit_bootstrap(problem, end, clusters, draws=30, seed=4)
    weights = np.repeat(cluster_weights(8, 30, seed=4)[0], 40)
    design = end.jacobians[0].reshape(-1, 3) * problem.width
    slow = np.linalg.lstsq(design * np.sqrt(weights)[:, None], problem.measured.ravel() * np.sqrt(weights), rcond=None)
    assert found[0] == pytest.approx(slow[0], rel=1e-4)
    refitted = compute_uncertainty(problem, end, NAMES, refits=found)
    assert (refitted.method, refitted.draws) == ("refit bootstrap", 30)


@pytest.mark.parametrize("local", [False, True])
def test_refits_of_a_bent_robust_problem_lie_where_their_own_loss_is_least(local):
    problem = problem_of(windows=8, frames=30, bent=0.1, width=0.5, local=local, truth=(1.0, -0.8, 0.5))
    end = solved(problem)
    found = refit_bootstrap(problem, end, choose_fit_clusters(problem, end), draws=5, seed=1, steps=6)
    weights = cluster_weights(8, 5, seed=1)
    again = np.repeat(np.arange(8), weights[2].astype(int))  # windows as often as they were drawn
    inner = problem.readings
    drawn = replace(
        problem,
        readings=lambda p, loc: inner(p, np.zeros((len(p), 8, 0)))[:, again] + loc.sum(axis=-1)[..., None, None],
        measured=problem.measured[again],
        clusters=np.arange(len(again)),
    )
    assert found[2] == pytest.approx(solved(drawn).point, abs=0.02 * np.sqrt(np.var(found, axis=0)).min() + 2e-3)


def space_of(names):
    free = tuple(SimpleNamespace(is_logarithmic=False, param=SimpleNamespace(unit="N·m")) for _ in names)
    return SimpleNamespace(names=names, free=free, values=lambda points: dict(zip(names, points.T, strict=True)))


def test_the_profile_of_a_quadratic_loss_is_the_sandwichs_interval():
    problem = problem_of(windows=12)
    end = solved(problem)
    found = compute_uncertainty(problem, end, NAMES)
    profile = profile_likelihood(problem, end, space_of(NAMES), found, "friction")
    assert profile.low == pytest.approx(found.low[1], abs=0.02 * (found.high[1] - found.low[1]))
    assert profile.high == pytest.approx(found.high[1], abs=0.02 * (found.high[1] - found.low[1]))
    slope = np.polyfit(profile.values, profile.others["gain"], 1)[0]
    curvature = frame_scores(problem, end, 0).curvature
    rest = np.linalg.solve(curvature[np.ix_([0, 2], [0, 2])], -curvature[[0, 2], 1])
    assert slope == pytest.approx(rest[0], rel=1e-3, abs=1e-6)
    assert profile.text().startswith("Profile of friction: [-")


def test_a_profile_sees_a_bend_and_what_stays_open():
    problem = problem_of(windows=12, truth=(0.3, -2.0, 0.5), bent=2.0)
    end = solved(problem)
    found = compute_uncertainty(problem, end, NAMES)
    wide = replace(found, covariance=found.covariance * (0.15 / (found.high[0] - end.point[0])) ** 2)
    wide = replace(wide, low=end.point - 0.15, high=end.point + 0.15)
    profile = profile_likelihood(problem, end, space_of(NAMES), wide, "gain")
    assert profile.high - end.point[0] < 0.8 * (end.point[0] - profile.low)  # steeper where the cube grows
    limit = replace(problem, low=np.array([end.point[0] - 1e-3, -10.0, -10.0]))
    profile = profile_likelihood(limit, end, space_of(NAMES), wide, "gain")
    assert profile.low is None
    assert "open below" in profile.text()
    assert profile.to_json()["low"] is None


def test_a_profile_goes_on_where_it_was_interrupted(tmp_path):
    problem = problem_of(bent=0.1, truth=(1.0, -0.8, 0.5))
    end = solved(problem)
    found, space = compute_uncertainty(problem, end, NAMES), space_of(NAMES)
    whole = profile_likelihood(problem, end, space, found, "gain")
    path, count = tmp_path / "fit.json", 0

    def failing(points, local):
        nonlocal count
        count += 1
        if count > 2 * 17:  # two steps at 17 values
            raise KeyboardInterrupt
        return problem.readings(points, local)

    with pytest.raises(KeyboardInterrupt):
        profile_likelihood(
            replace(problem, readings=failing), end, space, found, "gain", checkpoint=FitCheckpoint(path, {"fit": "a"})
        )
    kept = FitCheckpoint(path, {"fit": "a"})
    assert kept.load_descents("profile gain")[0].iteration == 3
    assert isinstance(kept.load_descents("profile gain")[0], SolverState)
    again = profile_likelihood(problem, end, space, found, "gain", checkpoint=kept)
    assert np.array_equal(again.rise, whole.rise)


def test_mistakes_are_named():
    problem = problem_of(windows=1, frames=15)
    end = solved(problem)
    found = compute_uncertainty(problem, end, NAMES)
    with pytest.raises(UnknownNameError, match="gian"):
        profile_likelihood(problem, end, space_of(NAMES), found, "gian")
    with pytest.raises(InputError, match="The profile of gain needs more data"):
        profile_likelihood(problem, end, space_of(NAMES), found, "gain")


@pytest.mark.slow
def test_refits_and_profiles_are_asked_for_in_a_fit_and_few_episodes_say_what_their_intervals_rest_on():
    population = Population.of(replace(SERVO, population=8, seconds=1.0), open_backend("threads", nthread=2))
    rng, backend = np.random.default_rng(0), open_backend("threads", nthread=2)
    log = population.log(np.arange(8), population.noise(rng, 8))
    config = replace(SERVO.fit, bootstrap=4, profile=("actuator/pendulum/kp",), iterations=6)
    result = identify(population.twin, log, backend=backend, config=config)
    assert (result.evidence.method, result.evidence.draws) == ("refit bootstrap", 4)
    assert "Intervals 90%, clustered by 8 episodes; bootstrap of 4 full refits." in result.text()
    assert "Profile of actuator/pendulum/kp: [" in result.text()
    kp = {row.name: row for row in result.estimates}["actuator/pendulum/kp"]
    (profile,) = result.profiles
    assert 1 / 3 < (profile.high - profile.low) / (kp.high - kp.low) < 3  # four refits give a rough interval
    plain = result.to_json()
    assert plain["schema"] == 2
    assert np.shape(plain["correlation"]) == (4, 4)
    assert plain["profiles"][0]["name"] == "actuator/pendulum/kp"
    assert plain["residuals"]["noise_sd"][0] == pytest.approx(SERVO.noise, rel=0.5)
    few = identify(population.twin, log[:2], backend=backend, config=replace(SERVO.fit, iterations=2))
    assert few.distribution.clusters == 2
    assert few.evidence.clusters == "time block"
    assert "(too few episodes for 4 parameters); one-step bootstrap of 2000 draws." in few.text()
    assert "There are fewer than 8 clusters, so the bootstrap is preferred." in few.text()
    one = identify(population.twin, log[:1], backend=backend, config=replace(SERVO.fit, iterations=2))
    assert "No intervals: a single episode" in one.text()
    assert "Record at least 8 episodes for 4 parameters." in one.text()


def test_flags_of_the_command_line_and_their_mistakes():
    config = build_fit_config(FitOptions(bootstrap=200, profile=("joint/a/damping",)))
    assert (config.bootstrap, config.profile) == (200, ("joint/a/damping",))
    with pytest.raises(InputError, match="--bootstrap 5: percentiles need at least 40 refits"):
        build_fit_config(FitOptions(bootstrap=5))
