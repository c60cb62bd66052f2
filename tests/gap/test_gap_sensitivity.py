"""Sobol' indices of a twin's predictions: a linear twin's variances, default ranges, and what cannot be drawn."""

import json
from dataclasses import replace

import numpy as np
import pytest

from support.gap_attribution import DAMPING, DELAY, KP, LIMIT, known, log_of, moved
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.gap.attribution.groups import parameter_groups
from twinloop.gap.attribution.sensitivity import SensitivityOptions, sensitivity
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import load_twin
from twinloop.workflows.run.results import replace_nonfinite

from support.one_joint import joints_twin  # isort: skip


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return joints_twin(tmp_path_factory.mktemp("twin"), joints=2, control_hz=50, substeps=4)


@pytest.fixture(scope="module")
def backend():
    return open_backend("threads", nthread=1)


def test_small_spreads_give_the_variances_of_a_linear_twin(twin, backend):
    values = moved(twin, {DELAY: 0.03, KP: 1.2, DAMPING: 1.1})
    sd = {DELAY: 5e-4, KP: 0.01 * values[KP], DAMPING: 0.02 * values[DAMPING]}
    episodes = log_of(twin, backend, values, count=4, noise=1e-3)
    groups = parameter_groups(twin, list(values))
    found = sensitivity(
        backend,
        twin,
        episodes,
        known(values, list(sd.values()), twin),
        groups,
        options=SensitivityOptions(base=64, physics_hz=1e6),
    )
    logs = prepare_replay(twin, episodes)
    rows = [values, *(values | {g.params[0]: values[g.params[0]] + sd[g.params[0]]} for g in groups)]
    table = twin.table(len(rows), {name: np.array([row[name] for row in rows]) for name in values})
    readings = replay(backend, logs, table)[:, :, 1:, 0]
    power = np.sum((readings[1:] - readings[0]) ** 2, axis=(1, 2))
    assert found.motion.first.estimate[:, 0] == pytest.approx(power / power.sum(), abs=0.05)
    assert found.motion.total.estimate[:, 0] == pytest.approx(power / power.sum(), abs=0.05)
    assert found.spread[0] == pytest.approx(np.sqrt(power.sum() / readings[0].size), rel=0.05)
    assert np.isnan(found.motion.total.estimate[:, 1]).all()  # nothing drawn belongs to the other joint
    assert found.sentence(1) == "No drawn parameter changes position/j1."
    assert "Over the identified distribution, predictions of j0 spread by" in found.sentence(0)
    json.dumps(replace_nonfinite(found.to_json()), allow_nan=False)


def test_parameters_that_the_data_do_not_tell_are_not_drawn_and_are_named(twin, backend):
    values = moved(twin, {DELAY: 0.03, KP: 1.2, LIMIT: 1.5})
    params = replace(known(values, 0.01, twin), determined=(True, True, False))
    groups = parameter_groups(twin, list(values))
    found = sensitivity(
        backend, twin, log_of(twin, backend, values), params, groups, options=SensitivityOptions(base=8)
    )
    assert [group.name for group in found.groups] == ["servo gain", "delay"]
    assert found.fixed == (LIMIT,)
    assert found.worlds == 4 * 8


def test_default_ranges_are_drawn_where_they_are_asked_for(backend):
    arm = load_twin("so101_tabletop")
    values = {"actuator/elbow_flex/kp": 10.0, "joint/elbow_flex/damping": 0.8}
    episodes = log_of(arm, backend, values, count=2)
    found = sensitivity(
        backend,
        arm,
        episodes,
        known(values, 0.01, arm),
        parameter_groups(arm, list(values)),
        options=SensitivityOptions(base=8, over="ranges"),
    )
    elbow = list(arm.robot.joints).index("elbow_flex")
    assert (found.motion.total.estimate[:, elbow] > 0.05).all()
    assert "Over the default ranges" in found.sentence(elbow)


def test_mistakes_are_named(twin, backend):
    values = moved(twin, {KP: 1.2})
    episodes, params = log_of(twin, backend, {}, count=2), known(values, 0.01, twin)
    groups = parameter_groups(twin, list(values))
    with pytest.raises(UnknownNameError, match="kind of range 'all'"):
        sensitivity(backend, twin, episodes, params, groups, options=SensitivityOptions(over="all"))
    with pytest.raises(InputError, match="can be drawn over 'ranges'"):
        sensitivity(backend, twin, episodes, params, groups, options=SensitivityOptions(over="ranges"))
