"""Inputs and outputs of checks: recordings of any folder, limits of a good mass, the registry, stored scores."""

from __future__ import annotations

import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.error_rates.quality.planted.edited import Edited
from benchmarks.error_rates.studies import QUALITY
from benchmarks.studies import around
from support.quality import EPISODES, JOINTS, episode, write_dataset
from twinloop.catalog import Workspace
from twinloop.catalog.schema import SCORES
from twinloop.core.errors import InputError, LogError, UnknownNameError
from twinloop.core.pool import LocalProcesses
from twinloop.curate.check import CheckScore, EpisodeCheck, _hash_files, hash_sources, select_worst_scores
from twinloop.curate.judging import LEAST, estimate_usual_limit
from twinloop.curate.recording import open_recordings
from twinloop.curate.registry import CHECKS, open_checks
from twinloop.curate.run import score_all, scores_table
from twinloop.workflows.curate.curate import run_curate, show_scores
from twinloop.workflows.curate.report import shorten_reason
from twinloop.workflows.curate.requests import CurateRequest
from twinloop.workflows.curate.scores import CatalogTwins

NO_TWIN = CatalogTwins()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("good") / "good", cameras=False, failed=(4,))


@pytest.fixture(scope="module")
def foreign(dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign") / "foreign"
    shutil.copytree(dataset, folder)
    shutil.rmtree(folder / "twinloop")
    return folder


def test_a_recording_of_ours_says_everything_about_itself(dataset):
    recording = open_recordings(dataset)[3]
    made = episode(3)
    assert (recording.batch, recording.task, recording.fps, recording.success) == ("good", "wave", 30.0, True)
    assert recording.provenance is not None
    assert recording.episode_id == recording.reader.episode_ids[3]
    np.testing.assert_array_equal(recording.episode.state, made.observation.astype(np.float32))
    assert recording.raw.units.known
    assert (recording.states, recording.contacts, recording.cameras) == (None, None, ())


def test_a_foreign_recording_has_its_place_for_a_name_and_no_units(foreign):
    recording = open_recordings(foreign)[3]
    assert recording.episode_id == "foreign#3"
    assert recording.provenance is None
    assert recording.raw.joints == JOINTS
    assert not recording.raw.units.known
    assert recording.success is True
    assert open_recordings(foreign)[4].success is False


def test_a_recording_travels_as_a_place_and_reads_the_same_there(dataset):
    recording = open_recordings(dataset, [5], successes=None)[0]
    parcel = pickle.dumps(recording)
    assert len(parcel) < 1000
    np.testing.assert_array_equal(pickle.loads(parcel).raw.state, recording.raw.state)


def test_an_episode_that_is_not_there_is_refused(dataset):
    with pytest.raises(InputError, match="has no episode 9; it has 0 to 8"):
        open_recordings(dataset, [9])


def test_what_cannot_be_checked_is_unknown_with_the_reason(dataset):
    recordings = open_recordings(dataset)
    checks = open_checks(["physics/torque", "recording/blur", "physics/float"], NO_TWIN)
    told = {check.name: select_worst_scores(check.score(recordings)) for check in checks}
    assert {score.verdict for scores in told.values() for score in scores.values()} == {"unknown"}
    first = recordings[0].episode_id
    assert told["physics/torque"][first].reason == "episode 0 of good does not record its twin. Give one with --twin."
    assert told["recording/blur"][first].reason == "The recording has no camera."


def test_values_that_are_no_numbers_are_refused_as_an_episode_and_found_as_a_recording(dataset):
    def change(raw):
        raw.state[7, 1] = np.nan
        return raw

    edited = Edited(open_recordings(dataset)[0], raw=change)
    with pytest.raises(LogError, match="right_lift is nan at frame 7"):
        _ = edited.episode
    (check,) = open_checks(["recording/not_finite"], NO_TWIN)
    (score,) = check.score([edited])
    assert (score.verdict, score.channel, score.first_frame) == ("bad", "right_lift", 7)


def test_a_fifth_of_bad_episodes_does_not_move_the_limit_much():
    rng = np.random.default_rng(0)
    good = np.exp(rng.normal(scale=0.2, size=60))
    alone, with_bad = (
        estimate_usual_limit(x, floor=0.0) for x in (good, np.concatenate([good[:48], np.full(12, 100.0)]))
    )
    assert 2.0 < alone.value < 6.0
    assert with_bad.value < 3 * alone.value
    assert with_bad.verdict(100.0) == "bad"
    assert alone.verdict(float(np.median(good))) == "good"


def test_few_episodes_have_no_usual():
    assert estimate_usual_limit(np.ones(LEAST - 1), floor=1.0) is None
    assert estimate_usual_limit(np.ones(LEAST), floor=2.0).value == 2.0


def test_every_check_is_in_the_registry_under_its_own_name_and_says_what_it_looks_for():
    checks = open_checks([], NO_TWIN)
    assert [check.name for check in checks] == list(CHECKS)
    for check in checks:
        assert isinstance(check, EpisodeCheck)
        assert check.meaning
        assert not check.meaning.endswith(".")
        assert len(check.hash) == 64
    assert len({check.hash for check in checks}) == len(checks)


def test_the_page_lists_every_check_and_has_a_place_for_every_study():
    docs = Path(__file__).parents[2] / "docs"
    named = set(
        re.findall(
            r"`((?:physics|recording|demonstration|learned)/\w+)`", (docs / "guides" / "curation.md").read_text()
        )
    )
    assert named == set(CHECKS)
    for study in QUALITY.chosen():
        around(docs / study.page, f"benchmarks quality {study.name}")


def test_a_task_that_is_done_and_undone_again_has_failed(foreign, monkeypatch):
    recording = open_recordings(foreign)[3]
    held = np.arange(recording.frame_count) % recording.frame_count == 5
    monkeypatch.setattr(recording.reader, "array", lambda index, key: held[:, None].astype(np.float64))
    assert recording.success is False


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("learned/fake", "curate/learned/clips.py"),
        ("learned/support", "curate/demonstration/movement.py"),
        ("learned/support", "stats/novelty.py"),
        ("demonstration/path", "stats/novelty.py"),
        ("learned/fake", "encoders/trajectory.py"),
        ("recording/clock_jump", "dataset/logs/checks/timing.py"),
        ("recording/blur", "curate/recording_checks/frames.py"),
        ("physics/torque", "curate/judging.py"),
    ],
)
def test_a_hash_covers_the_files_that_metrics_come_from(name, file):
    (check,) = open_checks([name], NO_TWIN)
    sources = hash_sources(type(check))
    assert file in sources
    assert "curate/registry.py" not in sources


def test_other_code_beside_a_check_is_another_hash(tmp_path):
    (tmp_path / "helper.py").write_text("def figure(): return 1\n")
    (tmp_path / "check.py").write_text("from helper import figure\n")
    before = _hash_files(tmp_path)
    (tmp_path / "helper.py").write_text("def figure(): return 2\n")
    _hash_files.cache_clear()
    assert _hash_files(tmp_path) != before


OWN = """
from twinloop.curate.check import CheckScore
class Mine:
    name, meaning, hash = "demonstration/mine", "nothing", "0" * 64
    def score(self, recordings):
        for recording in recordings:
            yield CheckScore(episode_id=recording.episode_id, check=self.name, reason="Fine.")
class Nothing:
    name = "x"
class Nameless(Mine):
    name = "mine"
"""


def test_a_check_of_ones_own_comes_in_by_its_file(tmp_path, dataset):
    (tmp_path / "own.py").write_text(OWN)
    (check,) = open_checks([f"{tmp_path}/own.py:Mine"], NO_TWIN)
    scores = score_all(open_recordings(dataset), [check], LocalProcesses(1))
    assert [score.verdict for score in scores] == ["good"] * EPISODES
    with pytest.raises(InputError, match="is not a check of episodes: it lacks meaning, hash, score"):
        open_checks([f"{tmp_path}/own.py:Nothing"], NO_TWIN)
    with pytest.raises(InputError, match="A name is FAMILY/NAME"):
        open_checks([f"{tmp_path}/own.py:Nameless"], NO_TWIN)
    with pytest.raises(UnknownNameError, match="recording/blur"):
        open_checks(["recording/blurr"], NO_TWIN)


def test_the_worst_of_an_episode_is_what_counts():
    rows = [CheckScore(episode_id="a", check="x/y", verdict=v, value=f, limit=1.0) for v, f in
            (("unknown", None), ("good", 0.2), ("suspect", 2.0), ("suspect", 3.0))]  # fmt: skip
    assert select_worst_scores(rows)["a"].value == 3.0
    assert select_worst_scores(rows[:2])["a"].verdict == "good"


def test_scores_are_rows_of_the_catalog(dataset):
    recordings = open_recordings(dataset)
    checks = open_checks(["recording"], NO_TWIN)
    rows = scores_table(score_all(recordings, checks, LocalProcesses(1)), checks, "run")
    assert rows.schema == SCORES.schema
    keys = list(zip(*(rows[name].to_pylist() for name in SCORES.key), strict=True))
    assert len(keys) == len(set(keys))


def curate(dataset, console=None, **options):
    given = {"workspace": None, "where": "", "twin": None, "checks": "recording", "output": None, "fail_if": (),
             "workers": 1}  # fmt: skip
    return run_curate(
        CurateRequest(dataset=dataset, **given | options), console=console or Console(record=True, width=150)
    )


def test_a_folder_is_scored_without_a_workspace_and_conditions_decide(dataset, tmp_path):
    console = Console(record=True, width=150)
    metrics, code = curate(
        dataset,
        console,
        output=tmp_path / "out",
        fail_if=(
            "suspect > 0",
            "bad > 0",
        ),
    )
    assert code == 1
    assert metrics["verdicts"] == {"unreadable": 0, "bad": 0, "suspect": 1, "good": 8, "unknown": 0}
    assert (tmp_path / "out" / "result.json").is_file()
    text = console.export_text()
    assert re.search(r"recording/truncated +1 suspect +good:4 ", text)
    assert re.search(r"good:4 +suspect +recording/truncated ", text)
    assert max(map(len, text.splitlines())) <= 150
    assert "FAILED suspect > 0: suspect is 1" in text
    with pytest.raises(InputError, match="holds an earlier run"):
        curate(dataset, output=tmp_path / "out")
    with pytest.raises(InputError, match="--where selects episodes of a workspace"):
        curate(dataset, where="TRUE")


def test_a_workspace_keeps_scores_and_the_selection_leaves_out_what_is_bad(dataset, tmp_path):
    console = Console(record=True, width=150)
    with Workspace.create(tmp_path / "ws") as held:
        held.add(dataset)
        names = [recording.episode_id for recording in open_recordings(dataset)]
    metrics, code = curate(None, workspace=tmp_path / "ws", where="NOT success", checks="recording/truncated")
    assert code == 0
    assert [row["episode_id"] for row in metrics["scores"] if row["verdict"] == "suspect"] == []  # no other is there
    curate(None, workspace=tmp_path / "ws", checks="recording/truncated,recording/clock_jump")
    with Workspace.open(tmp_path / "ws") as held:
        rows = held.query("SELECT episode_id FROM scores WHERE verdict = 'suspect'").to_pylist()
        assert [row["episode_id"] for row in rows] == [names[4]]
        run = held.query("SELECT verb FROM runs").to_pylist()
        assert [row["verb"] for row in run] == ["curate", "curate"]
        shown, code = show_scores(CurateRequest(show="good:4", workspace=held.root), console=console)
        assert (code, shown["episode"], shown["scores"][0]["verdict"]) == (0, names[4], "suspect")
        assert "recording/clock_jump" in console.export_text()
        with pytest.raises(InputError, match="No score of good:4 is stored by these checks"):
            show_scores(CurateRequest(show="good:4", workspace=held.root, checks="learned"), console=console)
        kept = held.query(metrics["selection"].replace("(NOT success) AND ", "")).to_pylist()
        assert len(kept) == EPISODES


def test_a_reason_is_cut_after_a_whole_clause():
    clause = "It looks simulated: its jerk is 3 rad/s³, nine of ten real clips have 4 to 6"
    assert shorten_reason(clause) == clause
    assert shorten_reason(f"{clause}; {'and so on ' * 20}") == f"{clause} …"
    assert 150 < len(shorten_reason("word " * 100)) <= 160 + 2


def test_a_twin_that_is_named_must_be_the_robots(dataset, tmp_path):
    with pytest.raises(UnknownNameError, match="Unknown twin 'nope'"):
        curate(dataset, twin="nope")
    with pytest.raises(InputError, match=r"panda_tabletop has no joint of the data: .*those of good are left_pan"):
        curate(dataset, twin="panda_tabletop", checks="recording/clock_jump", output=tmp_path / "out")
    assert not (tmp_path / "out" / "result.json").exists()
    console = Console(record=True, width=150)
    curate(dataset, console, twin="so101_tabletop", checks="recording/clock_jump")  # both have a gripper
    assert "so101_tabletop lacks joints of good: left_pan, right_lift." in console.export_text()


def test_nothing_to_score_is_said(tmp_path):
    with Workspace.create(tmp_path / "ws"):
        pass
    with pytest.raises(InputError, match="There is no episode to score"):
        curate(None, workspace=tmp_path / "ws")


@pytest.mark.slow
def test_scores_do_not_depend_on_processes(dataset):
    recordings = open_recordings(dataset)
    checks = open_checks(["recording"], NO_TWIN)
    alone = score_all(recordings, checks, LocalProcesses(1))
    with LocalProcesses(2) as engine:
        assert score_all(recordings, checks, engine) == alone


def test_a_finding_that_is_mended_is_gone_with_the_next_run_and_stays_in_the_history(dataset, tmp_path):
    with Workspace.create(tmp_path / "ws") as held:
        held.add(dataset)
        first, other = (recording.episode_id for recording in open_recordings(dataset, [0, 1]))
        check = open_checks(["recording/truncated"], NO_TWIN)
        wrong = [CheckScore(episode_id=name, check="recording/truncated", channel="end", verdict="bad", reason="Once.")
                 for name in (first, other)]  # fmt: skip
        held.append("scores", scores_table(wrong, check, "0"), run_id="0")
    where = f"episode_id = '{first}'"
    curate(None, workspace=tmp_path / "ws", checks="recording/truncated", where=where)
    with Workspace.open(tmp_path / "ws") as held:
        rows = held.query("SELECT episode_id, verdict FROM scores").to_pylist()
        assert {row["verdict"] for row in rows if row["episode_id"] == first} == {"good"}
        assert [row["verdict"] for row in rows if row["episode_id"] == other] == ["bad"]  # the run did not look at it
        history = held.query("SELECT verdict FROM score_history WHERE episode_id = ?", [first]).to_pylist()
        assert "bad" in {row["verdict"] for row in history}
