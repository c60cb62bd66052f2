"""Many starts, the evolution strategy and what distinguishes optima, on landscapes whose shape is known."""

import numpy as np
import pytest

from twinloop.identify import FitConfig
from twinloop.identify.assembly import select_free_parameters
from twinloop.identify.problem import FitProblem, ParameterBlock, linearize
from twinloop.identify.search import describe_optima, distinct_optima, evolve, evolve_blocks, starting_points
from twinloop.identify.solver import solve
from twinloop.twin import load_twin


def problem_of(readings, p, *, measured=0.0, low=-10.0, high=10.0, sd=1.0, centre=0.0, width=1.0):
    """A fit of ``readings(points) (n, k)`` to a number, one window of k frames, one channel."""
    frames = readings(np.zeros((1, p))).shape[1]
    return FitProblem(
        readings=lambda points, local: readings(points)[:, None, :, None],
        measured=np.full((1, frames, 1), measured),
        blocks=(ParameterBlock(columns=np.arange(p), channels=np.arange(1)),),
        centre=np.full(p, centre),
        sd=np.full(p, sd),
        low=np.full(p, low),
        high=np.full(p, high),
        width=np.full(1, width),
        prior_weight=1e-6,
    )


def rough(points):
    """A bowl about (1, -1) with ripples 0.4 wide, its square is the loss."""
    away = points - [1.0, -1.0]
    bowl = np.sum(away**2, axis=1)
    ripple = np.sum(1.0 - np.cos(2 * np.pi * away / 0.4), axis=1)
    return np.sqrt(0.05 * bowl + 0.05 * ripple)[:, None]


def test_slopes_mislead_on_a_rough_landscape_and_the_evolution_strategy_does_not():
    problem = problem_of(rough, 2)
    start = np.array([-2.3, 2.2])
    downhill = solve(problem, start, iterations=60)
    found = evolve(problem, start, generations=150, population=24, seed=1)
    assert np.abs(downhill.point - [1.0, -1.0]).max() > 0.5
    assert found.point == pytest.approx([1.0, -1.0], abs=0.02)
    assert solve(problem, found.point).loss <= found.loss < 0.05 * downhill.loss
    assert list(found.history) == sorted(found.history, reverse=True)
    assert found.replays == 24 * len(found.generation_losses)


def rough_valley(x):
    """A line of slope 3 and a valley around it whose floor has ripples, lowest at (1, 3)."""
    along, across = x[:, :1] - 1.0, x[:, 1:] - 3.0 * x[:, :1]
    return np.concatenate([20.0 * across, 0.3 * along, 0.5 * np.sin(6 * np.pi * along)], axis=1)


def test_every_block_is_searched_along_its_valley_and_keeps_its_own_best():
    """Two blocks in a valley: slopes stop at a ripple of its floor, and draws of its shape find the lowest one."""

    def readings(points, local):
        both = [rough_valley(points[:, :2]), rough_valley(points[:, 2:])]
        return np.stack(both, axis=-1)[:, None]

    problem = FitProblem(
        readings=readings, measured=np.zeros((1, 3, 2)), width=np.full(2, 10.0), prior_weight=1e-9,
        blocks=tuple(ParameterBlock(columns=np.array([2 * i, 2 * i + 1]), channels=np.array([i])) for i in range(2)),
        centre=np.zeros(4), sd=np.full(4, 5.0), low=np.full(4, -30.0), high=np.full(4, 30.0),
    )  # fmt: skip
    start = np.array([1.0, 3.0, 2.5, 7.5])  # the first block is at its minimum
    stuck = solve(problem, start, iterations=40)
    assert stuck.point[2] > 2.0
    here = linearize(problem, stuck.point, stuck.end.local)
    found = evolve_blocks(problem, here, generations=40, population=12, seed=1)
    assert found[:2] == pytest.approx(stuck.point[:2], abs=1e-6)
    assert found[2:] == pytest.approx([1.0, 3.0], abs=0.1)
    assert found[2:] == pytest.approx(evolve_blocks(problem, here, generations=40, population=12, seed=1)[2:], abs=0)


def test_a_block_of_one_parameter_is_searched_within_its_bounds():
    problem = problem_of(lambda x: np.hypot(x - 3.0, 0.1) + 0.3 * np.sin(9 * x), 1, high=2.0)
    here = linearize(problem, np.array([0.9]), problem.zero_corrections)
    found = evolve_blocks(problem, here, generations=10, population=12)
    assert found[0] <= 2.0
    assert problem.losses_at(found[None]).sum() < here.losses.sum()


def test_many_starts_reach_the_lowest_valley_and_the_first_is_the_given_one():
    """(x² − 4)² + x/2: two minima, the left one deeper; a start in the right one alone does not reach it."""
    problem = problem_of(lambda x: np.hypot(x**2 - 4.0, 1.0) + 0.2 * x, 1, sd=2.0, width=10.0)
    points = starting_points(problem, np.array([2.5]), 8, seed=3)
    assert points.shape == (8, 1)
    assert points[0] == 2.5
    alone = solve(problem, points[0], iterations=40)
    together = [solve(problem, point, iterations=40) for point in points]
    best = min(together, key=lambda s: s.loss)
    assert alone.point[0] > 1.5
    assert best.point[0] < -1.5
    assert best.loss < alone.loss


def test_starts_are_spread_evenly_over_the_prior_and_stay_within_bounds():
    problem = problem_of(lambda x: x[:, :1], 3, low=-1.0, sd=2.0, centre=0.5)
    points = starting_points(problem, np.zeros(3), 1025, seed=7)[1:]
    assert points.min() == -1.0
    inside = (points > -1.0).mean(axis=0)
    assert inside == pytest.approx(0.7734, abs=0.01)  # of a normal, the part above 0.75 deviations below its middle
    assert not np.array_equal(points, starting_points(problem, np.zeros(3), 1025, seed=8)[1:])
    assert np.array_equal(points, starting_points(problem, np.zeros(3), 1025, seed=7)[1:])


@pytest.fixture(scope="module")
def space():
    config = FitConfig(free=("object/cube/friction/slide", "object/cube/mass"))
    return select_free_parameters(load_twin("cube_toss"), config)


def test_two_optima_are_told_apart_and_said(space):
    """Only the square of the first parameter's distance from 0.5 is seen: it is 0.3 or 0.7."""
    problem = problem_of(
        lambda x: np.stack([(x[:, 0] - 0.5) ** 2, 0.1 * x[:, 1]], axis=1), 2, measured=0.0, sd=0.5, width=0.01
    )
    measured = np.array([[[0.04], [-0.1]]])
    problem = FitProblem(
        **{**{name: getattr(problem, name) for name in problem.__dataclass_fields__}, "measured": measured}
    )
    starts = np.array([[0.1, 0.0], [0.9, 0.0], [0.2, -0.5]])
    optima = distinct_optima(problem, [solve(problem, start, iterations=40) for start in starts])
    assert sorted(round(float(o.point[0]), 2) for o in optima) == [0.3, 0.7]
    assert sum(o.starts for o in optima) == 3
    said = describe_optima(space, problem, optima)
    assert said.startswith("2 optima explain the data nearly equally well: loss ")
    assert "object/cube/friction/slide 0.3" in said
    assert "object/cube/friction/slide 0.7" in said
    assert "object/cube/mass" not in said
    assert "Fix one of object/cube/friction/slide" in said


def test_a_valley_is_one_optimum(space):
    """Only the sum is seen: ends differ, and nothing rises between them."""
    problem = problem_of(lambda x: x.sum(axis=1, keepdims=True), 2, measured=1.0, width=0.01)
    starts = np.array([[2.0, 0.0], [0.0, 2.0], [-2.0, 1.0]])
    solutions = [solve(problem, start, iterations=30) for start in starts]
    assert np.ptp([s.point[0] for s in solutions]) > 0.5
    optima = distinct_optima(problem, solutions)
    assert len(optima) == 1
    assert optima[0].starts == 3
    assert describe_optima(space, problem, optima) == ""


def test_equal_seeds_search_alike_and_a_search_goes_on_where_it_was():
    problem, start = problem_of(rough, 2), np.array([-2.0, 2.0])
    whole = evolve(problem, start, generations=20, seed=5)
    seen = []
    first = evolve(problem, start, generations=8, seed=5, watch=seen.append)
    assert [len(now.generation_losses) for now in seen] == list(range(1, 9))
    replayed = []
    counting = FitProblem(
        **{
            **{name: getattr(problem, name) for name in problem.__dataclass_fields__},
            "readings": lambda points, local: (replayed.append(len(points)), problem.readings(points, local))[1],
        }
    )
    rest = evolve(counting, start, generations=20, seed=5, generation_losses=first.generation_losses)
    assert rest.generation_losses == whole.generation_losses
    assert np.array_equal(rest.point, whole.point)
    assert len(replayed) == 12 + 1  # the generations that are left, and the mean
    assert evolve(problem, start, generations=3, seed=6).generation_losses != whole.generation_losses[:3]


def test_a_single_parameter_can_be_searched_and_bounds_hold():
    problem = problem_of(lambda x: x - 3.0, 1, high=2.0)
    found = evolve(problem, np.zeros(1), generations=40, seed=0)
    assert found.point == pytest.approx([2.0], abs=1e-3)


def test_points_where_the_twin_diverges_are_left():
    problem = problem_of(lambda x: np.where(x[:, :1] > 0.5, np.inf, x[:, :1] + x[:, 1:]), 2, measured=-1.0, width=0.1)
    found = evolve(problem, np.array([0.4, 0.0]), generations=40, seed=2)
    assert np.isfinite(found.loss)
    assert found.point.sum() == pytest.approx(-1.0, abs=0.05)
    walked = solve(problem, np.array([0.49, 0.0]), iterations=20)  # its perturbation of the first diverges
    assert walked.point.sum() == pytest.approx(-1.0, abs=0.05)


def test_a_start_that_diverges_does_not_move_and_says_so():
    problem = problem_of(lambda x: np.full((len(x), 1), np.nan), 1)
    solution = solve(problem, np.zeros(1))
    assert solution.diverged
    assert not solution.converged
    assert distinct_optima(problem, [solution]) == ()
