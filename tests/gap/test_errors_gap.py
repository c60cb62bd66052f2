"""Invalid words and files of ``twinloop gap`` are refused in one line that names the next step."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from twinloop.cli.main import main
from twinloop.core.records import Episode, LoggedSignal, Source
from twinloop.core.units import JointUnit, UnitMap
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.gap.sensors.measure import measure_sensors

HZ = 30.0


def log(seed: int, *, source: Source = "real", count=6, joint="elbow", frames=240, noise=1e-3):
    """Episodes of a joint that follows a sine 0.1 s late."""
    units = UnitMap(joints=(JointUnit(joint=joint, unit="rad", scale=1.0, offset=0.0),), source="test")
    made = []
    for index in range(count):
        random = np.random.default_rng((seed, index))
        time = np.arange(frames) / HZ
        pace = random.uniform(0.2, 0.7)
        action, state = (0.4 * np.sin(2 * np.pi * pace * (time - late))[:, None] for late in (0.0, 0.1))
        state = state + noise * random.normal(size=state.shape)
        made.append(Episode(index=index, time=time, action=action, state=state, units=units, source=source))
    return made


def pose(episode: Episode) -> Episode:
    """The same without joints, as a body that flies."""
    nothing = np.empty((len(episode), 0))
    seen = LoggedSignal(time=episode.time, values=np.zeros((len(episode), 7)), columns=tuple("xyzabcd"), unit="")
    bare = UnitMap(joints=(), source="test")
    return replace(episode, action=nothing, state=nothing, units=bare, command="none", signals={"pose/cube": seen})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables of trials and small logs."""
    place = tmp_path_factory.mktemp("gap")
    rows = [
        f"{policy},{domain},{int((number + len(policy)) % 4 > 0)},s{number}"
        for policy in ("act", "pick it")
        for domain in ("real", "sim")
        for number in range(9 if domain == "real" else 18)
    ]
    tables = {
        "trials": "policy,domain,success,pair\n" + "\n".join(rows),
        "all": "policy,domain,success,pair\n"
        + "\n".join(",".join([*row.split(",")[:2], "1", row[-2:]]) for row in rows),
        "real": "policy,domain,success\na,real,1\nb,real,0",
        "sim": "policy,domain,success\na,sim,1\nb,sim,0",
        "nan": "policy,domain,score\na,real,nan",
        "unnamed": "policy,domain,success\n,real,1",
        "tabs": "policy\tdomain\tsuccess\na\treal\t1",
        "semicolons": "policy;domain;success\na;real;1",
        "huge": "policy,domain,successes,trials\na,real,1,1000000000000",
        "one": "policy,real,sim,trials\na,.8,.7,20",
        "zero": "policy,real,sim,trials\na,.8,.7,0",
        "spread": "policy,real,sim,real_sd\na,.8,.7,-1",
        "blank": "policy,real,sim\n,.8,.7",
        "unknown": "policy,real,sim\na,,.7",
        "means": "policy,real,sim,trials\na,.8,.7,20\nb,.4,.5,20\nc,.6,.3,20",
    }
    for name, text in tables.items():
        (place / f"{name}.csv").write_text(text + "\n")
    (place / "trials.txt").write_text(tables["trials"])
    (place / "latin.csv").write_bytes(b"policy,domain,success\n\xff,real,1\n")
    write_log_dataset(log(0), place / "log")
    write_log_dataset(log(1, source="sim"), place / "made")
    write_log_dataset(log(2, count=1), place / "lone")
    write_log_dataset(log(3, joint="hip"), place / "other")
    return place


def said(folder, capsys, words: str) -> str:
    """Return a command's refusal; assert one line and the exit code of invalid input."""
    assert main(["gap", *(word.replace("@", f"{folder}/") for word in words.split())]) == 2
    message = capsys.readouterr().err.strip()
    assert message.startswith("twinloop:")
    assert "\n" not in message
    return message.replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("power --p 0.5 0.9 --power 90", "A power must be between 0 and 1, not 90. Write 90 % as 0.9"),
        ("power --p 0.5 0.9 --alpha 2", "must be between 0 and 1, not 2"),
        ("power --p 0.2 0.05 --paired --alpha nan", "must be between 0 and 1, not nan"),
        ("power --p 0.5 0.9 --ratio 0", "A ratio of 0 trials of b per trial of a is invalid. Give a number above 0"),
        ("power --p 0.5 0.9 --ratio nan", "A ratio of nan"),
        ("power --p 0.5 0.9 --ratio 1e9", "trials of b would be needed for a power of 0.9"),
        ("power --p 0.5 0.9 --max-pairs -5", "at most -5 pairs has no data. Allow at least one"),
        ("power --p 0.5 0.9 --paired", "only a (0.5) and that only b (0.9) succeeds must add up to more than 0"),
        ("power --p nan 0.9 --paired", "only a (nan)"),
        ("power --p 0.2 0.05 --paired --ratio 2", "With --paired every start is tried by both"),
    ],
)
def test_impossible_powers_are_named(folder, capsys, words, answer):
    assert answer in said(folder, capsys, words)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("policies @nan.csv", "row 1: score is 'nan', not a number from 0 to 1"),
        ("policies @unnamed.csv", "unnamed.csv, row 1 names no policy. Write its name"),
        ("policies @tabs.csv", "Separate cells by commas, not by tabs"),
        ("policies @semicolons.csv", "Separate cells by commas, not by semicolons"),
        ("policies @huge.csv", "row 1: 1000000000000 trials in a row are more than 1000000"),
        ("policies @latin.csv", "Save it as CSV in UTF-8"),
        ("policies @trials.txt", "trials.txt is not a table of trials: its name ends neither in .csv nor in .json"),
        ("policies @real.csv", "there are no sim trials. Both domains are needed; give the others as --sim FILE"),
        ("policies --real @sim.csv --sim @real.csv", "2 of its 2 trials have another domain. It is the --sim file"),
        (
            "policies --real @trials.csv --sim @trials.csv",
            "36 of its 54 trials have another domain. It has both domains: give",
        ),
        ("predictivity @one.csv", "there is 1. Score more policies"),
        ("predictivity @zero.csv", "zero.csv, row 1: 0 trials give no mean score"),
        ("predictivity @spread.csv", "row 1: real_sd is -1; a standard deviation is 0 or more"),
        ("predictivity @blank.csv", "blank.csv, row 1 names no policy"),
        ("predictivity @unknown.csv", "row 1: real score '' is not a number from 0 to 1. Leave the row out"),
        ("compare @real.csv --a a --b b --domain sim", "It has 1 of domain real: use --domain real"),
        ("estimate @real.csv", "a has 1 real and 0 simulated trials with 0 pairs; it needs at least 3 pairs"),
    ],
)
def test_wrong_tables_of_trials_are_named(folder, capsys, words, answer):
    assert answer in said(folder, capsys, words)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("data --real @log --sim @log", "--real and --sim are the same log, log, so they cannot differ"),
        ("data --real @made --sim @log", "made, given as --real, is marked as simulated, and log, given as --sim"),
        ("data --real @log --sim @made --draws -1", "-1 relabellings cannot give a p-value of 0.05"),
        ("data --real @log --sim @made --draws 18", "at least 19 are needed, and 999 are usual. 0 leaves the tests"),
        ("data --real @log --sim @made --clip inf", "Clips of inf s are not possible"),
        (
            "data --real @log --clip 7 --draws 0",
            "The half A set has 3 clips, 1 of one episode, and its nearest",
        ),
        ("data --real @lone", "has 1 episode, and half of it is too little to compare episodes"),
        ("sensors --real @log --sim @log", "--real and --sim are the same log, log"),
        ("sensors --real @made --sim @log", "Swap them"),
        ("sensors --real @log --sim @other", "has position/elbow, the simulated one position/hip"),
        ("data --real nowhere", "Unknown log 'nowhere' in the public sets, and no file has this name. "),
        ("data --real @log --twin so101_tabletop --params @none", "Give the folder of a run of `twinloop identify`"),
        ("dynamics --twin so101_tabletop --data", "No log was given. Name a log or dataset, or a public set"),
        ("history", "No folder was given"),
        ("history @log --output @trials.csv", "trials.csv exists and is not an HTML page. Name another --output"),
        ("history @log --output @log", "log is a folder, and the history is one page"),
    ],
)
def test_wrong_logs_and_folders_are_named(folder, capsys, words, answer):
    assert answer in said(folder, capsys, words)


def test_bodies_without_joints_are_sent_elsewhere():
    from twinloop.core.errors import LogError
    from twinloop.gap.trajectories.measure import measure_trajectories

    flying = [pose(episode) for episode in log(0)]
    with pytest.raises(LogError, match=r"has no joint .*its signals: pose/cube.*'twinloop gap dynamics'"):
        measure_trajectories(flying, flying)


def test_an_error_with_json_is_one_line_of_json(folder, capsys):
    assert main(["gap", "power", "--p", "0.5", "0.9", "--ratio", "0", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)
    assert error["error"] == "InputError"
    assert "ratio" in error["message"]


def test_a_test_that_seldom_decides_tells_no_time(folder, capsys):
    assert main(["gap", "power", "--p", "0.5", "0.9", "--max-pairs", "5"]) == 0
    printed = capsys.readouterr().out
    assert "the e-test decides by pair 5 in" in printed
    assert "on average" not in printed


def test_half_against_half_speaks_of_no_simulation(folder, capsys, tmp_path):
    words = ["gap", "data", "--real", str(folder / "log"), "--draws", "0", "--output", str(tmp_path / "run")]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "one half A and one half B" in printed
    assert "simulat" not in printed
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["sides"] == ["half A", "half B"]
    assert "simulat" not in json.dumps(result["headline"])


def test_what_no_correlation_tells_is_a_dash_and_the_history_takes_trials(folder, capsys, tmp_path):
    assert main(["gap", "estimate", str(folder / "all.csv"), "--output", str(tmp_path / "estimate")]) == 0
    assert "nan" not in capsys.readouterr().out
    assert main(["gap", "policies", str(folder / "trials.csv"), "--output", str(tmp_path / "policies")]) == 0
    capsys.readouterr()
    for kind in ("estimate", "policies"):
        assert main(["gap", "history", str(tmp_path), "--kind", kind]) == 0
        printed = capsys.readouterr().out
        assert "data" in printed
        assert "twin " not in printed


def test_names_with_spaces_and_brackets_can_be_asked_for(tmp_path):
    table = tmp_path / "t.csv"
    rows = [
        f"{name},{domain},{n % 2}" for name in ("pick it", "b[red]") for domain in ("real", "sim") for n in range(6)
    ]
    table.write_text("policy,domain,success\n" + "\n".join(rows) + "\n")
    for metric in ("success_gap/pick_it", "success_gap/b[red]"):
        assert main(["gap", "policies", str(table), "--fail-if", f"{metric} > 0.5"]) == 0


def test_rounding_is_no_difference_between_sensors():
    rows = measure_sensors(log(0, frames=180), log(1, source="sim", frames=20)).differences
    period = next(row for row in rows if row.quantity == "period")
    assert period.real != period.sim
    assert not period.differs


def test_starts_that_are_shared_in_part_are_said(tmp_path, capsys):
    table = tmp_path / "t.csv"
    starts = {"a": range(8), "b": range(1, 9)}
    rows = [f"{policy},real,{n % 2},s{n}" for policy, numbers in starts.items() for n in numbers]
    table.write_text("policy,domain,success,pair\n" + "\n".join(rows) + "\n")
    assert main(["gap", "compare", str(table), "--a", "a", "--b", "b"]) == 0
    assert "7 initial states were tried exactly once by both policies, of 8 and 8 trials." in capsys.readouterr().out


def test_a_policy_page_without_conditions_has_a_row_per_policy(folder, capsys, tmp_path):
    assert main(["gap", "policies", str(folder / "trials.csv"), "--output", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run/report.html").read_text()
    assert "Overall and by policy." in page
    assert "act, all" not in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--trials", "trials.csv", "--min-success", "50"), "--min-success 50: give a share, such as 0.5"),
        (("--trials", "trials.csv", "--min-skill", "nan"), "--min-skill nan: give a share"),
        (("--gap", "run"), "is a run of `gap sensors`. Give --gap one of `gap dynamics` or `gap why`"),
        (("--trials", "real.csv"), "Nothing could be checked. Never covered: give --data and --training"),
    ],
)
def test_failure_classes_say_what_they_cannot_use(folder, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(folder)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text(json.dumps({"verb": "gap", "kind": "sensors", "headline": []}))
    given = [str(tmp_path / word) if word == "run" else word for word in words]
    assert main(["gap", "classes", *given]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_images_of_one_folder_cannot_differ(tmp_path, capsys):
    assert main(["gap", "vision", "--real", str(tmp_path), "--sim", str(tmp_path / ".")]) == 2
    assert "are the same folder" in " ".join(capsys.readouterr().err.split())
    assert main(["gap", "vision", "--real", str(tmp_path), "--sim", "x", "--draws", "3"]) == 2
    assert "3 relabellings cannot give a p-value" in " ".join(capsys.readouterr().err.split())
