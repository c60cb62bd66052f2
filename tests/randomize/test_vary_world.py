"""Gravity, wind and air act on falling and flying bodies as computed; tables have the given place and tilt."""

from __future__ import annotations

import numpy as np
import pytest

from support.worlds import HZ, make_world, run, start
from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.simulate import open_backend, rollout

BALL = '<body name="ball"><freejoint/><geom size=".05" mass=".2" {more}/></body>'
GRAVITY = ["world/gravity/magnitude", "world/gravity/tilt_x", "world/gravity/tilt_y"]


def test_things_fall_as_hard_and_whither_gravity_says(tmp_path):
    twin = make_world(tmp_path, BALL.format(more=""), GRAVITY)
    assert twin.params[GRAVITY[0]].nominal == 9.81
    strength, x, y = np.array([[9.81, 0, 0], [1.62, 0, 0], [9.81, 0.3, 0], [9.81, 0, 0.3], [5.0, 0.2, -0.4]]).T
    speed = run(twin, dict(zip(GRAVITY, (strength, x, y), strict=True)), 1.0).qvel[:, -1, :3]
    down = np.stack([-np.cos(x) * np.sin(y), np.sin(x), -np.cos(x) * np.cos(y)], axis=-1)
    np.testing.assert_allclose(speed, strength[:, None] * down, atol=1e-9)


def test_light_things_fall_at_their_terminal_velocity(tmp_path):
    """C ρ π r² v² = m g, the force of MuJoCo's ellipsoid model (computation chapter, fluid forces)."""
    names = ["object/ball/drag", "world/air/density"]
    twin = make_world(tmp_path, BALL.format(more='fluidshape="ellipsoid" fluidcoef=".5 0 0 0 0"'), names)
    drag, density = np.array([0.2, 0.5, 0.5]), np.array([20.0, 20.0, 60.0])
    values = dict(zip(names, (drag, density), strict=True))
    fall = -run(twin, values, 8.0).qvel[:, -1, 2]
    np.testing.assert_allclose(fall, np.sqrt(0.2 * 9.81 / (drag * density * np.pi * 0.05**2)), rtol=5e-3)


def test_a_shape_without_a_drag_coefficient_says_how_it_gets_one(tmp_path):
    with pytest.raises(
        InputError, match="ball lacks that quantity: none of its shapes has a drag coefficient. Give one"
    ):
        make_world(tmp_path, BALL.format(more=""), ["object/ball/drag"])


def test_viscous_air_slows_in_proportion(tmp_path):
    """Stokes: 6 π β r v = m g, r that of the box with a ball's inertia."""
    twin = make_world(tmp_path, BALL.format(more=""), ["world/air/viscosity"])
    viscosity = np.array([0.5, 1.0, 4.0])
    fall = -run(twin, {"world/air/viscosity": viscosity}, 6.0).qvel[:, -1, 2]
    radius = np.sqrt(1.5 * 0.4) * 0.05  # I = 2/5 m r², half side √(3 I / 2 m)
    np.testing.assert_allclose(fall, 0.2 * 9.81 / (6 * np.pi * viscosity * radius), rtol=2e-3)


WIND = [f"world/wind/{axis}" for axis in "xyz"]


def test_light_things_go_with_the_wind(tmp_path):
    names = [*WIND, "world/air/viscosity"]
    twin = make_world(tmp_path, BALL.format(more=""), names, option='gravity="0 0 0"')
    wind = np.array([[2.0, 0, 0], [0, -1.0, 0.5]])
    values = {**dict(zip(WIND, wind.T, strict=True)), names[3]: 5.0}
    np.testing.assert_allclose(run(twin, values, 3.0).qvel[:, -1, :3], wind, atol=1e-3)


@pytest.mark.parametrize("backend", ["threads", "reference"])
def test_a_gust_blows_while_its_schedule_says(tmp_path, backend):
    """Of scope step: speed approaches the wind by exp(−t / τ), τ = m / (6 π β r), and falls back when it drops."""
    names = ["world/wind/x", "world/air/viscosity"]
    twin = make_world(tmp_path, BALL.format(more=""), names, option='gravity="0 0 0"')
    nstep, gust = 100, np.zeros((2, 100))
    gust[1, 20:60] = 3.0
    table = twin.table(2, {"world/air/viscosity": 1.0})
    table = ParamTable(names=table.names, values=table.values, steps={"world/wind/x": gust})
    commands = np.zeros((2, nstep, 0))
    speed = rollout(open_backend(backend), twin, table, start(twin, 2), commands, nstep).qvel[:, :, 0]
    tau = 0.2 / (6 * np.pi * np.sqrt(1.5 * 0.4) * 0.05)
    grown = 3.0 * (1 - np.exp(-40 / HZ / tau))
    assert not speed[0].any()
    np.testing.assert_allclose(
        speed[1, [20, 60, 100]], [0, grown, grown * np.exp(-40 / HZ / tau)], rtol=5e-3, atol=1e-9
    )


TABLE = """{open}<geom name="table" type="box" size=".5 .5 .02" pos="0 0 .4" friction="{mu}"/>{close}
  <body name="box" pos="{x} {y} .45"><freejoint/><geom type="box" size=".1 .1 .03" mass=".2" friction="{mu}"/></body>"""
KINDS = {"geom": ("", ""), "body": ('<body name="table">', "</body>")}


def table_world(tmp_path, family, mu, x=0.0, y=0.0):
    names = [f"{family}/table/{kind}/{axis}" for kind in ("position", "rotation") for axis in "xyz"]
    begin, end = KINDS[family]
    return make_world(tmp_path, TABLE.format(open=begin, close=end, mu=mu, x=x, y=y), names)


@pytest.mark.parametrize("family", list(KINDS))
def test_what_lies_on_a_table_rests_where_its_height_says(tmp_path, family):
    twin = table_world(tmp_path, family, 1.0)
    shift = np.array([-0.1, -0.02, 0.0])
    rest = run(twin, {f"{family}/table/position/z": shift}, 1.5).qpos[:, -1, 2]
    np.testing.assert_allclose(rest, 0.45 + shift, atol=1e-3)


def test_a_box_slides_down_a_tilted_table(tmp_path):
    """g (sin θ − μ cos θ) downhill, the right-hand rule: about x the +y side rises, about y the +x side sinks."""
    twin = table_world(tmp_path, "geom", 0.2)
    tilt = 0.35
    values = {"geom/table/rotation/x": [tilt, 0, -tilt, 0], "geom/table/rotation/y": [0, tilt, 0, -tilt]}
    half = 0.03 + 0.02  # of box and table: the box begins flat on the tilted plate
    turn = [
        [np.cos(t / 2), *(np.sin(t / 2) * np.array(a))]
        for t, a in zip([tilt, tilt, -tilt, -tilt], [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]], strict=True)
    ]
    normal = np.array([[0, -1, 0], [1, 0, 0], [0, 1, 0], [-1, 0, 0]]) * np.sin(tilt) + [0, 0, np.cos(tilt)]
    qpos = np.concatenate([[0, 0, 0.4] + half * normal, turn], axis=1)
    speed = run(twin, values, 0.35, qpos=qpos).qvel[:, :, :3]
    gained = (speed[:, 35] - speed[:, 10]) / 0.25
    down = normal * [1, 1, 0] / np.sin(tilt)
    expected = 9.81 * (np.sin(tilt) - 0.2 * np.cos(tilt)) * np.cos(tilt)  # its horizontal part
    np.testing.assert_allclose((gained * down).sum(axis=1), expected, rtol=0.03)


def test_a_base_that_is_turned_carries_its_arm_with_it(tmp_path):
    arm = """<body name="base" pos="0 0 1"><site/><body name="arm"><joint name="hinge" axis="0 1 0" damping="1"/>
      <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".02" mass="1"/></body></body>"""
    twin = make_world(tmp_path, arm, ["body/base/rotation/y"])
    lean = np.array([0.2, -0.3])
    np.testing.assert_allclose(run(twin, {"body/base/rotation/y": lean}, 8.0).qpos[:, -1, 0], -lean, atol=1e-3)
