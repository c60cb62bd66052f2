"""The command line: every command, its JSON line, its exit code, and one clear message for wrong input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from twinloop.cli.main import main
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.hardware import virtual_log

SMALL = {"scene": {"robot": "so101", "task": "pick_and_place"}, "rollout": {"parallel_envs": 3}}


def run(capsys, *arguments: str) -> tuple[int, dict, str]:
    """Exit code, the last line of standard output as JSON, and standard error."""
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, json.loads(captured.out.splitlines()[-1], parse_constant=pytest.fail), captured.err


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Four short episodes of a virtual robot, as a dataset."""
    folder = tmp_path_factory.mktemp("log") / "virtual"
    return write_log_dataset(virtual_log(seed=2, twin="so101_tabletop", episodes=4, seconds=3.0), folder)


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batch")
    (folder / "generate.yaml").write_text(yaml.safe_dump(SMALL))
    assert main(["generate", str(folder / "generate.yaml"), "--output", str(folder / "batch"), "--workers", "1"]) == 0
    return folder / "batch"


def test_generate_prints_what_the_folder_holds(capsys, tmp_path):
    (tmp_path / "g.yaml").write_text(yaml.safe_dump(SMALL))
    output = tmp_path / "batch"
    code, metrics, _ = run(capsys, "generate", tmp_path / "g.yaml", "--output", output, "--episodes", "2", "--json")
    stored = json.loads((output / "twinloop" / "result.json").read_text())
    assert code == 0
    assert metrics["attempted"] == 2
    assert {key: metrics[key] for key in stored} == stored
    assert metrics["timing"]["episodes_per_second"] > 0


def test_replay_verifies_and_says_no_when_a_state_was_changed(capsys, batch, tmp_path):
    code, metrics, _ = run(capsys, "replay", batch, "0", "--verify", "--json")
    assert (code, metrics["equal"], metrics["difference"]) == (0, True, 0)
    forged = tmp_path / "forged"
    shutil.copytree(batch, forged)
    (path,) = (forged / "twinloop" / "states").rglob("*.parquet")
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0]["states"][-1] += 1e-12
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path, row_group_size=1)
    code, metrics, _ = run(capsys, "replay", forged, "0", "--verify", "--json")
    assert code == 1
    assert metrics["equal"] is False
    assert 0 < metrics["difference"] < 1e-3


def test_identify_then_gap_measures_the_held_out_episodes(capsys, log, tmp_path):
    twin, fit, gap, short = "so101_tabletop", tmp_path / "fit", tmp_path / "gap", tmp_path / "fit.yaml"
    short.write_text("iterations: 4\npolish: 0\n")
    words = ("--twin", twin, "--data", log, "--fit", short, "--holdout", "last:1", "--output", fit)
    code, found, _ = run(capsys, "identify", *words, "--json")
    assert code == 0
    assert found["holdout"] == [3]
    assert json.loads((fit / "result.json").read_text()) == found
    words = ("--twin", twin, "--data", log, "--params", fit, "--output", gap)
    code, measured, _ = run(capsys, "gap", *words, "--no-why", "--json")
    assert code == 0
    assert measured["episodes"] == [3]
    assert {**json.loads((gap / "result.json").read_text()), "failed": []} == measured
    identified, nominal = (np.array(measured["twins"][name]["estimate"]) for name in ("identified", "nominal"))
    assert identified.mean() < nominal.mean()
    page = (gap / "report.html").read_text()
    assert "simulated log" in page
    assert "http://" not in page.split("<main>")[1].split("</main>")[0]


def test_import_asks_for_units_and_takes_them(capsys, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("time_s,action/pan,state/pan\n0,0,0\n0.1,1,0.5\n0.2,2,1\n")
    code, metrics, errors = run(capsys, "import", path, "--output", tmp_path / "out", "--json")
    assert code == 2
    assert metrics["error"] == "UnitsError"
    assert "?" in errors
    code, metrics, _ = run(capsys, "import", path, "--units", "deg", "--output", tmp_path / "out", "--json")
    assert (code, metrics["frames"], metrics["radians_known"]) == (0, 3, True)
    assert len(DatasetReader(tmp_path / "out")) == 1


def test_twin_check_and_show(capsys):
    code, metrics, _ = run(capsys, "twin", "check", "cube_toss", "--json")
    assert (code, metrics["passed"]) == (0, True)
    code, metrics, _ = run(capsys, "twin", "show", "double_pendulum", "--json")
    assert code == 0
    assert {"name", "unit", "nominal", "low", "high", "source"} <= set(metrics["params"][0])


def test_a_twin_that_fails_its_checks_exits_with_one(capsys, tmp_path):
    path = tmp_path / "sunk.xml"
    path.write_text(
        '<mujoco><worldbody><geom name="floor" type="plane" size="1 1 .1"/><body name="ball" pos="0 0 .01">'
        '<freejoint/><geom size=".05" mass=".1"/></body></worldbody></mujoco>'
    )
    code, metrics, _ = run(capsys, "twin", "check", path, "--json")
    assert (code, metrics["passed"]) == (1, False)


def test_doctor_says_what_is_here(capsys):
    code, metrics, _ = run(capsys, "doctor", "--json")
    assert code == 0
    assert metrics["packages"]["mujoco"]
    assert {renderer["name"] for renderer in metrics["renderers"]} >= {"gl", "warp"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "missing.yaml", "--output", "x"], "missing.yaml does not exist"),
        (["replay", "nowhere", "0"], "nowhere is not a LeRobot dataset"),
        (["import", "nowhere/log.csv", "--output", "x"], "nowhere/log.csv does not exist"),
        (["import", "so101_pick_place_tap", "--output", "x"], "Nearest existing: so101_pick_place_tape"),
        (["twin", "check", "so101"], "Nearest existing: so101_"),
        (
            ["identify", "--twin", "so101_tabletop", "--data", "{log}", "--holdout", "first:2", "--output", "x"],
            "last:K",
        ),
        (["gap", "--twin", "double_pendulum", "--data", "{log}", "--output", "x"], "has no joint shoulder"),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_two(capsys, tmp_path, monkeypatch, log, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TWINLOOP_DATA", raising=False)
    code, metrics, errors = run(capsys, *[argument.format(log=log) for argument in arguments], "--json")
    assert code == 2
    assert message in metrics["message"]
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_importing_the_package_loads_nothing_heavy():
    heavy = ("mujoco", "pyarrow", "torch", "scipy", "plotly")
    code = f"import twinloop, sys; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_importing_the_statistics_leaves_out_those_of_scipy_which_every_worker_would_wait_for():
    code = "import twinloop.stats, sys; print([n for n in ('scipy.stats', 'scipy.optimize') if n in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_demo_runs_end_to_end_without_a_real_log(tmp_path):
    """As for a user: a separate process, no data folder, no network; every result is labelled as virtual."""
    environment = {key: value for key, value in os.environ.items() if key != "TWINLOOP_DATA"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HTTPS_PROXY": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "twinloop", "demo", "--output", str(tmp_path / "demo"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout.splitlines()[-1])
    assert "VIRTUAL" in metrics["data"]["label"]
    assert metrics["states"]["episodes"] >= 200
    assert metrics["images"]["episodes"] == 20  # two passes: physics of all, images of the first
    assert metrics["verify"]["passed"]
    for name in ("report.html", "contact_sheet.png", "episodes.mp4", "result.json"):
        assert (tmp_path / "demo" / name).stat().st_size > 1000
    page = Path(tmp_path / "demo" / "report.html").read_text()
    assert "VIRTUAL" in page


def generate_file(folder: Path, **changes) -> Path:
    path = folder / "generate.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"render": {"cameras": ["frnt"]}}, "Unknown camera 'frnt'"),
        ({"render": {"cameras": []}}, "render.cameras"),
        ({"render": {"cameras": ["front"], "renderer": "foo"}}, "Unknown renderer 'foo'"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 10**30}, "does not fit in 64 bits"),
        ({"randomization": {"identified": "x.json", "kappa": "abc"}}, "kappa is a number"),
    ],
)
def test_a_typo_is_found_before_anything_is_simulated(capsys, tmp_path, changes, message):
    (tmp_path / "x.json").write_text('{"distribution": {}}')
    code, metrics, _ = run(capsys, "generate", generate_file(tmp_path, **changes), "--output", tmp_path / "b", "--json")
    assert code == 2
    assert message in metrics["message"]
    assert not (tmp_path / "b").exists()


def test_no_success_at_all_says_no(capsys, tmp_path):
    slippery = {"params": {"object/cube/friction/slide": [0.05, 0.051]}}
    file = generate_file(tmp_path, randomization=slippery)
    code, metrics, _ = run(capsys, "generate", file, "--output", tmp_path / "b", "--episodes", "2", "--json")
    assert code == 1
    assert "None of 2 attempts succeeded" in metrics["message"]


TASK = """
from twinloop.tasks.pick_and_place import PickAndPlace

class Mine(PickAndPlace):
    name = "mine"

class Broken(PickAndPlace):
    def expert(self, initial):
        return 1 / 0
"""


def test_a_users_own_task_lies_beside_the_yaml_and_its_errors_name_its_line(capsys, tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "own.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    file = generate_file(folder, scene={"robot": "so101", "task": "own.py:Mine"})
    code, metrics, _ = run(capsys, "generate", file, "--output", folder / "b", "--episodes", "2", "--json")
    assert (code, metrics["error"]) == (2, "NotApprovedError")  # the YAML is in no workspace: its source is untrusted
    assert run(capsys, "approve", folder / "own.py", "--json")[0] == 0
    code, metrics, _ = run(capsys, "generate", file, "--output", folder / "b", "--episodes", "2", "--json")
    assert (code, metrics["episodes"]) == (0, 2)
    assert run(capsys, "replay", folder / "b", "0", "--verify", "--json")[0] == 0
    file = generate_file(folder, scene={"robot": "so101", "task": "own.py:Broken"})
    code, metrics, _ = run(capsys, "generate", file, "--output", folder / "c", "--episodes", "2", "--json")
    assert code == 2
    assert "own.py, line 9: the task pick_and_place raised ZeroDivisionError" in metrics["message"]


def test_an_earlier_run_is_never_overwritten(capsys, log, tmp_path):
    arguments = ("gap", "--twin", "so101_tabletop", "--data", log, "--output", tmp_path / "gap", "--json")
    assert run(capsys, *arguments)[0] == 0
    before = (tmp_path / "gap" / "result.json").read_bytes()
    code, metrics, _ = run(capsys, *arguments)
    assert code == 2
    assert "holds an earlier run" in metrics["message"]
    assert (tmp_path / "gap" / "result.json").read_bytes() == before


@pytest.mark.parametrize("command", ["gap", "demo"])
def test_an_output_that_is_a_file_is_refused_before_the_work(capsys, log, tmp_path, command):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    more = ("--twin", "so101_tabletop", "--data", log) if command == "gap" else ()
    code, _, errors = run(capsys, command, *more, "--output", taken, "--json")
    assert code == 2
    assert "Choose another --output" in errors
    assert taken.read_text() == "mine"


def test_doctor_names_a_package_of_every_extra():
    import tomllib

    from twinloop.workflows.doctor import _EXTRAS

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    told = {command.partition("[")[2].rstrip("]'") for command in _EXTRAS.values()}
    assert told == set(project["optional-dependencies"]) - {"demo", "dev", "light", "slow"}


def test_a_reader_that_has_seen_enough_ends_the_program_quietly():
    """As `twinloop generate --help | head -1` does; the pipe is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "twinloop", "generate", "--help"]
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")
