"""Good logs of real robots are left alone: no errors, and only warnings that are true of them."""

from __future__ import annotations

import pytest

from twinloop.dataset.logs.checks.check import check_log
from twinloop.dataset.logs.sets.public_sets import RealDataUnavailableError
from twinloop.dataset.logs.sets.registry import SETS, load_raw

# Warnings that are true: gaps of 5 and 13 ms; an elbow that is locked in one run; spring velocities that the log leaves
# at zero; one frame in which the tracking is off.
TRUE = {
    "dfki_simple_pendulum": {"gap"},
    "dfki_double_pendulum": {"coarse"},
    "dfki_double_pendulum_rollouts": {"gap"},
    "crazyflie_sysid": {"gap"},
    "cassie_impact": {"velocity_constant"},
    "planar_impacts": {"spike"},
}
_MOST = 10  # episodes of a set


@pytest.mark.parametrize("name", SETS)
def test_a_real_log_has_no_errors_and_no_untrue_warnings(name, monkeypatch):
    try:
        records, _ = load_raw(name)
    except RealDataUnavailableError as missing:
        pytest.skip(f"{name}: {missing}")
    report = check_log(records[:_MOST])
    assert [finding.format_line() for finding in report.errors] == []
    assert {f.kind for f in report.findings if f.severity == "warning"} <= TRUE.get(name, set())


@pytest.mark.parametrize(
    ("name", "low", "high"), [("so101_pick_place_tape", 0.08, 0.14), ("g1_inspire_lerobot", 0.06, 0.19)]
)
def test_lags_of_real_servos(name, low, high):
    try:
        records, _ = load_raw(name)
    except RealDataUnavailableError as missing:
        pytest.skip(f"{name}: {missing}")
    lags = check_log(records[:_MOST]).lags
    assert lags
    assert all(low <= lag <= high for lag in lags.values()), lags
