"""The engine for several machines, on real Ray clusters of several nodes: same bytes after any failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from twinloop.cli.main import main
from twinloop.core.errors import InputError, MissingDependencyError, TwinloopError, UnknownNameError
from twinloop.core.files import sha256_tree
from twinloop.core.pool import LocalProcesses
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate import generate_states, open_engine, resolve_config

SMALL = {"scene": {"robot": "so101", "task": "pick_and_place"}, "rollout": {"parallel_envs": 4, "episodes_per_env": 10}}
# Ray's own: sockets and files that its processes leave to the garbage collector.
ray_on_this_machine = pytest.mark.filterwarnings("ignore")


def config(folder):
    return resolve_config(SMALL, where="test", folder=folder)


def test_without_ray_the_command_that_installs_it_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        MissingDependencyError, match=r'Ray, which is not installed\. To add it: pip install "twinloop\[ray'
    ):
        open_engine("ray")
    (tmp_path / "g.yaml").write_text("scene: {robot: so101, task: pick_and_place}\n")
    arguments = ["generate", str(tmp_path / "g.yaml"), "--output", str(tmp_path / "x"), "--engine", "ray"]
    assert main(arguments) == 3
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rai", "Unknown engine 'rai'. Nearest existing: ray"),
        ("local:3", "Unknown engine 'local:3'. Nearest existing: local"),
        ("spark", r"Unknown engine 'spark'. Existing: local, ray, ray:HOST:PORT"),
    ],
)
def test_an_unknown_engine_lists_what_exists(name, message):
    with pytest.raises(UnknownNameError, match=message):
        open_engine(name)
    with pytest.raises(InputError, match="--workers -1: give a number"):
        open_engine("local", workers=-1)


def test_an_address_where_nobody_answers_says_what_to_do():
    pytest.importorskip("ray")
    began = time.perf_counter()
    with pytest.raises(
        MissingDependencyError, match=r"No Ray cluster answers at 127.0.0.1:9 .*ray start --head --port"
    ):
        open_engine("ray:127.0.0.1:9")
    assert time.perf_counter() - began < 10
    with pytest.raises(InputError, match="'nowhere' is not HOST:PORT"):
        open_engine("ray:nowhere")


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The bytes that everybody must write: one process of this machine."""
    folder = tmp_path_factory.mktemp("local") / "batch"
    return folder, generate_states(config(folder.parent), folder)


@pytest.fixture
def cluster():
    """A head without cores, where nothing runs, and three nodes of one core each."""
    utils = pytest.importorskip("ray.cluster_utils")
    node = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **node})
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20) for _ in range(3)]
    cluster.wait_for_nodes()
    yield cluster, nodes
    cluster.shutdown()


class Saboteur:
    """An engine that does harm after some results; otherwise the one that it was given."""

    def __init__(self, engine, harm):
        self._engine, self._harm = engine, harm
        self.workers, self.threads, self.in_other_processes = engine.workers, engine.threads, engine.in_other_processes
        self.worked = []

    def map(self, function, items) -> Iterator:
        for count, pair in enumerate(self._engine.map(function, items)):
            self.worked.append(pair[0].numbers[0])
            if count in self._harm:
                self._harm[count]()
            yield pair


def running_tasks() -> list[int]:
    """Processes that work on a Ray task now."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "ray::_run" in line]


def kill_a_worker() -> None:
    deadline = time.monotonic() + 30
    while not (found := running_tasks()):
        assert time.monotonic() < deadline, "no task is running"
        time.sleep(0.01)
    os.kill(found[0], signal.SIGKILL)


@pytest.mark.slow
@ray_on_this_machine
def test_a_killed_worker_and_a_lost_node_cost_nothing(local, cluster, tmp_path):
    expected, result = local
    machines, nodes = cluster
    harm = {1: kill_a_worker, 4: lambda: machines.remove_node(nodes[0])}
    output = tmp_path / "batch"
    with open_engine(f"ray:{machines.address}") as engine:
        assert engine.workers == 3
        saboteur = Saboteur(engine, harm)
        metrics = generate_states(config(tmp_path), output, engine=saboteur)
    assert saboteur.worked == list(range(0, 40, 4)), "every batch once and in order"
    assert metrics == result
    assert sha256_tree(output) == sha256_tree(expected)


@pytest.mark.slow
@ray_on_this_machine
def test_a_run_stopped_on_a_cluster_goes_on_without_it(local, cluster, tmp_path):
    """Ctrl-C leaves whole blocks; the rest may be made by local processes, with the same bytes."""
    expected, result = local
    machines, _ = cluster
    output = tmp_path / "batch"

    def stop():
        raise KeyboardInterrupt

    with open_engine(f"ray:{machines.address}", workers=2) as engine, pytest.raises(KeyboardInterrupt):
        generate_states(config(tmp_path), output, engine=Saboteur(engine, {3: stop}))
    assert 0 < len(DatasetReader(output)) < result["episodes"]
    with LocalProcesses(2) as engine:
        generate_states(config(tmp_path), output, engine=engine, resume=True)
    assert sha256_tree(output) == sha256_tree(expected)


@pytest.mark.slow
@ray_on_this_machine
def test_errors_arrive_as_themselves_and_items_are_read_only_as_needed(cluster):
    machines, _ = cluster
    read = []

    def numbers():
        for number in range(20):
            read.append(number)
            yield number

    with open_engine(f"ray:{machines.address}") as engine:
        results = engine.map(abs, numbers())
        assert next(results) == (0, 0)
        assert len(read) <= engine.workers + 1
        results.close()
        with pytest.raises(UnknownNameError, match="Unknown engine 'spark'. Existing: local"):
            list(engine.map(open_engine, ["spark"]))
        with pytest.raises(
            TwinloopError, match=r"Ray could not finish .*SIGKILL.*: its process died 6 times, or the cluster"
        ):
            list(engine.map(signal.raise_signal, [signal.SIGKILL]))


@pytest.mark.slow
@ray_on_this_machine
def test_a_ray_of_this_machine_writes_the_same_and_ends_with_the_run(local, tmp_path):
    pytest.importorskip("ray")
    file = tmp_path / "generate.yaml"
    file.write_text("scene: {robot: so101, task: pick_and_place}\nrollout: {parallel_envs: 4, episodes_per_env: 10}\n")
    command = [sys.executable, "-m", "twinloop", "generate", str(file), "--output", str(tmp_path / "batch")]
    done = subprocess.run([*command, "--engine", "ray", "--profile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "command path" in done.stdout
    assert sha256_tree(tmp_path / "batch") == sha256_tree(local[0])
