"""Text and structure of a check's report."""

import json

import pytest

from twinloop.checks import CHECKS, CheckOutcome, CheckReport, run_checks
from twinloop.core.errors import UnknownNameError
from twinloop.twin import load_twin


def test_metric_at_the_limit_passes_above_it_fails_and_no_number_fails():
    assert CheckOutcome.judge("a", 1.0, 1.0, "mm").status == "pass"
    assert CheckOutcome.judge("a", 1.0001, 1.0, "mm").status == "fail"
    assert CheckOutcome.judge("a", float("nan"), 1.0, "mm").status == "fail"
    assert CheckOutcome.judge("a", float("inf"), 1.0, "mm").status == "fail"


def test_skipped_checks_do_not_fail_a_twin_but_say_why():
    report = CheckReport(
        twin="t", checks=(CheckOutcome.skip("grasp", "no robot"), CheckOutcome.judge("a", 0.5, 1.0, "mm"))
    )
    assert report.passed
    assert report.text() == "t: 1 passed, 0 failed, 1 skipped\n  skip grasp: no robot\n  pass a: 0.5 mm (limit 1)."


def test_report_is_json_even_where_a_metric_is_infinite():
    report = CheckReport(
        twin="t", checks=(CheckOutcome.judge("a", float("inf"), 1.0, "mm", metrics={"x": float("nan")}),)
    )
    back = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert back["passed"] is False
    assert back["checks"][0]["metric"] == "inf"
    assert back["checks"][0]["metrics"] == {"x": "nan"}


def test_unknown_check_names_the_nearest():
    with pytest.raises(UnknownNameError, match="Unknown check 'grasp hold'. Nearest existing: grasp holds"):
        run_checks("cube_toss", only=["grasp hold"])


def test_unknown_twin_is_the_users_mistake_and_no_failed_check():
    with pytest.raises(UnknownNameError, match="Nearest existing: so101_tabletop"):
        run_checks("so101_tabletp")


@pytest.mark.parametrize("line", ["robot: {type: a, joints: [j], actuators: [m], units: [rad]}", "control: 3"])
def test_a_name_missing_in_a_twins_own_file_is_a_failed_check(tmp_path, line):
    (tmp_path / "a.xml").write_text(
        "<mujoco><worldbody><body><joint name='j'/><geom size='.1'/></body></worldbody></mujoco>"
    )
    path = tmp_path / "a.yaml"
    path.write_text(f"name: a\nmodel: a.xml\ncontrol_hz: 50\nsubsteps: 10\n{line}\n")
    report = run_checks(path)
    assert not report.passed
    assert str(path) in report["compiles"].detail


def test_twin_that_does_not_load_fails_compiles_and_skips_the_rest(tmp_path):
    path = tmp_path / "broken.xml"
    path.write_text("<mujoco><worldbody><body><geom size='-1'/></body></worldbody></mujoco>")
    report = run_checks(path)
    assert report["compiles"].status == "fail"
    assert "broken.xml" in report["compiles"].detail
    assert {check.status for check in report.checks[1:]} == {"skip"}
    assert len(report.checks) == len(CHECKS)


def test_a_skipped_grasp_names_only_what_is_missing():
    robot = load_twin("so101_tabletop").robot
    assert robot.missing_for_grasp == ""
    assert robot.model_copy(update={"gripper": None}).missing_for_grasp == "a gripper (robot.gripper)"
    none = robot.model_copy(update={"gripper": None, "tcp": None})
    assert none.missing_for_grasp == "a tool site (robot.tcp) and a gripper (robot.gripper)"
