"""The plots of a parameter space hold the numbers they were given."""

from __future__ import annotations

import numpy as np

from twinloop.report.coverage import plot_marginal_rows, plot_pair_matrix, plot_range_history


def test_a_row_shows_shares_of_an_even_spread_and_both_counts():
    figure = plot_marginal_rows(["a/b", "c/d"], ["0 … 1", "1 … 2"], [[2, 0, 1, 1], [3, 1]], [[2, 2, 1, 1], [3, 3]])
    (heat,) = figure.data
    np.testing.assert_allclose(heat.z[0], [2, 0, 1, 1])
    np.testing.assert_allclose(heat.z[1], [1.5, 1.5, 0.5, 0.5])
    assert "0 kept of 2 attempted" in heat.customdata[0][1]


def test_a_pair_is_coloured_by_what_it_has_beyond_independent_draws():
    figure = plot_pair_matrix(["a", "b", "c"], [[0.5, 0.9], [0.2]], [[0.6, 0.6], [0.6]])
    table = np.array(figure.data[0].z, dtype=float)
    np.testing.assert_allclose(table[[0, 0, 1], [1, 2, 2]], [-0.1, 0.3, -0.4])
    np.testing.assert_array_equal(table, table.T)
    assert round(figure.data[0].zmax, 9) == 0.4


def test_boundaries_are_drawn_where_they_moved_and_marked_why():
    def row(number, low, high, *decisions):
        boundaries = [{"attempted": 9, "success": 8, "decision": what} for what in decisions]
        return {"first_episode": 10 * number, "ranges": {"a/b": [low, high]}, "boundaries": boundaries}

    rounds = [row(0, 1.0, 2.0, "widen", "waiting"), row(1, 0.5, 2.0, "narrow", "widen: at its limit")]
    history = {"names": ["a/b"], "units": ["m"], "every": 10, "rounds": rounds, "ranges": {"a/b": [1.0, 2.0]}}
    traces = {trace.name: trace for trace in plot_range_history(history).data if trace.mode == "markers"}
    low, high = (trace for trace in plot_range_history(history).data if trace.mode == "lines")
    assert (list(low.x), list(low.y), list(high.y)) == ([0, 10, 20], [1.0, 0.5, 1.0], [2.0, 2.0, 2.0])
    assert set(traces) == {"widen", "narrow"}
    assert list(traces["narrow"].x) == [20]
    assert traces["narrow"].customdata[0] == "8 of 9 succeeded: narrow"
