"""The SO-101: a planted arm comes back, and the real log's held-out error reaches what the project promises."""

import os
from pathlib import Path

import numpy as np
import pytest

from twinloop.dataset.logs.sets.registry import load
from twinloop.gap import measure_gap
from twinloop.identify import HoldoutSpec, identify
from twinloop.simulate import open_backend
from twinloop.twin import load_twin

SET = "so101_pick_place_tape"
# Mean absolute error of a second-order fit with delay and bias on episodes 30 to 39, in the log's own units.
TARGET = np.array([0.24, 0.81, 0.95, 0.30, 0.14, 0.71])


@pytest.fixture(scope="module")
def real():
    folder = os.environ.get("TWINLOOP_DATA")
    if not folder or not (Path(folder) / SET).exists():
        pytest.skip(f"{SET} is not in TWINLOOP_DATA")
    return load(SET)[0]


def test_the_real_log_without_fit_stands_between_its_baselines(real):
    report = measure_gap(load_twin("so101_tabletop"), real[30:], backend=open_backend("threads"), training=real[:30])
    # Published with the set: the command taken as position 1.20 4.09 5.10 1.67 1.04 1.66 on ten held-out episodes.
    assert report.baselines["command"].estimate[:3] == pytest.approx([1.20, 4.09, 5.10], rel=0.1)
    assert (report.baselines["delay"].estimate < [0.37, 1.02, 1.20, 0.50, 0.25, 0.80]).all()
    assert (report.skill("command") > 0.4).all()
    assert report.source == "real"


@pytest.mark.slow
def test_the_identified_twin_reaches_the_held_out_target(real):
    twin, backend = load_twin("so101_tabletop"), open_backend("threads")
    result = identify(twin, real, backend=backend, holdout=HoldoutSpec.parse("last:10"))
    assert result.holdout == tuple(range(30, 40))
    report = measure_gap(twin, real[30:], backend=backend, params=result.distribution, training=real[:30])
    assert (report.best.estimate <= TARGET).all(), report.text()
    # A fit counts the first frame of each episode as well, which is given.
    assert report.best.estimate == pytest.approx(result.holdout_error.estimate, rel=0.01)
    assert (report.skill("delay") > 0.0).all()
    assert (report.improvement.high < 0.0).all()
    assert (result.residuals.rho > 0.5).all()  # why plain least-squares intervals would be far too narrow
