"""Episodes that cannot be read are named, and no selection of good episodes contains them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from _damaged import (
    CAMERA,
    curate,
    data_file,
    emptied,
    flip,
    rewritten,
    verdicts,
    video_file,
    with_column,
    write_videos,
)

from twinloop.catalog import Workspace
from twinloop.cli.main import main
from twinloop.core.errors import DatasetError, InputError
from twinloop.dataset.lerobot.reader import DatasetReader

GOOD = "verdict unreadable, with file and reason; no good selection has the episode"
NOT_GOOD = "no score of the episode is good, and no selection has it"
FRAMES = "data/chunk-000/file-000.parquet"


@pytest.fixture(name="made", scope="module")
def made_once(tmp_path_factory):
    return write_videos(tmp_path_factory.mktemp("made") / "first")


@pytest.fixture(name="folder")
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / "cell" / "data" / "first")


def selected(root: Path, metrics: dict) -> set[int]:
    """Return the episodes of every selection of good: the selection, SQL on verdicts, and its dataset version."""
    with Workspace.open(root) as ws:
        names = {row["episode_id"]: row["episode_index"] for row in ws.query("SELECT * FROM episodes").to_pylist()}
        good = ws.query("SELECT DISTINCT episode_id FROM scores WHERE verdict = 'good'")["episode_id"].to_pylist()
        chosen = ws.query(metrics["selection"])["episode_id"].to_pylist()
        frozen = list(ws.freeze("good", metrics["selection"]).episode_ids) if chosen else []
    return {names[name] for name in (*good, *chosen, *frozen)}


def told_at_add(root: Path, folder: Path) -> tuple[str, ...]:
    with Workspace.create(root) as ws:
        return ws.add(folder).unreadable


def require_unreadable(folder: Path, episodes: set[int], file: str, observed, *, added: bool = True, **options) -> None:
    """Add and curate a folder; these episodes must be unreadable, in no selection, and the file named."""
    root = folder.parents[1]
    sentences = told_at_add(root, folder)
    metrics = curate(root, **options)
    found = verdicts(metrics)
    reasons = {row["reason"] for row in metrics["scores"] if row["verdict"] == "unreadable"}
    observed(next(iter(reasons), "no reason"))
    assert {index for index, of in found.items() if "unreadable" in of} == episodes
    assert all(found[index] == {"unreadable"} for index in episodes)
    assert all(Path(file).name in reason for reason in reasons)
    assert selected(root, metrics) == set(found) - episodes
    assert bool([text for text in sentences if Path(file).name in text]) is added, sentences


def put(values):
    """Return a column of actions whose first value is another one."""

    def change(table: pa.Table) -> pa.Table:
        rows = np.array(table["action"].to_pylist(), dtype=np.float64)
        return with_column(table, "action", values(rows))

    return change


def column(name: str, kind: pa.DataType):
    return lambda table: with_column(table, name, pa.nulls(len(table), kind))


def listed(widths):
    """Return a change that makes lists of other lengths of the actions."""
    return put(lambda rows: pa.array([row[: widths(number)].tolist() for number, row in enumerate(rows)],
                                     pa.list_(pa.float32())))  # fmt: skip


WITHIN = {
    "action": lambda table: emptied(table, "action", 3),
    "observation.state": lambda table: emptied(table, "observation.state", 3),
    "timestamp": lambda table: emptied(table, "timestamp", 3),
    "index": lambda table: emptied(table, "index", 3),
    "task_index": lambda table: emptied(table, "task_index", 3),
    "next.success": lambda table: emptied(table, "next.success", 3),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.attack(f"one null cell in the column {name} of a data file", expected=GOOD),
                *[pytest.mark.slow] * (name not in ("action", "index")),
            ],
        )
        for name in WITHIN
    ],
)
def test_a_null_cell_makes_its_episode_unreadable(folder, observed, name):
    rewritten(data_file(folder), WITHIN[name])
    require_unreadable(folder, {0}, FRAMES, observed, only=["recording/clock_jump", "recording/spikes"])


@pytest.mark.slow
@pytest.mark.attack("one null inside the list of one action", expected=GOOD)
def test_a_null_in_a_list_is_found(folder, observed):
    def change(rows: np.ndarray) -> pa.Array:
        values = rows.tolist()
        values[3][1] = None
        return pa.array(values, pa.list_(pa.float32(), 3))

    rewritten(data_file(folder), put(change))
    require_unreadable(folder, {0}, FRAMES, observed, only=["physics/jerk"])


WHOLE = [
    pytest.param(column("action", pa.list_(pa.float32(), 3)), id="null-actions",
                 marks=pytest.mark.attack("a column of actions that is null throughout", expected=GOOD)),
    pytest.param(column("timestamp", pa.float32()), id="null-times",
                 marks=[pytest.mark.attack("a column of timestamps that is null throughout", expected=GOOD),
                        pytest.mark.slow]),
    pytest.param(column("observation.state", pa.null()), id="null-type",
                 marks=[pytest.mark.attack("a column of states of Parquet's type null", expected=GOOD),
                        pytest.mark.slow]),
    pytest.param(listed(lambda _number: 2), id="narrow",
                 marks=pytest.mark.attack("actions with two values where the metadata say three", expected=GOOD)),
    pytest.param(lambda table: with_column(table, "action", pa.array(["left"] * len(table))), id="text",
                 marks=[pytest.mark.attack("actions that are texts", expected=GOOD),
                        pytest.mark.slow]),
    pytest.param(lambda table: table.drop_columns(["observation.state"]), id="dropped",
                 marks=pytest.mark.attack("a data file without the column of states", expected=GOOD)),
]  # fmt: skip


@pytest.mark.parametrize("change", WHOLE)
def test_a_column_that_is_no_numbers_makes_all_its_episodes_unreadable(folder, observed, change):
    rewritten(data_file(folder), change)
    require_unreadable(folder, {0, 1, 2}, FRAMES, observed, only=["recording/spikes"])


@pytest.mark.attack("a data file with two columns of actions", expected="add refuses it and names the file")
def test_two_columns_of_one_name_are_refused(folder, observed):
    rewritten(data_file(folder), lambda table: table.append_column("action", table["action"]))
    with pytest.raises(DatasetError, match=r"file-000\.parquet has 2 columns action") as error:
        told_at_add(folder.parents[1], folder)
    observed(error.value)


@pytest.mark.slow
@pytest.mark.attack("one action with another number of values than the others", expected=GOOD)
def test_a_list_of_another_length_is_found(folder, observed):
    rewritten(data_file(folder), listed(lambda number: 2 if number == 3 else 3))
    require_unreadable(folder, {0}, FRAMES, observed, only=["recording/spikes"])


@pytest.mark.attack("a timestamp that is NaN", expected=GOOD)
def test_a_time_that_is_no_number_is_found(folder, observed):
    def change(table: pa.Table) -> pa.Table:
        times = table["timestamp"].to_numpy().copy()
        times[4] = np.nan
        return with_column(table, "timestamp", pa.array(times))

    rewritten(data_file(folder), change)
    require_unreadable(folder, {0}, FRAMES, observed, added=False, only=["recording/spikes"])


@pytest.mark.parametrize("value", [
    pytest.param(np.nan, marks=pytest.mark.attack("an action that is NaN", expected="verdict bad, in no selection")),
    pytest.param(-np.inf, marks=pytest.mark.attack("an action that is −∞", expected="verdict bad, in no selection")),
])  # fmt: skip
def test_an_action_that_is_not_finite_is_bad(folder, observed, value):
    def change(rows: np.ndarray) -> pa.Array:
        rows[3, 1] = value
        return pa.array(rows.tolist(), pa.list_(pa.float32(), 3))

    rewritten(data_file(folder), put(change))
    told_at_add(folder.parents[1], folder)
    metrics = curate(folder.parents[1], only=["recording/not_finite"])
    observed(metrics["verdicts"])
    assert "bad" in verdicts(metrics)[0]
    with Workspace.open(folder.parents[1]) as ws:
        assert len(ws.query(metrics["selection"])) == 4


def cut(share: float):
    def harm(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])

    return harm


def test_a_whole_dataset_has_nothing_unreadable(folder):
    assert told_at_add(folder.parents[1], folder) == ()
    metrics = curate(folder.parents[1], only=["physics/float"])
    assert metrics["verdicts"] == {"unreadable": 0, "bad": 0, "suspect": 0, "good": 0, "unknown": 5} or (
        metrics["verdicts"]["unreadable"] == 0
    )


VIDEOS = [
    *(pytest.param(cut(share), None, id=f"cut-{share:.2f}", marks=[pytest.mark.attack(
        f"a video that is cut off after {share:.0%} of its bytes", expected=GOOD),
        *[pytest.mark.slow] * (share not in (0.1, 0.5, 0.98))]) for share in
      (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)),
    pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-1]), None, id="cut-1",
                 marks=pytest.mark.attack("a video that lacks its last byte", expected=GOOD)),
    pytest.param(lambda path: path.write_bytes(b""), {0, 1, 2}, id="empty",
                 marks=pytest.mark.attack("a video of zero bytes", expected=GOOD)),
    pytest.param(lambda path: path.unlink(), {0, 1, 2}, id="gone",
                 marks=pytest.mark.attack("a video that is missing", expected=GOOD)),
    pytest.param(lambda path: path.write_bytes(os.urandom(5000)), {0, 1, 2}, id="noise",
                 marks=pytest.mark.attack("random bytes in place of a video", expected=GOOD)),
    pytest.param(lambda path: path.write_bytes(b"%PDF-1.7\n" + b" " * 4000), {0, 1, 2}, id="other-format",
                 marks=pytest.mark.attack("a document in place of a video", expected=GOOD)),
    pytest.param(lambda path: shutil.copy(video_file(path.parents[3], 2), path), None, id="shorter-video",
                 marks=pytest.mark.attack("the shorter video of another block in place of a video", expected=GOOD)),
]  # fmt: skip


@pytest.mark.parametrize(("harm", "episodes"), VIDEOS)
def test_a_video_that_is_cut_off_makes_its_last_episodes_unreadable(folder, observed, harm, episodes):
    """Wherever it is cut, the last episode is unreadable, and those that are whole stay readable."""
    path = video_file(folder)
    harm(path)
    root = folder.parents[1]
    sentences = told_at_add(root, folder)
    metrics = curate(root, only=["recording/clock_jump"])
    found = verdicts(metrics)
    wrong = {index for index, of in found.items() if of == {"unreadable"}}
    reasons = {row["reason"] for row in metrics["scores"] if row["verdict"] == "unreadable"}
    observed(f"episodes {sorted(wrong)} unreadable: {next(iter(reasons), '')}")
    assert {2} <= wrong <= {0, 1, 2}
    assert wrong == (episodes or wrong)
    assert all(path.name in reason and CAMERA in reason for reason in reasons)
    assert any(str(path) in sentence for sentence in sentences)
    assert selected(root, metrics) == set(found) - wrong
    for index in wrong:  # every file called unreadable is: the reader refuses it, and names the file
        with pytest.raises(DatasetError, match=path.name):
            DatasetReader(folder).images(index, CAMERA)


@pytest.mark.attack("a video whose frames in the middle are zeros", expected=GOOD)
def test_a_hole_in_a_video_is_found_by_checks_of_cameras(folder, observed):
    path = video_file(folder)
    data = bytearray(path.read_bytes())
    begin = len(data) // 3
    data[begin : begin + 3000] = bytes(3000)
    path.write_bytes(data)
    told_at_add(folder.parents[1], folder)
    metrics = curate(folder.parents[1], only=["recording/blur"])
    wrong = {index for index, of in verdicts(metrics).items() if of == {"unreadable"}}
    observed(f"episodes {sorted(wrong)}")
    assert wrong
    assert not selected(folder.parents[1], metrics) & wrong


def lengths(values: dict[int, int]):
    """Return a change of the episode table's lengths."""

    def change(table: pa.Table) -> pa.Table:
        rows = table["length"].to_pylist()
        for index, length in values.items():
            rows[index] = length
        return with_column(table, "length", pa.array(rows, pa.int64()))

    return change


@pytest.mark.attack("an episode table that gives an episode no frames", expected="refused, or verdict unreadable")
def test_an_episode_without_frames_is_not_good(folder, observed):
    rewritten(folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet", lengths({1: 0}))
    refused_or_unreadable(folder, {1}, observed)


@pytest.mark.slow
@pytest.mark.attack("an episode table with more frames than the data file has", expected="refused, or unreadable")
def test_more_frames_than_there_are_are_not_good(folder, observed):
    rewritten(folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet", lengths({2: 40}))
    refused_or_unreadable(folder, {2}, observed)


def refused_or_unreadable(folder: Path, episodes: set[int], observed) -> None:
    root = folder.parents[1]
    try:
        told_at_add(root, folder)
        metrics = curate(root, only=["recording/clock_jump"])
    except InputError as error:
        observed(error)
        return
    found = verdicts(metrics)
    observed(f"episodes {[index for index, of in found.items() if of == {'unreadable'}]} unreadable")
    assert all(found[index] == {"unreadable"} for index in episodes)
    assert not selected(root, metrics) & episodes


@pytest.mark.slow
@pytest.mark.attack("the rows of two episodes swapped in a data file", expected=GOOD)
def test_swapped_rows_are_found(folder, observed):
    def change(table: pa.Table) -> pa.Table:
        first = len(table.filter(pa.compute.equal(table["episode_index"], 0)))
        return pa.concat_tables([table.slice(first), table.slice(0, first)])

    rewritten(data_file(folder), change)
    require_unreadable(folder, {0, 1, 2}, FRAMES, observed, added=False, only=["recording/clock_jump"])


@pytest.mark.attack("a byte of the simulator's states flipped", expected=GOOD)
def test_states_that_cannot_be_read_are_found(folder, observed):
    path = folder / "twinloop" / "states" / "chunk-000" / "file-000.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    root = folder.parents[1]
    with Workspace.create(root) as ws, pytest.raises(DatasetError, match=r"file-000.parquet is truncated"):
        ws.add(folder)
    metrics = curate(None, dataset=folder, only=["recording/clock_jump"])
    observed(metrics["scores"][0]["reason"])
    assert {index for index, of in verdicts(metrics).items() if of == {"unreadable"}} == {0, 1, 2}


@pytest.mark.attack("a line of provenance that is no JSON", expected=GOOD)
def test_provenance_that_cannot_be_read_is_found(folder, observed):
    told_at_add(folder.parents[1], folder)
    flip(folder / "twinloop" / "provenance" / "chunk-000" / "file-000.jsonl", 0)
    metrics = curate(folder.parents[1], only=["recording/spikes", "recording/units"])
    observed(metrics["scores"][0]["reason"])
    assert verdicts(metrics)[0] == {"unreadable"}
    assert selected(folder.parents[1], metrics) == {1, 2, 3, 4}


@pytest.mark.attack("a good episode whose video is cut off after it was curated, and one other check asked for",
                    expected="the good scores of the earlier run count no more")  # fmt: skip
def test_an_earlier_good_score_does_not_outlive_the_file(folder, observed):
    root = folder.parents[1]
    told_at_add(root, folder)
    assert selected(root, curate(root, only=["recording/clock_jump", "recording/spikes"])) == {0, 1, 2, 3, 4}
    cut(0.5)(video_file(folder))
    metrics = curate(root, only=["recording/units"])
    observed(metrics["verdicts"])
    assert 2 not in selected(root, metrics)


@pytest.mark.slow
@pytest.mark.attack("a file that was repaired, curated again", expected="the verdict unreadable is gone")
def test_what_was_repaired_is_readable_again(folder, observed):
    root, path = folder.parents[1], video_file(folder)
    told_at_add(root, folder)
    whole = path.read_bytes()
    cut(0.5)(path)
    assert curate(root, only=["recording/spikes"])["verdicts"]["unreadable"] > 0
    path.write_bytes(whole)
    metrics = curate(root, only=["recording/spikes"])
    observed(metrics["verdicts"])
    assert selected(root, metrics) == {0, 1, 2, 3, 4}


OWN = """
from twinloop.core.errors import DatasetError, InputError
from twinloop.curate.check import Measurement, MeasuringCheck, CheckScore
class Plain:
    name, meaning, hash = "demonstration/mine", "nothing", "0" * 64
    def score(self, recordings):
        for recording in recordings:
            if recording.index == 2:
                raise {error}
            yield CheckScore(episode_id=recording.episode_id, check=self.name, reason="Fine.")
class Measuring(MeasuringCheck):
    name, meaning = "demonstration/mine", "nothing"
    def measure(self, recording):
        if recording.index == 2:
            raise {error}
        return [Measurement(value=0.0)]
    def judge(self, recordings, measured):
        for recording, rows in zip(recordings, measured):
            yield self.make_score(recording, rows[0], "good" if rows[0].value is not None else "unknown")
class Judging(Measuring):
    def measure(self, recording):
        return [Measurement(value=0.0)]
    def judge(self, recordings, measured):
        raise {error}
class Verdict(Plain):
    def score(self, recordings):
        for recording in recordings:
            yield CheckScore(episode_id=recording.episode_id, check=self.name, verdict="GOOD")
class Nan(Measuring):
    def measure(self, recording):
        return [Measurement(value=float("nan") if recording.index == 2 else 1.0)]
class Silent(Plain):
    def score(self, recordings):
        return []
class Stranger(Plain):
    def score(self, recordings):
        yield CheckScore(episode_id="f" * 64, check=self.name, verdict="good")
"""
ERRORS = ("ValueError('no')", "DatasetError('gone')", "InputError('cannot tell')", "KeyError(3)", "MemoryError()",
          "AssertionError()")  # fmt: skip


@pytest.mark.parametrize("kind", ["Plain", "Measuring"])
@pytest.mark.parametrize(
    "error",
    [pytest.param(error, marks=[pytest.mark.attack(f"a check of the user's that raises {error} on one episode",
                                                   expected=NOT_GOOD), *[pytest.mark.slow] * (error not in ERRORS[:2])])
     for error in ERRORS],
)  # fmt: skip
def test_an_episode_on_which_a_check_raises_is_not_good(folder, observed, tmp_path, kind, error):
    (tmp_path / "own.py").write_text(OWN.replace("{error}", error))
    root = folder.parents[1]
    told_at_add(root, folder)
    metrics = curate(root, only=[f"{tmp_path}/own.py:{kind}", "recording/clock_jump"])
    reason = next(row["reason"] for row in metrics["scores"] if row["verdict"] == "unreadable")
    observed(reason)
    assert verdicts(metrics)[2] == {"unreadable"}
    assert selected(root, metrics) == {0, 1, 3, 4}


@pytest.mark.parametrize(("kind", "message"), [
    pytest.param("Judging", "demonstration/mine raised ValueError: no", marks=pytest.mark.attack(
        "a check of the user's that raises when it judges all episodes", expected="refused; nothing is scored")),
    pytest.param("Verdict", "gave the verdict 'GOOD'", marks=pytest.mark.attack(
        "a check of the user's with a verdict that there is not", expected="refused; nothing is scored")),
    pytest.param("Stranger", "for the episode 'ffff", marks=pytest.mark.attack(
        "a check of the user's that scores an episode it was not asked about", expected="refused; nothing is scored")),
])  # fmt: skip
def test_a_check_that_says_what_cannot_be_is_refused(folder, observed, tmp_path, kind, message):
    (tmp_path / "own.py").write_text(OWN.replace("{error}", "ValueError('no')"))
    root = folder.parents[1]
    told_at_add(root, folder)
    with pytest.raises(InputError, match=message) as refused:
        curate(root, only=[f"{tmp_path}/own.py:{kind}"])
    observed(refused.value)
    with Workspace.open(root) as ws:
        assert len(ws.query("SELECT * FROM scores")) == 0


@pytest.mark.attack("a check of the user's whose figure is NaN", expected="verdict unknown, not good")
def test_a_metric_that_is_no_number_is_unknown(folder, observed, tmp_path):
    (tmp_path / "own.py").write_text(OWN.replace("{error}", "ValueError()"))
    told_at_add(folder.parents[1], folder)
    metrics = curate(folder.parents[1], only=[f"{tmp_path}/own.py:Nan"])
    own = {row["episode_index"]: row["verdict"] for row in metrics["scores"] if row["check"] == "demonstration/mine"}
    observed(own)
    assert own == {0: "good", 1: "good", 2: "unknown", 3: "good", 4: "good"}


@pytest.mark.attack("a check of the user's that passes over every episode", expected="verdict unknown, not good")
def test_a_check_that_says_nothing_is_unknown(folder, observed, tmp_path):
    (tmp_path / "own.py").write_text(OWN.replace("{error}", "ValueError()"))
    told_at_add(folder.parents[1], folder)
    metrics = curate(folder.parents[1], only=[f"{tmp_path}/own.py:Silent"])
    observed(metrics["verdicts"])
    assert metrics["verdicts"]["unknown"] == 5


@pytest.mark.attack("a curated folder without a workspace whose video is cut off, with a condition on unreadable",
                    expected="exit code 1")  # fmt: skip
def test_a_condition_sees_what_is_unreadable(folder, observed, capsys):
    cut(0.6)(video_file(folder))
    code = main(["curate", str(folder), "--checks", "recording/spikes", "--fail-if", "unreadable > 0"])
    text = capsys.readouterr().out
    observed(code)
    assert code == 1
    assert "cannot be read" in text
    assert video_file(folder).name in text


@pytest.mark.attack("a null cell in a dataset that a policy is to be trained on", expected="refused: file and episode")
def test_reading_for_training_names_file_and_episode(folder, observed):
    rewritten(data_file(folder), WITHIN["action"])
    with pytest.raises(DatasetError, match="action of episode 0 has 1 empty") as refused:
        DatasetReader(folder).array(0, "action")
    observed(refused.value)


@pytest.mark.attack("a null cell of a dataset that `twinloop add` is given, on the command line",
                    expected="exit code 0, the file and the column in a line")  # fmt: skip
def test_add_says_what_cannot_be_read(folder, observed, capsys):
    rewritten(data_file(folder), WITHIN["action"])
    with Workspace.create(folder.parents[1]):
        pass
    assert main(["add", str(folder), "--workspace", str(folder.parents[1]), "--json"]) == 0
    streams = capsys.readouterr()
    (sentence,) = json.loads(streams.out)["batches"][0]["unreadable"]
    observed(sentence)
    assert sentence == f"{data_file(folder)} has 1 empty values in action."
    assert sentence in " ".join(streams.err.split())


def test_the_footer_of_a_whole_file_says_nothing(made):
    """Row groups with and without statistics: unknown is not reported as empty."""
    from twinloop.dataset.lerobot.validation import find_unreadable_files

    reader = DatasetReader(made)
    tables = sorted(path.relative_to(made).as_posix() for path in (made / "meta" / "episodes").glob("*/*.parquet"))
    assert find_unreadable_files(made, reader.info, tables) == []
    assert pq.read_metadata(data_file(made)).num_row_groups >= 1
