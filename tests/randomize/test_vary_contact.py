"""Contact: bounce, depth, friction in three ways, each measured against its closed form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.worlds import HZ, make_world, run
from twinloop.core.errors import BoundsError, InputError
from twinloop.twin.quantities.contact import damping_ratio, restitution

FLOOR = '<geom name="floor" type="plane" size="9 9 .1"/>'
BALL = '<body name="ball" pos="0 0 {z}"><freejoint/><geom name="ball" size=".05" mass=".2" {more}/></body>'
RIGID = 'priority="1" solimp=".99 .99 .001"'
STIFFNESS = 1e6  # a contact of about 3 ms, while a fall of 0.2 m takes 200


def ball(tmp_path, names, *, z=0.25, more=RIGID, **options):
    return make_world(tmp_path, FLOOR + BALL.format(z=z, more=more), names, **options)


def bounce(result):
    """Speed after the first contact per speed before it, from the heights of fall and of rebound."""
    height = result.qpos[:, :, 2] - 0.05
    lowest = [int(np.argmax((row[1:] > row[:-1]) & (row[:-1] < 0.02))) for row in height]
    return np.array([np.sqrt(row[low:].max() / row[0]) for row, low in zip(height, lowest, strict=True)])


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.7])
def test_a_ball_bounces_as_the_damping_ratio_says(tmp_path, ratio):
    names = ["object/ball/contact/stiffness", "object/ball/contact/damping_ratio"]
    twin = ball(tmp_path, names, substeps=200)
    result = run(twin, {names[0]: STIFFNESS, names[1]: ratio}, 0.6)
    assert bounce(result)[0] == pytest.approx(restitution(ratio), abs=0.015)


def test_a_restitution_asked_for_is_the_one_seen(tmp_path):
    """Also at the twin's physics step; the tolerance includes the error of the step size."""
    names = ["object/ball/contact/stiffness", "object/ball/contact/restitution"]
    twin = ball(tmp_path, names, substeps=200)
    wanted = np.array([0.3, 0.5, 0.8, 0.95])
    np.testing.assert_allclose(bounce(run(twin, {names[0]: STIFFNESS, names[1]: wanted}, 0.6)), wanted, atol=0.015)
    coarse = ball(tmp_path, names, substeps=10)
    np.testing.assert_allclose(bounce(run(coarse, {names[0]: 1e4, names[1]: wanted}, 0.6)), wanted, atol=0.08)


def test_stiffness_sets_how_deep_a_body_rests(tmp_path):
    """Modeling chapter: depth = g (1 − d) / k at constant impedance d."""
    twin = ball(tmp_path, ["object/ball/contact/stiffness"], z=0.05, more='priority="1" solimp=".9 .9 .001"')
    stiffness = np.array([1e3, 4e3, 1.6e4])
    depth = 0.05 - run(twin, {"object/ball/contact/stiffness": stiffness}, 2.0).qpos[:, -1, 2]
    np.testing.assert_allclose(depth, 9.81 * 0.1 / stiffness, rtol=1e-3)


def test_the_shape_of_higher_priority_decides_and_equal_ones_share(tmp_path):
    names = ["object/ball/contact/stiffness"]
    depths = []
    for more in ("", 'priority="1"'):
        floor = FLOOR.replace("/>", ' solref=".1 1" solimp=".9 .9 .001"/>')
        twin = make_world(tmp_path, floor + BALL.format(z=0.05, more=f'{more} solimp=".9 .9 .001"'), names)
        depths.append(0.05 - run(twin, {names[0]: 1e4}, 3.0).qpos[0, -1, 2])
    own = 9.81 * 0.1 / 1e4
    shared = 9.81 * 0.1 * ((0.1 + 0.01) / 2) ** 2  # the mean of both time constants, at damping ratio 1
    np.testing.assert_allclose(depths, [shared, own], rtol=1e-3)


@given(st.floats(2e-3, 0.99))
def test_damping_ratio_and_restitution_are_inverse(wanted):
    assert restitution(damping_ratio(wanted)) == pytest.approx(wanted, rel=1e-9)


def test_restitution_is_smooth_through_critical_damping():
    near = restitution(1.0 + np.array([-1e-5, 0.0, 1e-5]))
    np.testing.assert_allclose(near, np.exp(-2.0), rtol=1e-4)
    assert (np.diff(restitution(np.geomspace(1e-3, 50, 300))) < 0).all()


def test_a_contact_faster_than_the_physics_step_is_refused_not_softened(tmp_path):
    twin = ball(tmp_path, ["object/ball/contact/stiffness"])
    with pytest.raises(
        BoundsError, match=r"contact of ball with stiffness 1e\+06 1/s² and damping ratio 1 has the time"
    ):
        twin.fields(twin.table(1, {"object/ball/contact/stiffness": 1e6}))


def test_damping_and_restitution_say_the_same_in_two_ways(tmp_path):
    names = ["object/ball/contact/damping_ratio", "object/ball/contact/restitution"]
    with pytest.raises(InputError, match="damping_ratio and object/ball/contact/restitution set the same property"):
        ball(tmp_path, names)
    with pytest.raises(InputError, match="both set geom_solref"):
        ball(tmp_path, ["object/ball/contact/stiffness", "geom/ball/contact/stiffness"])


def test_torsional_friction_stops_a_spin(tmp_path):
    """Torque μ m g on a sphere of 2/5 m r²: the spin falls by 5 μ g / (2 r²) per second."""
    name = "object/ball/friction/torsion"
    twin = ball(tmp_path, [name], z=0.05, more=f'{RIGID} condim="4"')
    friction = np.array([0.0, 0.001, 0.003])
    spin = run(twin, {name: friction}, 0.3, qvel=[0, 0, 0, 0, 0, 20.0]).qvel[:, :, 5]
    lost = (spin[:, 5] - spin[:, -1]) / (25 / HZ)
    np.testing.assert_allclose(
        lost, 5 * friction * 9.81 / (2 * 0.05**2), rtol=0.02, atol=0.03
    )  # never quite none: mjMINMU


def test_rolling_friction_stops_a_rolling_ball(tmp_path):
    """Torque μ m g against rolling: deceleration 5 μ g / (7 r)."""
    name = "geom/ball/friction/roll"
    twin = ball(tmp_path, [name], z=0.05, more=f'{RIGID} condim="6" friction="1 0 0"')
    friction = np.array([0.0, 0.001, 0.002])
    speed = run(twin, {name: friction}, 1.0, qvel=[1.0, 0, 0, 0, 20.0, 0]).qvel[:, :, 0]
    slowing = (speed[:, 10] - speed[:, 90]) / 0.8
    np.testing.assert_allclose(slowing, 5 * friction * 9.81 / (7 * 0.05), rtol=0.02, atol=1e-3)


def test_sliding_friction_stops_a_sliding_box(tmp_path):
    """Deceleration μ g."""
    box = '<body name="box" pos="0 0 .01"><freejoint/><geom type="box" size=".3 .3 .01" mass=".2" priority="1"/></body>'
    name = "object/box/friction/slide"
    twin = make_world(tmp_path, FLOOR + box, [name])
    friction = np.array([0.1, 0.3, 0.5])
    speed = run(twin, {name: friction}, 0.5, qvel=[3.0, 0, 0, 0, 0, 0]).qvel[:, :, 0]
    np.testing.assert_allclose((speed[:, 10] - speed[:, -1]) / 0.4, friction * 9.81, rtol=0.04)  # it chatters a little
