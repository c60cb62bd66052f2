"""`twinloop run` from words to the catalog: recorded data, refusals, and the state after an early end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from rich.console import Console

from twinloop.catalog import Workspace
from twinloop.cli.main import main
from twinloop.core import metrics
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.logs.formats import load_log
from twinloop.dataset.side_tables import open_side_table
from twinloop.release.client import PolicyClient
from twinloop.release.running_policy import LocalDecider
from twinloop.release.running_record import EVENTS, STEPS
from twinloop.twin import load_twin
from twinloop.workflows.deploy.requests import RunRequest
from twinloop.workflows.deploy.run import read_outcomes, run_policy

pytest.importorskip("torch")

from support.running import ROBOT, said, saved_policy, served  # needs torch
from twinloop.policies import open_policy  # needs torch


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return saved_policy(tmp_path_factory.mktemp("policy") / "swaying")


def requested(policy, folder, **changes) -> RunRequest:
    given = {"robot": ROBOT, "policy": str(policy), "output": folder / "out", "seconds": 0.4}
    return RunRequest(**{**given, **changes})


@pytest.mark.slow
def test_what_runs_is_a_batch_of_the_workspace_and_failures_are_found_there(policy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "cell"]) == 0
    monkeypatch.chdir(tmp_path / "cell")
    outcomes = tmp_path / "outcomes.csv"
    outcomes.write_text("episode,success\n0,yes\n1,no\n")
    capsys.readouterr()
    words = ["run", "--robot", ROBOT, "--policy", str(policy), "--output", "data/first", "--episodes", "2"]
    assert main([*words, "--seconds", "0.4", "--outcome", str(outcomes), "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert (metrics["episodes"], metrics["successes"], metrics["judged"], metrics["frames"]) == (2, 1, 2, 24)
    assert metrics["envelope"]["stopped"] == metrics["envelope"]["held"] == 0
    with Workspace.open(tmp_path / "cell") as workspace:
        sql = "SELECT batch, actor, source, episode_index FROM episodes WHERE NOT success AND robot_type = ?"
        rows = workspace.query(sql, ["so101_follower"]).to_pylist()
        assert rows == [{"batch": "first", "actor": f"policy:{policy}", "source": "sim", "episode_index": 1}]
        assert workspace.query("SELECT verb FROM runs").to_pylist() == [{"verb": "run"}]


def test_a_policy_that_does_not_fit_is_refused_with_the_difference_shown(tmp_path):
    wrong = saved_policy(tmp_path / "p", control_hz=50.0, robot_type="so100_follower", cameras={"front": (48, 64)})
    with pytest.raises(InputError) as refused:
        run_policy(requested(wrong, tmp_path), console=said()[0])
    text = str(refused.value)
    assert "does not fit virtual:so101_tabletop?seed=3:" in text
    assert "robot: the policy is for so100_follower, but so101_follower is given" in text
    assert "rate: the policy needs 50 Hz, but 30 Hz is given" in text
    assert "observation.images.front: no such camera" in text
    assert not (tmp_path / "out").exists()


def test_a_corrupt_checkpoint_is_refused_by_name(tmp_path):
    broken = saved_policy(tmp_path / "p")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(InputError, match="model.safetensors"):
        run_policy(requested(broken, tmp_path), console=said()[0])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"episodes": 0}, InputError, "one episode or more"),
        ({"policy": "champion"}, InputError, "'champion' is neither a folder of a policy nor the address of a server"),
        ({"policy": "http://127.0.0.1:9"}, InputError, "cannot be reached, or the connection was lost"),
        ({"robot": "virtual:so102"}, InputError, "so102"),
        ({"hz": 15.0}, InputError, "runs at its twin's 30 Hz. Leave --hz out"),
        ({"twin": "panda_tabletop"}, InputError, "has no joint"),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_moves(
    changes, error, message, policy, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        run_policy(requested(**{"policy": policy, "folder": tmp_path, **changes}), console=said()[0])
    assert not (tmp_path / "out").exists()


def test_outcomes_are_read_by_episode_and_their_errors_by_line(tmp_path):
    path = tmp_path / "outcomes.csv"
    path.write_text("episode,success\n3,1\n4,false\n")
    assert read_outcomes(path) == {3: True, 4: False}
    path.write_text("episode,success\n3,maybe\n")
    with pytest.raises(InputError, match=r"outcomes.csv, line 2: episode '3' and success 'maybe' are not an outcome"):
        read_outcomes(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_outcomes(tmp_path / "absent.csv")
    path.write_bytes(b"\xef\xbb\xbfepisode,success\r\n3,1\r\n")  # as spreadsheets write it
    assert read_outcomes(path) == {3: True}
    path.write_text("episode;success\n3;1\n")
    with pytest.raises(
        InputError, match="outcomes.csv has no column episode; it has: episode;success. Give a CSV file"
    ):
        read_outcomes(path)
    request = RunRequest(robot="virtual:none", policy="p", output=tmp_path / "out", outcome=path)
    with pytest.raises(InputError, match="has no column episode"):
        run_policy(request, console=Console())  # before anything is opened


@pytest.mark.slow
def test_ctrl_c_ends_at_rest_with_what_was_recorded(policy, tmp_path, monkeypatch):
    before, calls, act = signal.getsignal(signal.SIGINT), [], LocalDecider.act

    def pressed(self, observation):
        calls.append(1)
        if len(calls) == 8:
            os.kill(os.getpid(), signal.SIGINT)
        return act(self, observation)

    monkeypatch.setattr(LocalDecider, "act", pressed)
    console, text = said()
    metrics, code = run_policy(requested(policy, tmp_path, seconds=60.0, episodes=3), console=console)
    assert code == 1
    assert metrics["trips"] == [{"episode": 0, "kind": "hand", "reason": "stopped by hand"}]
    assert "Ended early: stopped by hand" in text.getvalue()
    assert signal.getsignal(signal.SIGINT) == before
    reader = DatasetReader(tmp_path / "out")
    assert reader.lengths[0] == metrics["frames"] < 20
    events = open_side_table(tmp_path / "out", EVENTS).to_table().to_pylist()
    assert events[-1]["kind"] == "held" or events[-1]["message"] == "stopped by hand"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_a_served_policy_makes_the_same_episodes(scheme, policy, tmp_path):
    pytest.importorskip("fastapi")
    here = run_policy(requested(policy, tmp_path / "here", episodes=2), console=said()[0])[0]
    with served(lambda: LocalDecider(open_policy(policy), name="swaying")) as server:
        address = server.address.replace("http", scheme, 1)
        there = run_policy(requested(address, tmp_path / "there", episodes=2), console=said()[0])[0]
    assert here["policy_hash"] == there["policy_hash"]
    one, other = (open_side_table(tmp_path / side / "out", STEPS).to_table() for side in ("here", "there"))
    for column in one.column_names:
        if column != "latency_s":
            assert one[column].equals(other[column])


@pytest.mark.slow
def test_a_server_that_stops_in_the_middle_ends_the_run_with_the_dataset_whole(policy, tmp_path):
    pytest.importorskip("fastapi")

    class Dying(LocalDecider):
        count = 0

        def act(self, observation):
            Dying.count += 1
            if Dying.count == 8:
                server.stop(at_once=True)
                threading.Event().wait(0.3)
            return super().act(observation)

    with served(lambda: Dying(open_policy(policy), name="dying")) as server:
        address = server.address.replace("http", "ws", 1)
        assert_cut_short(requested(address, tmp_path, episodes=2, seconds=2.0))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_a_server_that_is_killed_in_the_middle_ends_the_run_with_the_dataset_whole(
    scheme, policy, tmp_path, monkeypatch
):
    pytest.importorskip("fastapi")
    words = [sys.executable, "-m", "twinloop", "serve", "--policy", str(policy), "--port", "0"]
    act, calls = PolicyClient.act, []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "400"}) as server:

        def killing(self, observation):
            calls.append(1)
            if len(calls) == 8:
                server.kill()
                server.wait()
            return act(self, observation)

        monkeypatch.setattr(PolicyClient, "act", killing)
        assert server.stdout is not None
        line = server.stdout.readline()
        assert "Ctrl-C stops it" in line
        address = line.partition(" at ")[2].partition(". Ctrl-C")[0].replace("http", scheme, 1)
        for _ in range(100):
            with contextlib.suppress(InputError):
                PolicyClient(address)
                break
            time.sleep(0.1)
        assert_cut_short(requested(address, tmp_path, episodes=2, seconds=2.0))


def assert_cut_short(request: RunRequest) -> None:
    """The policy was lost after seven commands, and the recording until then is whole."""
    console, text = said()
    metrics, code = run_policy(request, console=console)
    assert code == 1
    assert metrics["episodes"] == 1
    assert metrics["trips"][0]["kind"] == "policy"
    assert "was lost" in metrics["trips"][0]["reason"]
    assert "Ended early: The policy server at" in text.getvalue()
    reader = DatasetReader(request.output)
    assert 7 <= reader.lengths[0] == metrics["frames"] < 60
    assert reader.provenance(0).extra["run"]["trip"] == "policy"
    steps = open_side_table(request.output, STEPS).to_table()
    assert steps["ruling"].to_pylist()[:8] == ["passed"] * 7 + ["held"]


@pytest.mark.slow
def test_a_judged_robot_says_success_at_every_step_and_fails_here(tmp_path):
    names = ("cube.x", "tool.z")  # some of the tracker's columns, in another order
    policy = saved_policy(tmp_path / "p", task="pick_and_place")
    robot = f"{ROBOT}&task=pick_and_place"
    metrics, _ = run_policy(requested(policy, tmp_path, robot=robot, episodes=2), console=said()[0])
    assert (metrics["judged"], metrics["successes"]) == (2, 0)
    reader = DatasetReader(tmp_path / "out")
    assert set(names) <= set(reader.feature_names("observation.environment_state"))
    assert not reader.frames_table(0, ["next.success"])["next.success"].to_numpy(zero_copy_only=False).any()
    assert [reader.provenance(i).success for i in range(2)] == [False, False]
    assert reader.provenance(0).success_version


def test_an_unknown_alias_is_named_in_a_workspace(policy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Workspace.create(tmp_path / "cell").close()
    monkeypatch.chdir(tmp_path / "cell")
    with pytest.raises(UnknownNameError, match="Unknown alias 'champion'"):
        run_policy(requested("champion", tmp_path), console=said()[0])


ARM = '''
"""An arm that follows its commands with a lag, in the time of the wall; away from home when it is switched on."""
import time

from twinloop.hardware.protocol import NotConnectedError, WallClock
from twinloop.twin import load_twin

TWIN = load_twin("so101_tabletop")
HOME = TWIN.units.from_si(TWIN.home()[0][TWIN.joint_qpos])


class Arm:
    name, source, origin, units = "so101_follower", "real", "arm", TWIN.units
    is_calibrated = True

    def __init__(self, away="8"):
        self._at, self._goal = HOME + float(away) * (TWIN.units.to_si(HOME) * 0 + 1), None
        self._open, self.connections = False, 0

    observation_features = action_features = {f"{joint}.pos": float for joint in TWIN.robot.joints}
    clock = WallClock()

    @property
    def is_connected(self):
        return self._open

    def connect(self, calibrate=True):
        self._open, self.connections, self._when = True, self.connections + 1, time.perf_counter()

    def calibrate(self):
        pass

    def configure(self):
        pass

    def get_observation(self):
        now = time.perf_counter()
        if self._goal is not None:
            self._at = self._at + (self._goal - self._at) * min(1.0, (now - self._when) / 0.07)
        self._when = now
        return dict(zip(self.action_features, map(float, self._at)))

    def send_action(self, action):
        self.get_observation()
        self._goal = HOME * 0 + list(action.values())
        return dict(action)

    def disconnect(self):
        self._open = False
'''


@pytest.mark.slow
def test_an_arm_of_ones_own_is_brought_home_slowly_and_run_in_its_own_time(policy, tmp_path):
    (tmp_path / "arm.py").write_text(ARM)
    settings = tmp_path / "envelope.yaml"
    settings.write_text("watchdog_s: 0.5\nmax_age_s: 2.0\n")  # a busy machine is no robot's computer
    request = requested(
        policy, tmp_path, robot=f"{tmp_path}/arm.py:Arm?away=8", twin="so101_tabletop", episodes=2, envelope=settings
    )
    metrics, code = run_policy(request, console=said()[0])
    assert (code, metrics["episodes"], metrics["judged"], metrics["trips"]) == (0, 2, 0, [])
    reader = DatasetReader(tmp_path / "out")
    assert [reader.provenance(i).source for i in range(2)] == ["real", "real"]
    assert reader.provenance(0).success is None
    steps = open_side_table(tmp_path / "out", STEPS).to_table()
    times = steps["time_s"].to_numpy()[: reader.lengths[0]]
    assert times[-1] >= (len(times) - 1) / 30 - 0.01
    logs = load_log(tmp_path / "out")
    twin = load_twin("so101_tabletop")
    home = twin.units.from_si(twin.home()[0][twin.joint_qpos])
    assert abs(logs[0].state[0] - home).max() < 2.0  # it began 8 degrees away


@pytest.mark.slow
def test_without_a_twin_an_arm_of_ones_own_is_not_run(policy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arm.py").write_text(ARM)
    with pytest.raises(InputError, match=r"No twin is named here, .* Give --twin"):
        run_policy(requested(policy, tmp_path, robot=f"{tmp_path}/arm.py:Arm"), console=said()[0])


@pytest.mark.slow
def test_a_monitor_is_refused_where_it_cannot_look_into_the_policy(policy, tmp_path):
    pytest.importorskip("fastapi")
    with served(lambda: LocalDecider(open_policy(policy), name="far")) as server:
        request = requested(server.address, tmp_path, monitor=tmp_path / "monitor")
        with pytest.raises(InputError, match="A monitor needs the policy in this process, but far runs on a server"):
            run_policy(request, console=said()[0])


@pytest.mark.slow
def test_virtual_sessions_are_numbered_as_the_episodes(policy, tmp_path):
    run_policy(requested(policy, tmp_path / "both", episodes=2), console=said()[0])
    run_policy(requested(policy, tmp_path / "second", first=1), console=said()[0])
    both, second = load_log(tmp_path / "both" / "out"), load_log(tmp_path / "second" / "out")
    np.testing.assert_array_equal(second[0].state, both[1].state)
    assert (both[0].state != both[1].state).any()


class Kept:
    """Tracker that keeps the figures of the last one."""

    rows: list[tuple[int, dict[str, float]]] = []  # noqa: RUF012

    def __init__(self, *_):
        Kept.rows = []

    def log(self, step, values):
        Kept.rows.append((step, dict(values)))

    def close(self):
        pass


def test_a_watched_run_reports_what_it_records(policy, tmp_path, monkeypatch):
    """In rad, at every step of all episodes; the recorded values are those of a run that nobody watches."""
    monkeypatch.setitem(metrics.TRACKERS, "kept", Kept)
    run_policy(requested(policy, tmp_path / "plain"), console=said()[0])
    with metrics.open_trackers(["kept"], verb="run", output=tmp_path):
        run_policy(requested(policy, tmp_path / "watched"), console=said()[0])
    plain, watched = (DatasetReader(tmp_path / name / "out") for name in ("plain", "watched"))
    assert watched.units is not None
    for feature, kind in (("observation.state", "measured"), ("action", "commanded")):
        values = watched.array(0, feature)
        np.testing.assert_array_equal(values, plain.array(0, feature))
        reported = np.array([[row[f"{kind}/{name}"] for name in watched.units.names] for _, row in Kept.rows])
        np.testing.assert_allclose(reported, watched.units.to_si(values), atol=1e-6)
    assert [step for step, _ in Kept.rows] == list(range(12))
