"""Log-Cholesky coordinates: every value is a body that could exist, 0 is the nominal one, and motion follows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.real_data.arm_windows import body_inertial
from support.worlds import make_world, run
from twinloop.core.errors import InputError
from twinloop.twin.quantities.rigid import second_moments
from twinloop.twin.quantities.rotation import rotation_matrix

NAMES = ("alpha", "d1", "d2", "d3", "s12", "s13", "s23", "t1", "t2", "t3")
BLOCK = """<body name="block" pos="0 0 1" euler="20 0 30"><freejoint/>
  <inertial pos=".01 .02 -.03" euler="10 40 0" mass=".5" diaginertia="4e-4 9e-4 11e-4"/>
  <geom size=".01" mass="0"/></body>"""
SPHERE = '<body name="ball" pos="0 0 1"><freejoint/><geom size=".05" mass=".1"/></body>'
PATHS = tuple(f"object/block/log_cholesky/{name}" for name in NAMES)
coordinates = arrays(float, (4, 10), elements=st.floats(-1.0, 1.0))


@pytest.fixture(scope="module")
def block(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("block"), BLOCK, list(PATHS))


def table_of(twin, values):
    values = np.atleast_2d(values)
    return twin.table(len(values), dict(zip(PATHS, values.T, strict=True)))


def possible(body):
    """Whether some distribution of mass has these numbers: mass and second moments that are not negative."""
    moments = second_moments(body.inertia)
    return (body.mass > 0.0) & (moments >= -1e-9 * body.inertia.max(axis=-1, keepdims=True)).all(axis=-1)


def pseudo_inertia(inertial):
    """4 × 4 in the body's frame, ``(n, 4, 4)``: second moments about its origin, first moments and the mass."""
    turn, moments = rotation_matrix(inertial.quat), 0.5 * inertial.inertia.sum(-1, keepdims=True) - inertial.inertia
    about_com = np.einsum("nij,nj,nkj->nik", turn, moments, turn)
    whole = np.zeros((len(inertial.mass), 4, 4))
    whole[:, :3, :3] = about_com + inertial.mass[:, None, None] * np.einsum("ni,nj->nij", inertial.com, inertial.com)
    whole[:, :3, 3] = whole[:, 3, :3] = inertial.mass[:, None] * inertial.com
    whole[:, 3, 3] = inertial.mass
    return whole


@given(values=coordinates)
def test_every_value_is_a_body_that_could_exist(block, values):
    found = body_inertial(block, table_of(block, values), "block")
    assert possible(found).all()
    assert (found.mass > 0).all()
    assert (2 * found.inertia.max(-1) <= found.inertia.sum(-1) * (1 + 1e-9)).all()


@given(values=coordinates)
def test_the_pseudo_inertia_is_the_nominal_one_deformed(block, values):
    """J = T U J₀ Uᵀ Tᵀ, where T takes the nominal inertial frame to the body's."""
    nominal = body_inertial(block, block.table(1), "block")
    frame = np.eye(4)
    frame[:3, :3], frame[:3, 3] = rotation_matrix(nominal.quat[0]), nominal.com[0]
    moments = 0.5 * nominal.inertia[0].sum() - nominal.inertia[0]
    own = np.diag([*moments, nominal.mass[0]])
    found = pseudo_inertia(body_inertial(block, table_of(block, values), "block"))
    for row, expected in zip(values, found, strict=True):
        alpha, d1, d2, d3, s12, s13, s23, t1, t2, t3 = row
        upper = np.array([[np.exp(d1), s12, s13, t1], [0, np.exp(d2), s23, t2], [0, 0, np.exp(d3), t3], [0, 0, 0, 1]])
        whole = frame @ (np.exp(alpha) * upper)
        np.testing.assert_allclose(whole @ own @ whole.T, expected, rtol=1e-9, atol=1e-12)


def test_nothing_moved_keeps_the_models_own_bits(block):
    fields = block.fields(table_of(block, np.zeros((3, 10))))
    assert not fields.arrays
    some = np.zeros((2, 10))
    some[1, 5] = 0.2
    moved = block.fields(table_of(block, some)).arrays
    for field in ("body_mass", "body_ipos", "body_iquat", "body_inertia"):
        assert (moved[field][0] == getattr(block.model, field)).all()


def test_axes_follow_small_deformations_without_a_jump(block):
    """However near two principal inertias are, the frame of a slightly deformed body is near the nominal one."""
    nominal = body_inertial(block, block.table(1), "block")
    for column in range(10):
        values = np.zeros((1, 10))
        values[0, column] = 1e-6
        found = body_inertial(block, table_of(block, values), "block")
        assert np.abs(rotation_matrix(found.quat) - rotation_matrix(nominal.quat)).max() < 1e-4, NAMES[column]
        np.testing.assert_allclose(found.inertia, nominal.inertia, rtol=1e-4)


def test_a_deformed_body_falls_and_turns_as_one_compiled_so(tmp_path, block):
    values = np.array([[0.2, 0.1, -0.2, 0.05, 0.3, -0.1, 0.2, 0.01, -0.02, 0.015]])
    found = body_inertial(block, table_of(block, values), "block")
    text = BLOCK.replace('pos=".01 .02 -.03" euler="10 40 0" mass=".5" diaginertia="4e-4 9e-4 11e-4"', "{}").format(
        f'pos="{_text(found.com)}" quat="{_text(found.quat)}" mass="{_text(found.mass)}" '
        f'diaginertia="{_text(found.inertia)}"'
    )
    compiled = make_world(tmp_path, text, [])
    spin = [0.1, 0.2, 0.3, 3.0, -2.0, 4.0]
    here = run(block, dict(zip(PATHS, values[0], strict=True)), 0.5, qvel=spin).qpos
    there = run(compiled, {}, 0.5, qvel=spin).qpos
    np.testing.assert_allclose(here, there, atol=1e-9)


def test_a_body_centred_in_its_origin_can_be_deformed_too(tmp_path):
    """MuJoCo compiles such a body as simple and ignores its inertial frame, unless the spec prevents it."""
    names = ["object/ball/log_cholesky/t1", "object/ball/log_cholesky/s12"]
    twin = make_world(tmp_path, SPHERE, names, option='gravity="0 0 0"')
    still = run(twin, {names[0]: [0.0, 0.02]}, 0.5, qvel=[0, 0, 0, 0, 0, 5.0]).qvel
    np.testing.assert_allclose(still[0, -1], still[0, 0], atol=1e-9)
    speed = 5.0 * 0.02  # of the centre of mass, which goes straight on while the origin goes round it
    angle = run(twin, {names[0]: [0.02]}, 0.5, qvel=[0, 0, 0, 0, 0, 5.0]).qpos[0, -1]
    turned = 5.0 * 0.5
    expected = [0.02 - 0.02 * np.cos(turned), speed * 0.5 - 0.02 * np.sin(turned)]
    np.testing.assert_allclose(angle[:2], expected, atol=2e-3)


def test_simple_and_log_cholesky_parameters_of_a_body_exclude_each_other(tmp_path):
    for simple in ("mass", "com/x", "inertia/y"):
        with pytest.raises(InputError, match=rf"object/block/{simple} and object/block/log_cholesky/d1 both set"):
            make_world(tmp_path, BLOCK, [f"object/block/{simple}", "object/block/log_cholesky/d1"])


def test_a_body_without_extent_cannot_be_stretched(tmp_path):
    flat = BLOCK.replace("4e-4 9e-4 11e-4", "4e-4 7e-4 11e-4")
    with pytest.raises(InputError, match="no extent along some axis. Give it one in the model"):
        make_world(tmp_path, flat, ["object/block/log_cholesky/d1"])


def _text(values):
    return " ".join(repr(float(v)) for v in np.ravel(values))
