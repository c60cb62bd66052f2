"""A batch becomes records with observations, actions, success and provenance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.core.units import RADIANS
from twinloop.randomize import Plan, default_draws
from twinloop.rollout import run_batch, software_versions
from twinloop.sensors.servo import STS3215_RESOLUTION
from twinloop.tasks import open_task
from twinloop.twin import load_twin

NUMBERS = [3, 8, 21, 40]


@pytest.fixture(scope="module")
def twin():
    return load_twin("so101_tabletop")


@pytest.fixture(scope="module")
def plan(twin):
    return Plan(twin=twin, run_seed=6, draws=tuple(default_draws(twin)))


@pytest.fixture(scope="module")
def made(twin, plan):
    task = open_task("pick_and_place", twin)
    return run_batch(twin, task, plan.draw(NUMBERS), run_seed=6, episodes=NUMBERS, config_hash="c0ffee")


def test_records_hold_what_was_done_and_how_it_ended(made, twin):
    assert made.success.sum() >= 3
    for world, episode in enumerate(made.episodes()):
        assert episode.number == NUMBERS[world]
        assert len(episode) == made.task.nstep
        assert episode.states.shape == (made.task.nstep + 1, made.trajectories.states.shape[2])
        np.testing.assert_array_equal(episode.next_success, made.task.success(episode.states[None])[0, 1:])
        assert episode.provenance.success == episode.next_success[-1]
        np.testing.assert_allclose(twin.units.to_si(episode.action), episode.commands, atol=1e-12)


def test_provenance_says_where_an_episode_comes_from(made, twin, plan):
    record = made.episode(1).provenance
    assert (record.source, record.twin, record.twin_hash) == ("sim", "so101_tabletop", twin.hash)
    assert (record.seed_path, record.config_hash) == ((6, 8, 0), "c0ffee")
    assert record.params == plan.draw([8]).row(0)
    assert record.versions == software_versions()
    assert record.actor == "pick_and_place.expert/2"
    assert record.success_version == "pick_and_place.placed/2"
    assert record.valid
    assert record.extra["initial_command"] == made.initial.command[1].tolist()


def test_observation_is_the_encoders_reading_before_the_command(made, twin):
    readings = twin.units.to_si(made.observation)
    offset = twin.column(made.params, "sensor", "offset", 0.0)[:, None]
    scale = twin.column(made.params, "sensor", "scale", 1.0)[:, None]
    true = made.trajectories.qpos[:, :-1, twin.joint_qpos]
    assert np.abs(offset + scale * readings - true).max() <= 0.51 * STS3215_RESOLUTION
    assert np.abs(readings - true).max() > 0.01
    np.testing.assert_allclose(readings / STS3215_RESOLUTION, np.round(readings / STS3215_RESOLUTION), atol=1e-6)


def test_units_are_those_asked_for(twin, plan, made):
    task = open_task("pick_and_place", twin)
    radians = twin.unit_map([RADIANS] * 6)
    other = run_batch(twin, task, plan.draw([8]), run_seed=6, episodes=[8], units=radians)
    np.testing.assert_array_equal(other.action[0], made.trajectories.commands[1])
    assert other.episode(0).provenance.units == radians.to_json()


def test_an_encoder_that_changes_during_an_episode_is_read_as_it_is(twin):
    task = open_task("pick_and_place", twin)
    drift = np.linspace(0.0, 0.02, task.nstep)[None]
    params = twin.table(1).with_steps({"sensor/shoulder_pan/offset": drift})
    made = run_batch(twin, task, params, run_seed=0, episodes=[0])
    readings = twin.units.to_si(made.observation)[0, :, 0]
    true = made.trajectories.qpos[0, :-1, twin.joint_qpos[0]]
    np.testing.assert_allclose(true - readings, drift[0], atol=STS3215_RESOLUTION)
    assert made.episode(0).provenance.extra["step_params"]["sensor/shoulder_pan/offset"] == drift[0].tolist()


@dataclass(frozen=True)
class _Breaks:
    """Holds still, and sends one world a command that is no number."""

    name: str = "breaks"

    def begin(self, worlds):
        def act(simulation):
            command = worlds.initial.command.copy()
            if simulation.step_index >= 5:
                command[1] = np.nan
            return command

        return act


def test_a_world_that_breaks_is_marked_with_its_reason_and_spoils_no_other(twin):
    task = open_task("pick_and_place", twin)
    made = run_batch(twin, task, twin.table(3), run_seed=0, episodes=[0, 1, 2], actor=_Breaks())
    records = [episode.provenance for episode in made.episodes()]
    assert [record.valid for record in records] == [True, False, True]
    assert records[1].invalid_reason == "mjWARN_BADCTRL in control step 5"
    assert not made.success.any()
    assert records[0].actor == "breaks"


def test_rows_and_episodes_must_agree(twin):
    task = open_task("pick_and_place", twin)
    with pytest.raises(InputError, match="2 rows of parameters for 3 episodes. Draw one row for each"):
        run_batch(twin, task, twin.table(2), run_seed=0, episodes=[0, 1, 2])
