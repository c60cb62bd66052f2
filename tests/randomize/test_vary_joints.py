"""Joints: each parameter against the textbook motion that it rules."""

from __future__ import annotations

import numpy as np
import pytest

from support.worlds import HZ, make_world, run
from twinloop.core.errors import BoundsError, InputError

INERTIA = 0.01
HINGE = """<body><joint name="hinge" axis="0 0 1" {joint}/>
  <inertial pos="0 0 0" mass="1" diaginertia=".01 .01 .01"/></body>"""


def hinge(tmp_path, *quantities, joint="", substeps=10):
    names = [f"joint/hinge/{quantity}" for quantity in quantities]
    return make_world(tmp_path, HINGE.format(joint=joint), names, substeps=substeps)


def test_friction_loss_sets_how_far_a_joint_coasts(tmp_path):
    """I ω² / (2 τ)."""
    friction = np.array([0.02, 0.05, 0.1])
    stiff = 'solimpfriction="0.9999 0.9999 0.001" solreffriction="0.002 1"'
    twin = hinge(tmp_path, "frictionloss", joint=stiff, substeps=40)
    end = run(twin, {"joint/hinge/frictionloss": friction}, 3.0, qvel=[4.0])
    np.testing.assert_allclose(end.qpos[:, -1, 0], INERTIA * 16 / (2 * friction), rtol=0.01)
    assert (np.abs(end.qvel[:, -1]) < 1e-3).all()


def test_damping_sets_the_time_in_which_speed_decays(tmp_path):
    """ω = ω₀ exp(−b t / I)."""
    damping = np.array([0.005, 0.02, 0.05])
    speed = run(hinge(tmp_path, "damping"), {"joint/hinge/damping": damping}, 0.5, qvel=[2.0]).qvel[:, :, 0]
    decay = -np.log(speed[:, -1] / speed[:, 0]) / 0.5
    np.testing.assert_allclose(decay, damping / INERTIA, rtol=5e-3)


@pytest.mark.parametrize("backend", ["reference", "threads", pytest.param("warp:cpu", marks=pytest.mark.slow)])
def test_quadratic_damping_slows_a_joint_the_faster_it_turns(tmp_path, backend):
    """ω = ω₀ / (1 + b ω₀ t / I), either way round, in every backend."""
    if backend.startswith("warp"):
        pytest.importorskip("mujoco_warp")
        pytest.importorskip("torch")
    twin = hinge(tmp_path, "damping_quadratic", substeps=20)
    damping = np.array([0.0, 0.005, 0.02])
    for first in (3.0, -3.0):
        speed = run(twin, {"joint/hinge/damping_quadratic": damping}, 0.5, qvel=[first], backend=backend).qvel[:, :, 0]
        elapsed = (speed.shape[1] - 1) / HZ
        np.testing.assert_allclose(speed[:, -1], first / (1 + damping * 3.0 * elapsed / INERTIA), rtol=5e-3)


def test_stiffness_and_armature_set_the_period(tmp_path):
    """T = 2π √((I + armature) / k), about the spring's reference."""
    twin = hinge(tmp_path, "stiffness", "armature", "springref")
    stiffness, armature, reference = np.array([[1.0, 0, 0], [4.0, 0, 0.3], [1.0, 0.03, -0.2]]).T
    values = {f"joint/hinge/{n}": v for n, v in (("stiffness", stiffness), ("armature", armature))}
    angle = run(twin, {**values, "joint/hinge/springref": reference}, 6.0, qvel=[0.5]).qpos[:, :, 0]
    for world, expected in enumerate(2 * np.pi * np.sqrt((INERTIA + armature) / stiffness)):
        swing = angle[world] - reference[world]
        crossings = np.flatnonzero(np.diff(np.signbit(swing)))
        between = crossings + swing[crossings] / (swing[crossings] - swing[crossings + 1])
        assert 2 * np.diff(between).mean() / HZ == pytest.approx(expected, rel=3e-3)


def test_a_damped_spring_comes_to_rest_at_its_reference(tmp_path):
    twin = hinge(tmp_path, "springref", joint='stiffness="1" damping=".2" springref="0"')
    reference = np.array([0.4, -0.7])
    np.testing.assert_allclose(
        run(twin, {"joint/hinge/springref": reference}, 8.0).qpos[:, -1, 0], reference, atol=1e-6
    )


def test_limits_stop_the_joint_where_they_say(tmp_path):
    twin = hinge(tmp_path, "limit/low", "limit/high", joint='range="-90 90" damping=".05" solreflimit=".004 1"')
    low, high = np.array([-1.5, -0.5, -1.2]), np.array([0.3, 1.5, 0.8])
    values = {"joint/hinge/limit/low": low, "joint/hinge/limit/high": high}
    for speed in (10.0, -10.0):  # coasts for 2 rad
        result = run(twin, values, 1.5, qvel=[speed])
        stop = result.qpos[..., 0].max(axis=1) if speed > 0 else result.qpos[..., 0].min(axis=1)
        np.testing.assert_allclose(stop, high if speed > 0 else low, atol=0.04)
        assert (np.abs(result.qvel[:, -1]) < 0.1).all()


def test_limits_that_cross_and_joints_without_end_are_refused(tmp_path):
    twin = hinge(tmp_path, "limit/low", "limit/high", joint='range="-90 90"')
    with pytest.raises(BoundsError, match=r"joint/hinge/limit/low = 0.5 rad is not below joint/hinge/limit/high = 0.2"):
        twin.fields(twin.table(1, {"joint/hinge/limit/low": 0.5, "joint/hinge/limit/high": 0.2}))
    with pytest.raises(InputError, match="hinge lacks that quantity: it turns without limits. Give the joint a range"):
        hinge(tmp_path, "limit/low")
