"""Every check fails on the defect that it is for. Defects are planted in the twin's files or its compiled model."""

from dataclasses import replace
from importlib import resources

import numpy as np
import pytest

from twinloop.checks import integration as convergence
from twinloop.checks.corners import check_ranges, corner_table, find_drawn_params
from twinloop.checks.delay import check_delay, delays_to_try
from twinloop.checks.grasp import check_compiles, check_grasp, check_penetration
from twinloop.checks.integration import check_convergence, check_energy_drift, check_energy_gain
from twinloop.checks.stability import check_stability
from twinloop.twin import load_twin

BUILTIN = resources.files("twinloop.twin") / "builtin"
# Without its presets the SO-101 has the numbers of its model file, where defects are planted.
NO_PRESETS = ('  servo: {"*": sts3215_7v4, gripper: sts3215_7v4_half_torque}\n', "")


@pytest.fixture
def spoiled(tmp_path):
    """A built-in twin with pieces of its model or spec replaced; each piece must be there."""

    def make(name, *, model=(), spec=()):
        for suffix, changes in ((".xml", model), (".yaml", spec)):
            text = (BUILTIN / (name + suffix)).read_text()
            for old, new in changes:
                assert old in text, old
                text = text.replace(old, new)
            (tmp_path / (name + suffix)).write_text(text)
        return load_twin(tmp_path / f"{name}.yaml")

    return make


def test_a_model_with_a_number_that_is_none_fails_to_compile_sanely():
    twin = load_twin("cube_toss")
    twin.model.geom_friction[0, 0] = np.nan
    check = check_compiles(twin)
    assert check.status == "fail"
    assert "geom_friction" in check.detail


def test_a_model_changed_by_hand_is_not_the_one_described():
    twin = load_twin("cube_toss")
    twin.model.body_mass[1] *= 1.01
    assert check_compiles(twin).status == "fail"


def test_a_range_of_factors_on_nothing_varies_nothing():
    twin = load_twin("double_pendulum")
    assert check_ranges(twin).status == "pass"
    name = next(name for name, param in twin.params.items() if param.default_range is not None)
    still = replace(twin.params[name], nominal=0.0, op="scale", default_range=(0.5, 2.0))
    check = check_ranges(replace(twin, params={**twin.params, name: still}))
    assert (check.status, check.metric) == ("fail", 1)
    assert check.detail.startswith(f"{name} does not vary")
    assert "op: absolute" in check.detail


def test_cube_sunk_into_the_table_is_a_penetration(spoiled):
    twin = spoiled("so101_tabletop", model=[('qpos="0.22 -0.06 0.014', 'qpos="0.22 -0.06 0.012')])
    check = check_penetration(twin)
    assert check.status == "fail"
    assert check.metric == pytest.approx(2.0, abs=1e-6)
    assert "table" in check.detail
    assert "cube" in check.detail


@pytest.mark.parametrize(
    "spec",
    [
        [("range: [0.4, 1.1]", "range: [0.05, 1.1]")],  # slippery: below the jaws' wedge angle
        [
            ("low: 0.1\n    high: 20.0\n    range: [0.8, 1.25]", "low: 0.001\n    high: 20.0\n    range: [0.003, 1.25]")
        ],  # weak
    ],
)
def test_slippery_object_or_weak_gripper_does_not_hold(spoiled, spec):
    check = check_grasp(spoiled("so101_tabletop", spec=spec))
    assert check.status == "fail", check.summary_line()
    assert check.metric > 2.0
    assert check.metrics["nominal_mm"] < 1.0


def test_soft_friction_creeps_and_fails(spoiled):
    check = check_grasp(spoiled("so101_tabletop", model=[('impratio="200"', 'impratio="10"')]))
    assert check.status == "fail", check.summary_line()


def test_object_welded_to_the_hand_fails_whatever_it_holds(spoiled):
    weld = '<equality><weld name="assist" body1="gripper" body2="cube" active="false"/></equality>\n  <actuator>'
    check = check_grasp(spoiled("so101_tabletop", model=[("<actuator>", weld)]))
    assert check.status == "fail"
    assert "weld assist fixes cube" in check.detail


def test_delay_hidden_in_the_model_is_found(spoiled):
    hidden = '<general name="elbow_flex" joint="elbow_flex" delay="0.0125" nsample="8" ctrlrange'
    twin = spoiled("so101_tabletop", model=[('<general name="elbow_flex" joint="elbow_flex" ctrlrange', hidden)])
    check = check_delay(twin)
    assert check.status == "fail"
    assert "elbow_flex" in check.detail
    assert check.metric == pytest.approx(6.0, abs=1.0)


def test_delay_of_one_step_too_many_is_found(spoiled):
    hidden = '<general name="gripper" joint="gripper" delay="0.0020833333333333333" nsample="2" ctrlrange'
    twin = spoiled("so101_tabletop", model=[('<general name="gripper" joint="gripper" ctrlrange', hidden)])
    assert check_delay(twin).status == "fail"


def test_joint_that_never_answers_has_no_delay_to_speak_of(spoiled):
    dead = '<general name="wrist_roll" joint="wrist_roll" gainprm="0" biasprm="0 0 0" ctrlrange'
    no_kp = [('range: [0.8, 1.25]\n    op: scale\n    transform: log\n    source: "kt/R', 'source: "kt/R')]
    kp_bounds = [("low: 0.5\n    high: 2000.0", "low: 0.0\n    high: 2000.0\n    transform: identity")]
    twin = spoiled(
        "so101_tabletop",
        model=[('<general name="wrist_roll" joint="wrist_roll" ctrlrange', dead)],
        spec=[*no_kp, *kp_bounds, NO_PRESETS],
    )
    check = check_delay(twin)
    assert check.status == "fail"
    assert check.metric == np.inf
    assert "wrist_roll" in check.detail


def test_delays_tried_include_the_ends_of_the_default_range_and_stay_in_bounds():
    twin = load_twin("so101_tabletop")
    delays = delays_to_try(twin)
    assert delays.min() == 0.0
    assert 0.066 in delays
    assert delays.max() <= twin.params["actuator/gripper/delay"].high


@pytest.mark.slow
def test_gain_that_the_step_cannot_follow_breaks_worlds(spoiled):
    twin = spoiled(
        "so101_tabletop",
        model=[('integrator="implicitfast"', 'integrator="Euler"')],
        spec=[
            ("high: 2000.0\n    range: [0.8, 1.25]", "high: 1.0e+9\n    range: [0.8, 1.0e+6]"),
            ("high: 20.0\n    range: [0.8, 1.25]", "high: 1.0e+9\n    range: [0.8, 1.0e+7]"),
            ("substeps: 16", "substeps: 1"),
        ],
    )
    check = check_stability(twin, seconds=3.0)
    assert check.status == "fail"
    assert "diverged at" in check.detail
    assert check.metric < 8  # the world at the low corner is sound
    assert "Cause: actuator/" in check.detail


@pytest.mark.slow
def test_the_one_range_that_breaks_a_twin_is_named(spoiled):
    twin = spoiled(
        "so101_tabletop",
        model=[
            ('integrator="implicitfast"', 'integrator="Euler"'),
            ('forcerange="-3.25 3.25"', 'forcerange="-1e7 1e7"'),
        ],
        spec=[
            ("high: 2000.0\n    range: [0.8, 1.25]", "high: 1.0e+9\n    range: [0.8, 1.0e+6]"),
            ("high: 20.0\n    range: [0.8, 1.25]", "high: 1.0e+9\n    range: [1.0, 1.0]"),
            NO_PRESETS,
            ("substeps: 16", "substeps: 1"),
        ],
    )
    check = check_stability(twin, seconds=3.0)
    assert check.status == "fail"
    assert "Cause: actuator/" in check.detail
    assert "/kp = 8.9e+06 N·m/rad alone (default range 7.12 to 8.9e+06)" in check.detail
    assert "damping" not in check.detail


def test_corners_are_ends_of_every_range_and_differ_between_worlds():
    twin = load_twin("so101_tabletop")
    table = corner_table(twin, 8, seed=0)
    for param in find_drawn_params(twin):
        ends = param.absolute(param.default_range, param.op)
        assert np.isin(table[param.name], ends).all(), param.name
    values = np.stack([table[param.name] for param in find_drawn_params(twin)], axis=1)
    assert len(np.unique(values, axis=0)) == 8
    assert (values[0] <= values[2:]).all()
    assert (values[1] >= values[2:]).all()


def test_negative_damping_makes_energy():
    twin = load_twin("double_pendulum")
    twin.model.dof_damping[:] = -0.05
    twin.model.dof_frictionloss[:] = 0.0
    check = check_energy_gain(twin)
    assert check.status == "fail"
    assert check_energy_drift(twin).status == "pass"  # this check disables damping


def test_steps_that_are_too_long_drift_and_do_not_converge(spoiled):
    twin = spoiled("panda_tabletop", spec=[("substeps: 25", "substeps: 2")])
    assert check_energy_drift(twin).status == "fail"
    pendulum = spoiled("double_pendulum", spec=[("control_hz: 500", "control_hz: 10"), ("substeps: 4", "substeps: 1")])
    assert check_convergence(pendulum).status == "fail"


@pytest.mark.parametrize("free", ["", "<body pos='1 0 1'><freejoint/><geom size='.05'/></body>"])
def test_the_steps_of_a_ball_joint_are_judged_too(tmp_path, free):
    path = tmp_path / "ball.xml"
    path.write_text(
        "<mujoco><option timestep='.05'/><worldbody><body pos='0 0 1'><joint type='ball'/><geom type='capsule' "
        f"size='.05' fromto='0 0 0 .3 0 0'/></body>{free}</worldbody></mujoco>"
    )
    assert check_convergence(load_twin(path)).status == "fail"


def test_an_undamped_model_of_the_users_own_is_not_accused_of_making_energy(tmp_path):
    path = tmp_path / "bare.xml"
    path.write_text(
        "<mujoco><worldbody><body pos='0 0 1'><joint name='a' axis='0 1 0'/><geom type='capsule' size='.05' "
        "fromto='0 0 0 .3 0 0'/><body pos='.3 0 0'><joint type='ball'/><geom size='.05' pos='.1 0 0'/></body></body>"
        "</worldbody></mujoco>"
    )
    twin = load_twin(path)
    assert check_energy_drift(twin).status == "pass"
    assert check_energy_gain(twin).status == "pass"
    assert check_convergence(twin).status == "pass"


@pytest.mark.parametrize(("change", "status"), [(3e-4, "pass"), (5e-3, "fail")])
def test_a_change_far_below_the_limit_is_not_judged_by_its_order(monkeypatch, change, status):
    """Paths that differ as much at the half step as at the whole: order 0."""
    paths = {refine: np.full((5, 1), change * number) for number, refine in enumerate((1, 2, 4))}
    monkeypatch.setattr(convergence, "_simulate_path", lambda _, refine: paths[refine])
    check = check_convergence(load_twin("double_pendulum"))
    assert check.metrics["order"] == pytest.approx(0.0)
    assert check.status == status
    assert ("not judged" in check.detail) is (status == "pass")
    assert ("does not converge" in check.detail) is (status == "fail")
