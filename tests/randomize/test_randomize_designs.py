"""Designs keep their law: the same marginals, spread as each promises, one episode at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import qmc

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.seeds import uniforms
from twinloop.randomize import Draw, Plan, default_draws, identified_draws, make_design
from twinloop.randomize.distributions import Choice, Uniform
from twinloop.randomize.sequences import permute, scrambled_sobol
from twinloop.twin import load_twin

SO101 = load_twin("so101_tabletop")
JOINTS = SO101.robot.joints[:4]
AXES = [(f"sensor/{joint}/offset",) for joint in JOINTS]
DESIGNS = {
    "independent": "independent",
    "sobol": "sobol",
    "some": {"kind": "sobol", "names": ["sensor/shoulder_*/offset"]},
    "latin_hypercube": "latin_hypercube",
    "stratified": {"kind": "stratified", "strata": 8},
    "crossed": {"kind": "stratified", "strata": 4, "names": ["sensor/shoulder_*/offset"]},
    "grid": {"kind": "grid", "levels": 4, "names": ["sensor/shoulder_pan/offset"]},
}


def design(name, episodes=64):
    return make_design(DESIGNS[name], episodes=episodes, where="t")


def place(name, count, *, seed=0, episodes=64):
    numbers = np.arange(count)
    u = uniforms(seed, "free", numbers, size=len(AXES))
    return design(name, episodes).place(u, AXES, seed, numbers)


def plan(name, *, seed=0, episodes=64):
    """Four encoder offsets, uniform in [0, 0.1]."""
    draws = tuple(Draw(names=axis, distribution=Uniform(low=0.0, high=0.1)) for axis in AXES)
    return Plan(twin=SO101, run_seed=seed, draws=draws, design=design(name, episodes))


@pytest.mark.parametrize("name", DESIGNS)
@settings(max_examples=15, deadline=None)
@given(episodes=st.lists(st.integers(0, 10**6), min_size=1, max_size=6), seed=st.integers(0, 9))
def test_an_episode_lies_where_it_lies_alone(name, episodes, seed):
    whole = plan(name, seed=seed).draw(episodes).values
    for row, episode in enumerate(episodes):
        np.testing.assert_array_equal(whole[row], plan(name, seed=seed).draw([episode]).values[0])


@pytest.mark.parametrize("name", [name for name in DESIGNS if name != "grid"])
def test_every_parameter_keeps_its_distribution(name):
    """Over many seeds the same episode is uniform: the design moves points, it prefers none."""
    u = np.stack([place(name, 70, seed=seed)[[0, 37, 69]] for seed in range(400)])
    for episode in range(3):
        for axis in range(len(AXES)):
            assert stats.kstest(u[:, episode, axis], "uniform").pvalue > 1e-4


def test_sobol_and_latin_hypercube_spread_better_than_independent_draws():
    found = {name: qmc.discrepancy(place(name, 256, episodes=256)) for name in ("independent", "sobol")}
    assert found["sobol"] < 0.2 * found["independent"]
    one_at_a_time = {
        name: max(qmc.discrepancy(column[:, None]) for column in place(name, 256, episodes=256).T)
        for name in ("independent", "latin_hypercube")
    }
    assert one_at_a_time["latin_hypercube"] < 0.01 * one_at_a_time["independent"]


def test_the_sequence_is_that_of_joe_and_kuo_with_its_digits_scrambled():
    """Aligned sets of 2^k points, each axis: one in each of 2^k parts. Pairs of axes: SciPy's own discrepancy."""
    points = scrambled_sobol(np.arange(1024), 12, run_seed=5)
    for start, size in ((0, 1024), (512, 512), (192, 64)):
        strata = np.floor(points[start : start + size] * size).astype(int)
        np.testing.assert_array_equal(np.sort(strata, axis=0), np.tile(np.arange(size)[:, None], 12))
    ours, theirs = qmc.discrepancy(points), qmc.discrepancy(qmc.Sobol(12, rng=1).random(1024))
    assert ours == pytest.approx(theirs, rel=0.25)


@pytest.mark.parametrize("count", [10, 64, 200])
def test_a_latin_hypercube_has_one_point_in_every_stratum(count):
    strata = np.floor(place("latin_hypercube", count, episodes=count) * count).astype(int)
    np.testing.assert_array_equal(np.sort(strata, axis=0), np.tile(np.arange(count)[:, None], len(AXES)))
    assert not np.array_equal(strata[:, 0], strata[:, 1])


def test_named_axes_get_the_first_of_the_sequence_and_the_others_stay_independent():
    some, free = place("some", 64), place("independent", 64)
    np.testing.assert_array_equal(some[:, :2], scrambled_sobol(np.arange(64), 2, run_seed=0))
    np.testing.assert_array_equal(some[:, 2:], free[:, 2:])


def test_strata_are_visited_equally_alone_and_crossed():
    each = np.floor(place("stratified", 80) * 8).astype(int)
    for column in each.T:
        np.testing.assert_array_equal(np.bincount(column), np.full(8, 10))
    crossed = np.floor(place("crossed", 48)[:, :2] * 4).astype(int)
    np.testing.assert_array_equal(np.unique(crossed, axis=0, return_counts=True)[1], np.full(16, 3))


def test_a_grid_visits_every_cell_as_often():
    names = ["sensor/shoulder_pan/offset", "texture/table"]
    draws = (
        Draw(names=("sensor/shoulder_pan/offset",), distribution=Uniform(low=0.0, high=0.1)),
        Draw(names=("sensor/elbow_flex/offset",), distribution=Uniform(low=0.0, high=0.1)),
        Draw(names=("texture/table",), distribution=Choice(values=(2.0, 5.0, 9.0))),
    )
    levels = {"sensor/shoulder_pan/offset": 4, "texture/table": 3}
    grid = make_design({"kind": "grid", "levels": levels, "names": names}, episodes=1, where="t")
    table = Plan(twin=SO101, run_seed=0, draws=draws, design=grid).draw(range(36))
    cells, counts = np.unique(np.stack([table[name] for name in names], axis=1), axis=0, return_counts=True)
    np.testing.assert_array_equal(counts, np.full(12, 3))
    np.testing.assert_allclose(np.unique(cells[:, 0]), [0.0125, 0.0375, 0.0625, 0.0875])
    assert set(cells[:, 1]) == {2.0, 5.0, 9.0}
    assert np.unique(table["sensor/elbow_flex/offset"]).size == 36


@pytest.mark.parametrize("size", [1, 2, 7, 128, 129, 1000])
def test_a_permutation_is_one_and_any_image_is_as_likely(size):
    turns = np.repeat([0, 5], size)
    images = permute(np.tile(np.arange(size), 2), size, run_seed=0, labels=["a", "b"], cycle=turns)
    for column in (images[:size], images[size:]):
        np.testing.assert_array_equal(np.sort(column, axis=0), np.tile(np.arange(size)[:, None], 2))
    cycles = np.arange(max(2000, 10 * size))
    first = permute(np.zeros_like(cycles), size, run_seed=0, labels=["a"], cycle=cycles)[:, 0]
    if size > 1:
        assert stats.chisquare(np.bincount(first, minlength=size)).pvalue > 1e-3


def test_second_attempts_are_independent_of_the_design():
    again = plan("sobol").draw([3, 4], attempt=[0, 1])
    np.testing.assert_array_equal(again.values[0], plan("sobol").draw([3]).values[0])
    np.testing.assert_array_equal(again.values[1], plan("independent").draw([4], attempt=1).values[0])


def test_correlated_draws_are_placed_too_and_keep_their_correlation():
    names = ("actuator/elbow_flex/kp", "joint/elbow_flex/damping")
    identified = ParamDistribution(
        names=names,
        transforms=("log", "identity"),
        mean=np.array([np.log(9.0), 0.6]),
        covariance=np.array([[0.01, 0.005], [0.005, 0.01]]),
        low=np.zeros(2),
        high=np.full(2, 100.0),
        determined=(True, True),
        clusters=30,
    )
    draws = tuple(identified_draws(SO101, identified))
    means = {}
    for name in ("independent", "sobol"):
        tables = [
            Plan(twin=SO101, run_seed=seed, draws=draws, design=design(name)).draw(range(128)) for seed in range(20)
        ]
        means[name] = np.std([table["joint/elbow_flex/damping"].mean() for table in tables])
    correlation = np.corrcoef(np.log(tables[0][names[0]]), tables[0][names[1]])[0, 1]
    assert correlation == pytest.approx(0.5, abs=0.05)
    assert means["sobol"] < 0.2 * means["independent"]


def test_the_design_is_part_of_what_names_a_plan():
    hashes = {plan(name).hash for name in DESIGNS}
    assert len(hashes) == len(DESIGNS)
    plain = Plan(twin=SO101, run_seed=0, draws=plan("sobol").draws)
    assert plain.hash == plan("independent").hash
    assert "design" not in plain.to_json()


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("sobel", UnknownNameError, "Unknown design 'sobel' in t. Nearest existing: sobol"),
        ({"kind": "grid", "levels": 5}, InputError, r"grid lacks an option. Write \{kind: grid, levels: 5, names"),
        ({"kind": "sobol", "levels": 5}, InputError, "sobol does not take levels. Write design: sobol"),
        ({"kind": "grid", "levels": 0, "names": ["a"]}, InputError, "t: levels is a whole number from 1; given 0"),
        ({"kind": "stratified", "strata": 2.5}, InputError, "t: strata is a whole number from 1; given 2.5"),
        ({"kind": "grid", "levels": 2, "names": "a"}, InputError, "names is a list of parameter paths; given 'a'"),
        ({"kind": "grid", "levels": {"b": 2}, "names": ["a"]}, InputError, "one number, or one for each of its names"),
    ],
)
def test_a_wrong_design_is_refused_with_the_next_step(value, error, message):
    with pytest.raises(error, match=message):
        make_design(value, episodes=8, where="t")


def test_a_design_that_does_not_fit_the_draws_is_refused():
    def built(value, draws):
        return Plan(twin=SO101, run_seed=0, draws=draws, design=make_design(value, episodes=8, where="t"))

    few = plan("independent").draws
    with pytest.raises(UnknownNameError, match="Unknown drawn parameter 'camera/x'.*design.names"):
        built({"kind": "grid", "levels": 2, "names": ["camera/x"]}, few)
    with pytest.raises(InputError, match="sobol places nothing, because no parameter is drawn per episode. Add"):
        built("sobol", ())
    with pytest.raises(InputError, match="cells has more cells than can be visited. Name fewer"):
        built({"kind": "grid", "levels": 2, "names": ["*"]}, tuple(default_draws(SO101)))
