"""The pinhole: projection and its inverse, fields of view, refusals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.core.imaging import Intrinsics

FOCAL = st.floats(10.0, 5000.0)


@given(fx=FOCAL, fy=FOCAL, cx=st.floats(-50, 700), cy=st.floats(-50, 500), seed=st.integers(0, 2**31))
def test_projection_and_unprojection_are_inverse(fx, fy, cx, cy, seed):
    camera = Intrinsics(fx=fx, fy=fy, cx=cx, cy=cy, width=640, height=480)
    points = np.random.default_rng(seed).uniform([-1, -1, 0.1], [1, 1, 5], (20, 3))
    assert np.allclose(camera.unproject(camera.project(points), points[:, 2]), points, atol=1e-9)
    homogeneous = points @ camera.matrix.T
    assert np.allclose(homogeneous[:, :2] / homogeneous[:, 2:], camera.project(points), rtol=1e-9, atol=1e-6)


@given(fovy=st.floats(0.01, 3.0), height=st.integers(1, 4000))
def test_the_field_of_view_returns(fovy, height):
    camera = Intrinsics.from_fovy(fovy, width=100, height=height)
    assert camera.fovy == pytest.approx(fovy, rel=1e-9)
    edge = camera.unproject([50.0, 0.0])
    assert math.atan2(-edge[1], edge[2]) == pytest.approx(fovy / 2, rel=1e-9)


def test_a_point_behind_the_camera_has_no_pixel():
    camera = Intrinsics.from_fovy(1.0, width=4, height=2)
    assert np.isnan(camera.project([0.0, 0.0, -1.0])).all()
    assert np.allclose(camera.project([0.0, 0.0, 1.0]), [2.0, 1.0])
    assert camera.pixel_centres()[0, 0].tolist() == [0.5, 0.5]


def test_what_is_no_camera_is_refused():
    with pytest.raises(InputError, match="between 0 and π"):
        Intrinsics.from_fovy(4.0, width=4, height=2)
    with pytest.raises(InputError, match="must be positive"):
        Intrinsics(fx=0.0, fy=1.0, cx=0.0, cy=0.0, width=1, height=1)
