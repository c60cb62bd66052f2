"""Tables, datasets and folders of trials, and errors in them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from twinloop.core.errors import DatasetError, InputError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.trials import read_both_domains, read_trials
from twinloop.dataset.trials_table import is_score_table, read_rows, read_scores


def _write(path, text):
    path.write_text(text)
    return path


def test_a_row_per_trial(tmp_path):
    text = """# written by hand
policy,domain,success,progress,task,condition/light,condition/pose,pair,note
a,real,1,1.0,lift,bright,left,p1,"ok, good"
a,sim,no,0.25,lift,bright,left,p1,
b,simulation,,0.5,lift,,,,
"""
    trials = read_trials(_write(tmp_path / "t.csv", text))
    assert trials.policy == ("a", "a", "b")
    assert trials.domain == ("real", "sim", "sim")
    assert trials.success == (True, False, None)
    assert trials.score.tolist() == [1.0, 0.25, 0.5]
    assert trials.condition == ("light=bright, pose=left", "light=bright, pose=left", "")
    assert trials.pair == ("p1", "p1", "")


def test_counts_json_and_a_folder_of_policies_say_the_same(tmp_path):
    counts = _write(tmp_path / "c.csv", "model,domain,successes,trials\na,real,2,3\na,sim,1,2\n")
    rows = [{"policy": "a", "domain": "real", "success": x} for x in (True, True, False)]
    rows += [{"policy": "a", "domain": "sim", "success": x} for x in (1, 0)]
    listed = _write(tmp_path / "l.json", json.dumps(rows))
    columns = _write(tmp_path / "k.json", json.dumps({"trials": rows}))
    (tmp_path / "real").mkdir()
    (tmp_path / "sim").mkdir()
    _write(tmp_path / "real" / "a.csv", "success\n1\n1\n0\n")
    _write(tmp_path / "sim" / "a.csv", "success\n1\n0\n")
    first = read_trials(counts)
    assert first.real.counts() == (2, 3)
    for other in (read_trials(listed), read_trials(columns), read_both_domains(tmp_path / "real", tmp_path / "sim")):
        assert (other.policy, other.domain, other.success) == (first.policy, first.domain, first.success)
    again = _write(tmp_path / "again.json", json.dumps(first.to_json() | {"score": first.score.tolist()}))
    assert read_trials(again).success == first.success


def test_a_table_of_means_by_task(tmp_path):
    text = "task,policy,real,sim,real_trials,sim_sd,sim_trials\nx,a,.5,.4,10,.1,20\nx,b,.1,.2,10,.1,20\ny,a,1,1,,,\n"
    path = _write(tmp_path / "s.csv", text)
    assert is_score_table(read_rows(path))
    first, second = read_scores(path)
    assert (first.task, first.policies) == ("x", ("a", "b"))
    assert first.real.trials.tolist() == [10, 10]
    assert (first.sim.trials > 100).all()
    assert not second.real.has_trial_counts


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("policy,success\na,1\n", "no column domain .*--real FILE --sim FILE"),
        ("domain,success\nreal,1\n", "no column policy. It has: domain, success"),
        ("policy,domain\na,real\n", "no column success or score"),
        ("policy,domain,success\na,real,0.7\n", "row 1: success is '0.7'. Write 1 or 0"),
        ("policy,domain,score\na,real,75\n", "row 1: score 75 is outside 0 to 1"),
        ("policy,domain,score\na,real,abc\n", "row 1: score is 'abc', not a number"),
        ("policy,domain,success\na,mars,1\n", "row 1: domain is 'mars'"),
        ("policy,domain,success,score\na,real,,\n", "row 1 has neither a success nor a score"),
        ("policy,domain,successes,trials\na,real,4,3\n", "successes '4' of trials '3' are not valid counts"),
        ("policy,domain,successes,trials\na,real,4,\n", "not valid counts"),
        ("policy,domain,success\na,real,1,2\n", "row 1 has more cells"),
        ("policy,domain,success\n", "has no rows"),
        ("policy,real,sim\na,.5,.5\n", "holds mean scores .*, not trials: see 'twinloop gap predictivity'"),
    ],
)
def test_what_a_table_lacks_is_named(tmp_path, text, words):
    with pytest.raises(InputError, match=words):
        read_trials(_write(tmp_path / "t.csv", text))


def test_what_means_lack_is_named(tmp_path):
    for text, words in (
        ("policy,real,sim\na,90,.5\n", "row 1: real score '90' is not a number from 0 to 1"),
        ("policy,real,sim\na,.5,\n", "row 1: sim score '' is not a number"),
        ("policy,real,sim\na,.5,.5\na,.4,.5\n", "policy a has 2 rows"),
        ("real,sim\n.5,.5\n", "no column policy"),
    ):
        with pytest.raises(InputError, match=words):
            read_scores(_write(tmp_path / "s.csv", text))


def test_domains_that_contradict_or_lack_are_named(tmp_path):
    real = _write(tmp_path / "real.csv", "policy,domain,success\na,real,1\na,sim,1\n")
    with pytest.raises(InputError, match=r"real.csv was given as real, but 1 of its 2 trials have another domain"):
        read_both_domains(real, None)
    with pytest.raises(InputError, match="no sim trials. Both domains"):
        read_both_domains(_write(tmp_path / "r.csv", "policy,success\na,1\n"), None)
    with pytest.raises(InputError, match="does not exist"):
        read_trials(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no trials"):
        read_trials(tmp_path / "empty")


def _dataset(folder, ends, *, told=True, **columns):
    """A v3.0 dataset of episodes of three frames; ``ends`` is next.success of their last one."""
    n = len(ends)
    frames = {"episode_index": np.repeat(np.arange(n), 3), "frame_index": np.tile(np.arange(3), n)}
    if told:
        frames["next.success"] = np.array([[False, not end, end] for end in ends]).ravel()
    rows = [
        {"episode_index": i, "length": 3, "tasks": ["lift"], "data/chunk_index": 0, "data/file_index": 0}
        | {"dataset_from_index": 3 * i}
        | {name.replace("__", "/"): values[i] for name, values in columns.items()}
        for i in range(n)
    ]
    for path, table in (
        (layout.block_path(layout.DATA_PATH, 0), pa.table(frames)),
        (layout.block_path(layout.EPISODES_PATH, 0), pa.Table.from_pylist(rows)),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / path)
    features = {name: {"dtype": "int64", "shape": [1], "names": None} for name in frames}
    info = {"codebase_version": "v3.0", "fps": 30, "total_episodes": n, "total_frames": 3 * n}
    info |= {"data_path": layout.DATA_PATH, "features": features}
    (folder / layout.INFO).write_text(json.dumps(info))
    return folder


def test_a_dataset_of_another_program_says_how_episodes_end(tmp_path):
    path = _dataset(tmp_path / "act", [True, False, True])
    trials = read_trials(path, domain="real")
    assert trials.success == (True, False, True)  # the last frame counts, not any of them
    assert (trials.policies, trials.tasks) == (("act",), ("lift",))
    with pytest.raises(InputError, match="the source of an episode is .*, neither real nor sim"):
        read_trials(path)
    _dataset(tmp_path / "diffusion", [False, False])
    several = read_trials(tmp_path, domain="sim")
    assert several.policies == ("act", "diffusion")


def test_our_own_dataset_says_policy_domain_and_success(tmp_path):
    own = {"provenance__success": [False, True], "provenance__source": ["sim"] * 2, "provenance__actor": ["a", "b"]}
    trials = read_trials(_dataset(tmp_path / "d", [True, True], **own))
    assert (trials.policy, trials.domain, trials.success) == (("a", "b"), ("sim", "sim"), (False, True))


def test_a_dataset_without_outcomes_is_refused(tmp_path):
    with pytest.raises(DatasetError, match="episode 0 has no outcome"):
        read_trials(_dataset(tmp_path / "d", [True], told=False), domain="real")
