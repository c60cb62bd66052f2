"""With a jittering control loop, a dataset stores the true time with each nominal timestamp."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.files import sha256_tree
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.validation import validate
from twinloop.generate import generate_states, resolve_config

SMALL = {"scene": {"robot": "so101", "task": "pick_and_place"}, "rollout": {"parallel_envs": 2, "episodes_per_env": 2}}
JITTER = "timing/control/jitter"


def generated(folder, section, workers=1):
    config = resolve_config({**SMALL, "randomization": {"params": section}}, where="test", folder=folder)
    generate_states(config, folder / "batch", workers=workers)
    return folder / "batch"


@pytest.fixture(scope="module")
def unsteady(tmp_path_factory):
    section = {JITTER: [0.001, 0.004], "timing/control/period": [0.95, 1.05], "timing/command/jitter": [0.0, 0.01]}
    return generated(tmp_path_factory.mktemp("unsteady"), section)


def test_true_times_lie_beside_nominal_timestamps(unsteady):
    reader = DatasetReader(unsteady)
    assert len(reader) >= 3
    for episode in range(len(reader)):
        nominal, true = reader.array(episode, "timestamp").ravel(), reader.array(episode, "observation.time").ravel()
        np.testing.assert_allclose(nominal, np.arange(len(nominal)) / 30, atol=1e-6)
        np.testing.assert_allclose(true, reader.states(episode)[:-1, 0], atol=1e-6)
        period = reader.provenance(episode).params["timing/control/period"] / 30
        late = np.diff(true.astype(np.float64)) - period
        assert late.min() > -1e-6
        assert late.max() == pytest.approx(reader.provenance(episode).params[JITTER], rel=0.1)


def test_it_is_a_valid_dataset_that_says_so(unsteady):
    assert all(verdict.accepted for verdict in validate(unsteady))
    feature = DatasetReader(unsteady).info["features"]["observation.time"]
    assert feature == {"dtype": "float32", "shape": [1], "names": None}


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_the_number_of_workers(unsteady, tmp_path):
    section = {JITTER: [0.001, 0.004], "timing/control/period": [0.95, 1.05], "timing/command/jitter": [0.0, 0.01]}
    assert sha256_tree(generated(tmp_path, section, workers=2)) == sha256_tree(unsteady)


def test_a_steady_loop_needs_no_such_column(tmp_path):
    reader = DatasetReader(generated(tmp_path, {"timing/command/jitter": [0.0, 0.01]}))
    assert "observation.time" not in reader.info["features"]
