"""What cannot have been is found in states, motions and parameters; what a simulation and a robot did is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.error_rates.quality.planted.edited import Edited
from benchmarks.error_rates.quality.planted.physics import PHYSICS
from benchmarks.error_rates.quality.study import TWIN, Bench, simulated
from twinloop.curate.check import select_worst_scores
from twinloop.curate.physics.joints import compute_force_limits
from twinloop.curate.physics.states import Penetration, compute_step_quantities
from twinloop.curate.recording import open_recordings
from twinloop.curate.registry import open_checks
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.hardware import virtual_log
from twinloop.twin import load_twin
from twinloop.workflows.curate.scores import CatalogTwins

TWINS = CatalogTwins(named=TWIN)
# Of states, found by limits that are known: two episodes are enough.
STATES = ("object teleports", "object floats", "object pushed into the table", "joint gains speed from nothing",
          "recorded gain is not the one simulated")  # fmt: skip
STATE_CHECKS = [f"physics/{name}" for name in ("teleport", "float", "penetration", "energy", "next_state")]
MOTIONS = ("motion sped up", "measurements late", "a weak drive")


@pytest.fixture(scope="module")
def generated():
    with simulated(2, seed=5, pixels=False) as recordings:
        yield Bench("simulated", recordings, *STATE_CHECKS)


@pytest.fixture(scope="module")
def virtual(tmp_path_factory):
    log = virtual_log(seed=3, twin="so101_tabletop", episodes=9, seconds=6.0, hz=30.0, nthread=1)
    return Bench("virtual", open_recordings(write_log_dataset(log, tmp_path_factory.mktemp("log") / "log")), "physics")


def test_what_was_simulated_is_left_alone_and_follows_bit_for_bit(generated):
    assert generated.false_alarms() == {}
    for recording in generated.recordings:
        assert compute_step_quantities(recording, TWINS).state_error.max() == 0.0


@pytest.mark.parametrize("name", STATES)
def test_states_that_cannot_have_been_are_found_by_the_check_that_names_them(generated, name):
    defect = PHYSICS[name]
    trial = generated.trial(defect, defect.sizes[-1], 1, seed=1)
    assert (trial.planted, trial.found, trial.wrongly) == (1, 1, 0), trial


def test_a_depth_is_told_in_mm_of_the_pair_that_is_concerned(generated):
    recording = generated.recordings[0]
    account = compute_step_quantities(recording, TWINS)
    at = int(np.argmax(np.linalg.norm(account.velocity[:, 0], axis=1) < 1e-3)) + 5
    (columns,) = np.nonzero(np.isclose(recording.states[at], account.position[at, 0, 2], rtol=0, atol=0))

    def sink(states):
        states[at, columns[0]] -= 0.006
        return states

    (row,) = Penetration(TWINS).measure(Edited(recording, states=sink))
    assert row.first_frame == at
    assert "cube" in row.text
    assert row.value == pytest.approx(6.0, abs=0.5)  # the widths are 1 mm, and it lay a little within before


@pytest.mark.slow
def test_a_virtual_robots_log_is_left_alone(virtual):
    assert virtual.false_alarms() == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", MOTIONS)
def test_motions_that_cannot_have_been_are_found(virtual, name):
    defect = PHYSICS[name]
    trial = virtual.trial(defect, defect.sizes[-1], 1, seed=0)
    assert (trial.planted, trial.found, trial.wrongly) == (1, 1, 0), trial


@pytest.mark.slow
def test_states_are_no_matter_of_a_recorded_log(virtual):
    checks = open_checks(["physics/energy", "physics/next_state"], TWINS)
    told = [score for check in checks for score in select_worst_scores(check.score(virtual.recordings)).values()]
    assert {score.verdict for score in told} == {"unknown"}
    reason = "The episode was not simulated by twinloop, so it has no simulator states."
    assert {score.reason for score in told} == {reason}


def test_limits_of_drives_are_those_of_the_twin():
    twin = load_twin(TWIN)
    limits = compute_force_limits(twin, twin.model)
    assert limits[:5] == pytest.approx(np.full(5, limits[0]))
    assert limits[5] == pytest.approx(limits[0] / 2, rel=0.05)  # the gripper runs at half torque, Max_Torque_Limit 500
