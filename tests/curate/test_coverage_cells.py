"""Cells of two parameters: the emptiest cells with real data come first, with the counted success."""

from __future__ import annotations

import numpy as np
import pytest

from support.covered import MASS, X, Y, arm, generate_file
from twinloop.curate.cells import PAIR_CELLS, count_pair_cells
from twinloop.curate.parameters import list_parameter_axes
from twinloop.generate.config import make_plan, resolve_config
from twinloop.stats import wilson


def test_the_cell_without_simulation_that_reality_visits_most_stands_first(tmp_path):
    plan = make_plan(resolve_config(generate_file(), where="test", folder=tmp_path, episodes=4), arm())
    axes = {axis.name: axis for axis in list_parameter_axes(plan)}
    chosen = [axes[X], axes[Y], axes[MASS]]
    chance = np.random.default_rng(0)
    sim, real = chance.uniform(size=(600, 3)), chance.uniform(size=(80, 3))
    empty = (sim[:, 0] > 0.75) & (sim[:, 1] < 0.25)
    sim = sim[~empty]
    real[:30, :2] = [0.9, 0.1]
    real[30:, 2] = np.nan  # the mass of these is not known
    success = np.where(sim[:, 2] < 0.25, 0.0, 1.0)
    success[0] = np.nan
    first, *others = count_pair_cells(chosen, real, sim, success, [0, 1, 2])
    assert len(others) == 3 * PAIR_CELLS**2 - 1
    assert first.names == (X, Y)
    np.testing.assert_allclose([first.low[0], first.high[0]], [0.2475, 0.27])
    np.testing.assert_allclose([first.low[1], first.high[1]], [-0.1, -0.05])
    assert (first.sim, first.judged) == (0, 0)
    assert first.real >= 30
    assert np.isnan(first.rate)
    assert all(cell.sim for cell in others)
    assert sum(cell.real for cell in others if cell.names == (X, MASS)) == 30
    light = next(cell for cell in others if cell.names == (Y, MASS) and cell.high[1] < 0.041)
    assert light.successes == 0
    assert light.rate_high == pytest.approx(float(wilson(0, light.judged, level=0.95).high))
    assert sum(cell.judged for cell in others if cell.names == (X, MASS)) == len(sim) - 1
