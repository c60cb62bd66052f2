"""The plots show the arrays they were given, and refuse those that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.report.identification import plot_profile_curves
from twinloop.report.plots import plot_episode_series, plot_error_by_joint, plot_parameter_draws, plot_parameter_forest

JOINTS = ["pan", "lift", "gripper"]
PARAMS = ["joint/pan/damping", "joint/lift/damping", "actuator/pan/kp", "object/cube/mass"]


def traces(figure, name: str) -> list:
    return [trace for trace in figure.data if trace.name == name]


def test_errors_and_their_intervals_land_at_the_joint() -> None:
    errors = {"hold": np.array([2.0, 3.0, 1.0]), "twin": np.array([0.5, 0.7, 0.2])}
    figure = plot_error_by_joint(
        JOINTS, errors, intervals={"twin": ([0.4, 0.6, 0.1], [0.7, 0.9, 0.4])}, target=[0.3, 0.8, 0.9]
    )
    (twin,) = traces(figure, "twin")
    np.testing.assert_array_equal(twin.x, errors["twin"])
    np.testing.assert_allclose(twin.x - twin.error_x.arrayminus, [0.4, 0.6, 0.1])
    np.testing.assert_allclose(twin.x + twin.error_x.array, [0.7, 0.9, 0.4])
    assert np.round(twin.y).tolist() == [0, 1, 2]
    assert list(figure.layout.yaxis.ticktext) == JOINTS
    assert traces(figure, "hold")[0].error_x.visible is False
    np.testing.assert_array_equal(traces(figure, "target")[0].x, [0.3, 0.8, 0.9])


def test_dots_of_different_methods_never_share_a_height() -> None:
    figure = plot_error_by_joint(JOINTS, {f"method {i}": np.ones(3) for i in range(6)})
    heights = np.concatenate([trace.y for trace in figure.data])
    assert len(np.unique(np.round(heights, 6))) == 18


def test_every_joint_has_a_panel_with_every_series() -> None:
    time = np.arange(5) / 30
    measured = np.arange(15.0).reshape(5, 3)
    figure = plot_episode_series(
        time, JOINTS, {"commanded": measured + 1, "measured": measured}, units=["deg", "deg", "%"]
    )
    shown = traces(figure, "measured")
    np.testing.assert_array_equal(np.stack([trace.y for trace in shown], axis=1), measured)
    assert len({(trace.xaxis, trace.yaxis) for trace in shown}) == 3
    assert [trace.showlegend for trace in shown] == [True, False, False]
    assert [note.text for note in figure.layout.annotations] == ["pan / deg", "lift / deg", "gripper / %"]


def test_estimates_are_grouped_by_quantity_and_undetermined_ones_have_no_interval() -> None:
    estimate = np.array([1.0, 2.0, 18.0, 0.03])
    figure = plot_parameter_forest(
        PARAMS,
        estimate,
        estimate * 0.9,
        estimate * 1.2,
        nominal=[1.5, 1.5, 17.8, 0.02],
        units=["N·m·s/rad", "N·m·s/rad", "N·m/rad", "kg"],
        determined=[True, False, True, True],
    )
    assert [note.text for note in figure.layout.annotations] == ["damping / N·m·s/rad", "kp / N·m/rad", "mass / kg"]
    damping = next(trace for trace in traces(figure, "estimate") if trace.xaxis == "x")
    assert (list(damping.y), list(damping.x)) == (["pan"], [1.0])
    np.testing.assert_allclose([damping.error_x.arrayminus[0], damping.error_x.array[0]], [0.1, 0.2])
    (unknown,) = traces(figure, "not determined by the data")
    assert (list(unknown.y), list(unknown.x), unknown.error_x.visible) == (["lift"], [2.0], False)
    nominal = np.concatenate([trace.x for trace in traces(figure, "nominal")])
    np.testing.assert_array_equal(nominal, [1.5, 1.5, 17.8, 0.02])


def test_draws_are_counted_over_their_ranges() -> None:
    draws = np.column_stack([np.linspace(0, 1, 1000), np.full(1000, 5.0), np.full(1000, 0.3)])
    figure = plot_parameter_draws(PARAMS[:3], draws, [0, 4, 0.3], [1, 6, 0.3], bins=10)
    counts = figure.data[0].z
    np.testing.assert_array_equal(counts[0], np.full(10, 100))
    assert counts[1].tolist() == [0] * 5 + [1000] + [0] * 4
    assert counts[2].tolist() == [0] * 5 + [1000] + [0] * 4, "a range of no width holds what equals it"
    assert figure.layout.yaxis.ticktext[1] == "joint/lift/damping   4 … 6"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: plot_error_by_joint(JOINTS, {"twin": [1.0, 2.0]}),
            r"3 rows was given the errors of twin in shape \(2,\)",
        ),
        (
            lambda: plot_episode_series([0, 1], JOINTS, {"measured": np.zeros((3, 3))}),
            r"Series measured has shape \(3, 3\)",
        ),
        (lambda: plot_parameter_draws(PARAMS, np.zeros((5, 3)), [0] * 4, [1] * 4), "3 columns for 4 parameter names"),
        (
            lambda: plot_parameter_forest(PARAMS, [1, 2], [0, 1], [2, 3]),
            r"4 rows was given the parameters in shape \(2,\)",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("depth", [1, 6])
def test_panels_of_a_forest_leave_the_same_pixels_for_titles_however_many_rows_they_have(depth: int) -> None:
    quantities = ("damping", "frictionloss", "armature", "kp", "delay", "bias")
    names = [f"joint/j{i}/{quantity}" for quantity in quantities for i in range(depth)]
    figure = plot_parameter_forest(names, np.ones(len(names)), np.zeros(len(names)), np.full(len(names), 2.0))
    inner = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    first, second = figure.layout.yaxis.domain, figure.layout.yaxis3.domain
    assert 45 < (first[0] - second[1]) * inner < 70
    assert (first[1] - first[0]) * inner > 18 * depth


def test_a_profile_is_drawn_with_the_rise_that_ends_its_interval() -> None:
    figure = plot_profile_curves(["joint/pan/damping"], ["N·m·s/rad"], [[1.0, 2.0, 3.0]], [[4.0, 0.0, 9.0]], [3.8])
    (rise,) = traces(figure, "rise of the loss")
    (limit,) = traces(figure, "limit of the interval")
    np.testing.assert_array_equal(rise.y, [4.0, 0.0, 9.0])
    np.testing.assert_array_equal(limit.y, [3.8, 3.8])
    assert figure.layout.xaxis.title.text == "N·m·s/rad"


def test_a_forest_of_a_single_parameter_is_one_panel() -> None:
    figure = plot_parameter_forest(["joint/pan/damping"], [1.0], [0.5], [2.0])
    assert figure.layout.yaxis.domain == (0.0, 1.0)
