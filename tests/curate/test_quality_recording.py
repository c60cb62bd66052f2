"""Planted recording errors are found, and good recordings give no finding."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.error_rates.quality.planted.edited import Edited
from benchmarks.error_rates.quality.planted.recording import RECORDING
from benchmarks.error_rates.quality.study import Bench
from support.quality import EPISODES, write_dataset
from twinloop.curate.check import select_worst_scores
from twinloop.curate.motion import compute_motion
from twinloop.curate.recording import open_recordings
from twinloop.curate.recording_checks.cameras import FrozenCamera
from twinloop.curate.recording_checks.channels import Truncated
from twinloop.curate.recording_checks.frames import DroppedFrames
from twinloop.curate.recording_checks.profiles import SwappedColumns, UnitConsistency

# At its largest size each is found in every episode; these two are always missed, see docs/evidence/curation.md.
MISSED = {"frames lost, clock made even", "joint held short of its command"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench("made up", open_recordings(write_dataset(tmp_path_factory.mktemp("good") / "set")), "recording")


def test_good_episodes_are_left_alone_and_every_check_speaks_of_each(bench):
    assert bench.false_alarms() == {}
    for check in bench.checks:
        assert len({score.episode_id for score in bench.before if score.check == check.name}) == EPISODES
    assert all(score.reason.endswith(".") for score in bench.before)


@pytest.mark.parametrize("name", sorted(set(RECORDING) - MISSED))
def test_a_large_mistake_is_found_by_the_check_that_names_it_and_no_other_episode_is_blamed(bench, name):
    defect = RECORDING[name]
    size = defect.sizes[-1]
    trial = bench.trial(defect, size, 1, seed=0)
    assert (trial.planted, trial.found, trial.wrongly) == (1, 1, 0), trial


def test_three_frames_lost_in_even_motion_are_counted_where_they_are_missing(bench):
    good = bench.recordings[0]
    fast = 10 + int(np.argmax(compute_motion(good).speed[10:-20]))
    rows = np.delete(np.arange(good.frame_count), np.arange(fast, fast + 3))
    (motion,) = [row for row in DroppedFrames().measure(Edited(good, rows=rows)) if row.channel == "motion"]
    assert abs(motion.value - 3) <= 1  # to a frame, as the motion is not quite even
    assert motion.first_frame == fast - 1


def test_a_frozen_camera_is_told_with_its_frames(bench):
    def freeze(camera, images):
        if camera == "wrist":
            images[50:71] = images[50]
        return images

    rows = FrozenCamera().measure(Edited(bench.recordings[2], images=freeze))
    front, wrist = sorted(rows, key=lambda row: row.channel)
    assert front.value == 0.0
    assert wrist.value == pytest.approx(20 / 30, abs=0.15)
    assert abs(wrist.first_frame - 50) <= 1
    assert abs(wrist.last_frame - 70) <= 1


def test_units_of_one_episode_are_told_by_the_factor_against_the_others(bench):
    def change(raw):
        return dataclasses.replace(raw, state=np.radians(raw.state), action=np.radians(raw.action))

    recordings = [Edited(bench.recordings[0], raw=change), *bench.recordings[1:]]
    score = select_worst_scores(UnitConsistency().score(recordings))[recordings[0].episode_id]
    assert score.verdict == "bad"
    assert score.value == pytest.approx(180 / np.pi, rel=0.1)
    assert "times that of the other episodes: another unit" in score.reason


def test_left_and_right_are_told_by_name(bench):
    def change(raw):
        for values in (raw.state, raw.action):
            values[:, [0, 1]] = values[:, [1, 0]]
        return raw

    recordings = [*bench.recordings[1:], Edited(bench.recordings[0], raw=change)]
    score = select_worst_scores(SwappedColumns().score(recordings))[recordings[-1].episode_id]
    assert score.verdict == "bad"
    assert score.channel.removeprefix("action/") == "left_pan/right_lift"


def test_a_failure_among_successes_is_suspect_and_a_label_can_say_otherwise(tmp_path):
    path = write_dataset(tmp_path / "set", cameras=False, failed=(4,))
    recordings = open_recordings(path)
    name = recordings[4].episode_id
    assert recordings[4].success is False
    told = select_worst_scores(Truncated().score(recordings))
    assert {key for key, score in told.items() if score.verdict != "good"} == {name}
    assert "8 of 9 episodes of its task reach it" in told[name].reason
    labelled = open_recordings(path, successes={name: True})
    assert {score.verdict for score in Truncated().score(labelled)} == {"good"}


def test_a_video_longer_than_the_table_is_compared_as_far_as_both_go(bench):
    short = Edited(bench.recordings[1], raw=lambda raw: dataclasses.replace(
        raw, time=raw.time[:-7], state=raw.state[:-7], action=raw.action[:-7]))  # fmt: skip
    assert [row.value for row in FrozenCamera().measure(short)] == [0.0, 0.0]
