"""Changed mass, centre, inertia, size and payload move bodies as mechanics predicts, and stay physical."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from support.worlds import HZ, make_world, run
from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.twin.compiling import prepare_spec
from twinloop.twin.params import expand_params
from twinloop.twin.quantities.rigid import scaled_inertia, second_moments
from twinloop.twin.spec import ParamSpec

BLOCK = '<body name="block" pos="0 0 1"><freejoint/><geom name="block" type="box" size=".1 .05 .02" mass=".5"/></body>'
NO_GRAVITY = 'gravity="0 0 0"'


def rates(twin, values, qvel, seconds=1.0):
    """Angular velocity in the body's frame over time, ``(nworld, nstep, 3)``."""
    return run(twin, values, seconds, qvel=qvel).qvel[..., 3:6]


def test_a_mass_counts_in_a_collision(tmp_path):
    """Momentum is conserved: m₁ (u − v₁) = m₂ v₂ for any restitution."""
    balls = "".join(
        f'<body name="{name}" pos="{x} 0 0"><freejoint/><geom size=".05" mass=".1"/></body>'
        for name, x in (("first", 0), ("second", 0.2))
    )
    twin = make_world(tmp_path, balls, ["object/first/mass"], option=NO_GRAVITY)
    mass = np.array([0.05, 0.1, 0.3])
    end = run(twin, {"object/first/mass": mass}, 0.5, qvel=[1.0] + [0.0] * 11).qvel[:, -1]
    assert (end[:, 6] > end[:, 0] + 0.05).all()
    np.testing.assert_allclose(mass * (1.0 - end[:, 0]), 0.1 * end[:, 6], rtol=1e-3)


def test_a_body_turns_about_its_shifted_centre_of_mass(tmp_path):
    names = [f"object/block/com/{axis}" for axis in "xyz"]
    twin = make_world(tmp_path, BLOCK, names, option=NO_GRAVITY)
    shift, spin = np.array([0.03, -0.02, 0.0]), 2.0
    still = np.concatenate([-np.cross([0, 0, spin], shift), [0, 0, spin]])  # the centre of mass is at rest
    path = run(twin, dict(zip(names, shift, strict=True)), 4.0, qvel=still).qpos[0]
    angle = spin * np.arange(len(path)) / HZ
    x, y = shift[:2]
    around = np.stack([np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y], axis=-1)
    np.testing.assert_allclose(
        path[:, :2] + around, np.broadcast_to(shift[:2], around.shape), atol=5e-4
    )  # first order in the step


def test_second_moments_set_the_rate_at_which_a_free_body_wobbles(tmp_path):
    """Euler: near a spin ω₃ the other rates turn at ω₃ √((I₃ − I₁)(I₃ − I₂) / (I₁ I₂))."""
    twin = make_world(tmp_path, BLOCK, [f"object/block/inertia/{axis}" for axis in "xyz"], option=NO_GRAVITY)
    factors = np.array([[1.0, 1.0, 1.0], [2.0, 1.0, 1.0], [1.0, 0.25, 1.0], [1.5, 0.5, 2.0]])
    s = np.array([0.1, 0.05, 0.02]) ** 2 * 0.5 / 3 * factors  # of a box: m a² / 3
    inertia = s.sum(axis=1, keepdims=True) - s
    a, b, c = inertia.T
    spin = 20.0
    expected = spin * np.sqrt((c - a) * (c - b) / (a * b))
    values = {f"object/block/inertia/{axis}": factors[:, i] for i, axis in enumerate("xyz")}
    first = rates(twin, values, [0, 0, 0, 0.05, 0, spin])[..., 0]
    for world in range(len(factors)):
        crossings = np.flatnonzero(np.diff(np.signbit(first[world])))
        between = crossings + first[world, crossings] / (first[world, crossings] - first[world, crossings + 1])
        measured = np.pi * HZ / np.diff(between).mean()
        assert measured == pytest.approx(expected[world], rel=5e-3)


def test_a_scaled_body_rests_and_wobbles_as_its_size_says(tmp_path):
    names = ["object/block/size", *(f"object/block/size/{axis}" for axis in "xyz")]
    twin = make_world(tmp_path, f'<geom type="plane" size="2 2 .1"/>{BLOCK}', names)
    scale = np.array([1.0, 1.5, 0.5, 1.0])
    tall = np.array([1.0, 1.0, 1.0, 2.0])
    start = np.tile([0, 0, 0.1, 1, 0, 0, 0], (4, 1))
    end = run(twin, {"object/block/size": scale, "object/block/size/z": tall}, 2.0, qpos=start)
    np.testing.assert_allclose(end.qpos[:, -1, 2], 0.02 * scale * tall, rtol=0.02)
    slow, fast = (rates(twin, {"object/block/size/x": f}, [0, 0, 0, 0.05, 0, 20.0], 0.3) for f in (1.0, 1.3))
    wide = make_world(tmp_path, BLOCK.replace('".1 .05', '".13 .05'), names)
    np.testing.assert_allclose(rates(wide, {}, [0, 0, 0, 0.05, 0, 20.0], 0.3), fast, atol=1e-9)
    assert not np.allclose(slow, fast, atol=1e-3)


def test_a_scaled_body_equals_one_compiled_in_that_size(tmp_path):
    """Shapes of every kind, in several places and rotated; except for mass, MuJoCo's inertia is the reference."""
    shapes = """<body name="thing" pos="0 0 1"><freejoint/>
      <geom type="{kind}" size="{a} {b} {c}" pos="{x} 0 0" quat="0.5 0.5 0.5 0.5" mass="1"/>
      <geom type="sphere" size="{r}" pos="0 {x} 0" mass="0.5"/></body>"""
    for kind in ("box", "cylinder", "capsule", "ellipsoid"):
        numbers = {"a": 0.1, "b": 0.06, "c": 0.03, "x": 0.05, "r": 0.04}
        twin = make_world(tmp_path, shapes.format(kind=kind, **numbers), ["object/thing/size"])
        big = make_world(
            tmp_path, shapes.format(kind=kind, **{k: 1.7 * v for k, v in numbers.items()}), ["object/thing/size"]
        )
        scaled = mujoco.MjModel.from_xml_path(str(tmp_path / "world.xml"))
        twin.fields(twin.table(1, {"object/thing/size": 1.7})).write_inplace(scaled, 0)
        for field in ("geom_size", "geom_pos", "geom_rbound", "geom_aabb", "body_ipos", "body_inertia", "body_mass"):
            np.testing.assert_allclose(getattr(scaled, field), getattr(big.model, field), atol=1e-12, err_msg=field)


ARM = """<body name="arm"><joint name="hinge" axis="0 1 0"/>
  <inertial mass=".4" pos="0 0 -.2" diaginertia="4e-3 4e-3 1e-4"/>
  <geom size=".01"/><site name="tool" pos="0 0 -.5"/></body>"""


def period(result, world):
    """Of small swings about zero, from the times of its zero crossings."""
    angle = result.qpos[world, :, 0]
    crossings = np.flatnonzero(np.diff(np.signbit(angle)))
    between = crossings + angle[crossings] / (angle[crossings] - angle[crossings + 1])
    return 2.0 * np.diff(between).mean() / HZ


def test_mass_centre_inertia_and_payload_of_a_link_set_its_period(tmp_path):
    """A physical pendulum: T = 2π √(I / Σ m g l), I about the hinge."""
    names = ["link/arm/mass", "link/arm/com/z", "link/arm/inertia/x", "link/arm/inertia/z", "link/arm/payload"]
    twin = make_world(tmp_path, ARM, names)
    mass, drop, stretch, payload = np.array(
        [[0.4, 0, 1, 0], [0.8, 0, 1, 0], [0.4, -0.1, 1, 0], [0.4, 0, 4, 0], [0.4, 0, 1, 0.2], [0.6, 0.05, 3, 0.3]]
    ).T
    values = dict(zip(names, (mass, drop, np.ones(6), stretch, payload), strict=True))
    result = run(twin, values, 8.0, qpos=[0.02])
    centre = 0.2 - drop
    along, across = 4e-3 - 0.5e-4, 0.5e-4  # second moments S_z and S_x of the nominal arm
    inertia = mass / 0.4 * (along * stretch + across) + mass * centre**2 + payload * 0.5**2
    expected = 2 * np.pi * np.sqrt(inertia / (9.81 * (mass * centre + payload * 0.5)))
    np.testing.assert_allclose([period(result, world) for world in range(6)], expected, rtol=1e-3)


def test_no_controller_compensates_what_it_does_not_know(tmp_path):
    """A spring k against a payload p at L, on an arm whose own weight is compensated: sag θ = p g L / k."""
    arm = ARM.replace('name="arm"', 'name="arm" gravcomp="1" euler="0 -90 0"').replace(
        '1 0"/>', '1 0" stiffness="50" damping="2"/>'
    )
    twin = make_world(tmp_path, arm, ["link/arm/payload", "link/arm/mass"])
    values = {"link/arm/payload": [0.0, 0.05, 0.0], "link/arm/mass": [0.4, 0.4, 0.5]}
    sag = np.abs(run(twin, values, 4.0).qpos[:, -1, 0])
    assert sag[0] < 1e-6
    np.testing.assert_allclose(sag[1:], np.array([0.05 * 0.5, 0.1 * 0.2]) * 9.81 / 50, rtol=0.02)


sound = arrays(float, 3, elements=st.floats(1e-4, 1.0))
many = arrays(float, (5, 3), elements=st.floats(0.01, 100.0))


@given(moments=sound, factors=many)
def test_any_factors_leave_an_inertia_that_a_body_can_have(moments, factors):
    inertia = moments.sum() - moments
    changed = scaled_inertia(inertia, factors)
    np.testing.assert_allclose(second_moments(changed), factors * moments, rtol=1e-9, atol=1e-12)
    largest, total = changed.max(axis=1), changed.sum(axis=1)
    assert (changed > 0).all()
    assert (2 * largest <= total * (1 + 1e-12)).all()
    np.testing.assert_array_equal(scaled_inertia(inertia, np.ones((5, 3))), np.tile(inertia, (5, 1)))


@given(
    payload=st.floats(1e-3, 5.0),
    site=arrays(float, 3, elements=st.floats(-0.5, 0.5)),
    turn=arrays(float, 4, elements=st.floats(0.1, 1.0)),
)
def test_a_payload_adds_to_the_inertia_as_a_point(payload, site, turn):
    """About the body's origin: I + p (|s|² 1 − s sᵀ), for any frame of the principal axes."""
    from twinloop.twin.fields import field_values

    quat = " ".join(map(str, turn / np.linalg.norm(turn)))
    mjspec = mujoco.MjSpec.from_string(
        f"""<mujoco><worldbody><body name="arm"><joint type="ball"/><inertial mass="1" pos=".1 0 .2" quat="{quat}"
        diaginertia=".03 .05 .07"/><frame pos="{site[0]} 0 0"><site pos="0 {site[1]} {site[2]}"/></frame></body>
        </worldbody></mujoco>"""
    )
    specs = [ParamSpec(name="link/arm/payload", source="t")]
    prepare_spec(mjspec, specs)
    model = mjspec.compile()
    param = expand_params(model, specs, where="t")["link/arm/payload"]
    assert param.nominal == 0
    before = mass_matrix(model)
    table = ParamTable(names=(param.name,), values=np.array([[payload]]))
    field_values(model, [param], table).write_inplace(model, 0)
    point = payload * (site @ site * np.eye(3) - np.outer(site, site))
    np.testing.assert_allclose(mass_matrix(model), before + point, atol=1e-12 * (1 + payload))


def mass_matrix(model):
    """Of a body on a ball joint: its inertia about the joint."""
    data, dense = mujoco.MjData(model), np.empty((model.nv, model.nv))
    mujoco.mj_forward(model, data)
    mujoco.mj_fullM(model, data, dense)
    return dense


def test_what_cannot_be_scaled_says_why():
    head = '<asset><mesh name="rock" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset>'
    model = mujoco.MjModel.from_xml_string(
        f"""<mujoco>{head}<worldbody>
        <body name="stone"><freejoint/><geom name="rock" type="mesh" mesh="rock"/></body>
        <body name="ball"><freejoint/><geom size=".1"/></body>
        <body name="can"><freejoint/><geom type="cylinder" size=".1 .2"/></body></worldbody></mujoco>"""
    )

    def declare(name):
        return expand_params(model, [ParamSpec(name=name, source="t")], where="t")

    with pytest.raises(InputError, match="stone lacks that quantity: its shape rock is a mesh, and size scales boxes"):
        declare("object/stone/size")
    with pytest.raises(InputError, match=r"not every shape of it can be scaled along x alone\. Scale it as a whole"):
        declare("object/ball/size/x")
    with pytest.raises(
        InputError, match='ball lacks that quantity: it is compiled as simple. Give the body simple="fa'
    ):
        declare("object/ball/com/x")
    assert list(declare("object/*/size")) == ["object/ball/size", "object/can/size"]
    assert list(declare("object/*/size/z")) == ["object/can/size/z"]
