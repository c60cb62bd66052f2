"""Shapley values: their axioms, closed forms, and sampled orders against all coalitions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.stats import draw_joining_orders, every_coalition, shapley, shapley_from_orders


def slow_shapley(worth):
    """The mean gain over all n! orders, one after the other."""
    n = round(math.log2(len(worth)))
    shares = np.zeros((n, *worth.shape[1:]))
    for order in itertools.permutations(range(n)):
        there = 0
        for player in order:
            shares[player] += worth[there | 1 << player] - worth[there]
            there |= 1 << player
    return shares / math.factorial(n)


def games(nplayer, seed, channels=2):
    return np.random.default_rng(seed).normal(size=(2**nplayer, channels))


@given(st.integers(1, 5), st.integers(0, 10**6))
def test_all_coalitions_give_the_mean_over_all_orders(nplayer, seed):
    worth = games(nplayer, seed)
    shares = shapley(worth)
    assert shares == pytest.approx(slow_shapley(worth), abs=1e-12)
    assert shares.sum(axis=0) == pytest.approx(worth[-1] - worth[0])


@given(st.integers(2, 7), st.integers(0, 10**6))
def test_equal_players_share_equally_and_a_player_who_changes_nothing_gets_nothing(nplayer, seed):
    rng, member = np.random.default_rng(seed), every_coalition(nplayer)
    others = games(nplayer, seed, 1)[:, 0]
    rest = np.flatnonzero(~member[:, 0] & ~member[:, 1])
    worth = np.zeros(2**nplayer)
    for row in rest:  # players 0 and 1 count only by how many of them there are
        worth[row], worth[row | 3] = others[row], rng.normal()
        worth[row | 1] = worth[row | 2] = rng.normal()
    shares = shapley(worth)
    assert shares[0] == pytest.approx(shares[1], abs=1e-12)
    idle = np.repeat(worth, 2)  # a new lowest bit that changes nothing
    assert shapley(idle)[0] == pytest.approx(0.0, abs=1e-12)
    assert shapley(idle)[1:] == pytest.approx(shares, abs=1e-12)


def test_the_glove_game_and_the_airport_game_have_their_published_values():
    member = every_coalition(3)  # one left glove, two right ones: a pair is worth 1
    assert shapley(member[:, 0] & (member[:, 1] | member[:, 2])) == pytest.approx([2 / 3, 1 / 6, 1 / 6])
    costs = np.array([8.0, 11.0, 13.0, 18.0])  # a runway as long as the largest plane needs (Littlechild & Owen 1973)
    worth = (every_coalition(4) * costs).max(axis=1)
    steps = np.diff(costs, prepend=0.0) / np.arange(4, 0, -1)
    assert shapley(worth) == pytest.approx(np.cumsum(steps))


def squared_error(nplayer, seed, npoint=9):
    """v(S) = |r|² − |r − Σ_S d|² of random steps d, and its Shapley values in closed form, d · (r + r_all)."""
    rng = np.random.default_rng(seed)
    residual, steps = rng.normal(size=npoint), rng.normal(size=(nplayer, npoint))
    left = residual - every_coalition(nplayer) @ steps
    return residual @ residual - np.sum(left**2, axis=1), steps @ (residual + left[-1])


@given(st.integers(1, 8), st.integers(0, 10**6), st.integers(1, 3))
def test_squared_error_of_a_linear_model_is_shared_in_closed_form_and_by_any_pair_of_orders(nplayer, seed, pairs):
    worth, shares = squared_error(nplayer, seed)
    assert shapley(worth) == pytest.approx(shares)
    walks = draw_joining_orders(nplayer, pairs, seed=seed)
    rows = walks.coalitions @ (1 << np.arange(nplayer))
    assert shapley_from_orders(worth[rows], walks) == pytest.approx(np.tile(shares, (pairs, 1)))


def test_walks_pass_each_coalition_once_and_are_unbiased_in_any_game():
    worth = games(5, 3)
    walks = draw_joining_orders(5, 4000, seed=1)
    assert not walks.coalitions[0].any()
    assert walks.coalitions[-1].all()
    assert len({tuple(row) for row in walks.coalitions.tolist()}) == len(walks.coalitions) <= 32
    assert (walks.orders[4000:] == walks.orders[:4000, ::-1]).all()
    pairs = shapley_from_orders(worth[walks.coalitions @ (1 << np.arange(5))], walks)
    assert pairs.shape == (4000, 5, 2)
    assert pairs.sum(axis=1) == pytest.approx(np.tile(worth[-1] - worth[0], (4000, 1)))
    error = pairs.std(axis=0) / np.sqrt(4000)
    assert np.abs(pairs.mean(axis=0) - shapley(worth)).max() < 4 * error.max()
    assert np.array_equal(draw_joining_orders(5, 3, seed=2).orders, draw_joining_orders(5, 3, seed=2).orders)


def test_mistakes_are_named():
    with pytest.raises(InputError, match="3 values are given; n players have 2"):
        shapley(np.zeros(3))
    with pytest.raises(InputError, match=r"40 players have 2\^40 coalitions; .* or sample orders"):
        every_coalition(40)
    with pytest.raises(InputError, match="0 pairs of orders of 3 players"):
        draw_joining_orders(3, 0)
