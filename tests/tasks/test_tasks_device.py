"""The expert acts the same on a device's arrays, and whole episodes there have the results of the host."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import ks_2samp

from twinloop.randomize import Plan, default_draws
from twinloop.rollout import run_batch
from twinloop.simulate import open_backend, rollout
from twinloop.simulate.arrays import ArrayLibrary, to_host
from twinloop.simulate.protocol import DeviceController
from twinloop.stats import wilson
from twinloop.tasks import open_task
from twinloop.tasks.pick_and_place_expert import ExpertPhase
from twinloop.twin import load_twin

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'twinloop[gpu]'")


@pytest.fixture(scope="module")
def twin():
    return load_twin("so101_tabletop")


@pytest.fixture(scope="module")
def task(twin):
    return open_task("pick_and_place", twin)


def worlds(twin, task, nworld):
    params = Plan(twin=twin, run_seed=7, draws=tuple(default_draws(twin))).draw(range(nworld))
    return params, task.reset(params, run_seed=7, episodes=range(nworld))


@pytest.mark.parametrize(
    ("seconds", "phase"), [(2.0, ExpertPhase.CLOSE), pytest.param(6.0, ExpertPhase.HOME, marks=pytest.mark.slow)]
)
def test_an_expert_gives_the_same_commands_on_torch_as_on_numpy(twin, task, seconds, phase):
    """Both see the same positions on the way to a phase; a matrix is solved by another routine, the rest is equal."""
    params, initial = worlds(twin, task, 4)
    expert = task.expert(initial)
    assert isinstance(expert, DeviceController)
    on_torch = expert.to_library(ArrayLibrary.of(torch.zeros(0)))
    simulation = open_backend("threads").start(twin, params, initial, task.nstep)
    difference, moved = 0.0, initial.command
    for _ in range(round(seconds * twin.control_hz)):
        seen = SimpleNamespace(qpos=torch.as_tensor(simulation.qpos))
        command, other = expert(simulation), on_torch(seen)
        assert other.dtype == torch.float64
        difference = max(difference, np.abs(command - to_host(other)).max())
        moved = np.maximum(moved, command)
        simulation.advance(command)
    assert (expert._phase >= phase).all()
    assert (moved - initial.command).max() > 0.5
    assert difference < 1e-9


class Watched:
    """A simulation whose face to the host must not be looked at."""

    def __init__(self, simulation):
        self.device = simulation.device

    def __getattr__(self, name):
        raise AssertionError(f"{name} was asked of the host's face")


def test_the_expert_and_the_recording_stay_on_the_device_until_the_end(twin, task, monkeypatch):
    pytest.importorskip("mujoco_warp", reason="mujoco-warp is not installed: pip install 'twinloop[gpu]'")
    params, initial = worlds(twin, task, 2)
    backend = open_backend("warp:cpu")
    guarded = SimpleNamespace(start=lambda *args, **options: Watched(backend.start(*args, **options)))
    result = rollout(guarded, twin, params, initial, task.expert(initial), 4)
    expected = rollout(open_backend("threads"), twin, params, initial, task.expert(initial), 4)
    np.testing.assert_allclose(result.commands, expected.commands, atol=1e-6)
    np.testing.assert_allclose(result.qpos, expected.qpos, atol=1e-5)


def test_a_controller_that_knows_only_the_host_runs_on_the_device_too(twin, task):
    pytest.importorskip("mujoco_warp", reason="mujoco-warp is not installed: pip install 'twinloop[gpu]'")
    params, initial = worlds(twin, task, 2)
    expert = task.expert(initial)
    result = rollout(open_backend("warp:cpu"), twin, params, initial, lambda simulation: expert(simulation), 4)
    same = rollout(open_backend("warp:cpu"), twin, params, initial, task.expert(initial), 4)
    np.testing.assert_allclose(result.commands, same.commands, atol=1e-9)


def compare(twin, task, nworld, backend):
    """Success within Wilson's 99 % interval of the host's; half of the objects end within a millimetre of the host's.

    Where they end from the target is one distribution by the Kolmogorov-Smirnov test at 1 % per axis.
    """
    params, _ = worlds(twin, task, nworld)
    runs = [
        run_batch(twin, task, params, run_seed=7, episodes=range(nworld), backend=open_backend(name))
        for name in ("threads", backend)
    ]
    rows = slice(task.object.qpos, task.object.qpos + 2)
    ends = [run.trajectories.qpos[:, -1, rows] - task.target_position(run.initial)[:, :2] for run in runs]
    assert runs[1].trajectories.valid.all()
    rates = [run.success.mean() for run in runs]
    interval = wilson(int(runs[0].success.sum()), nworld, level=0.99)
    assert interval.low <= rates[1] <= interval.high
    assert np.median(np.linalg.norm(ends[0] - ends[1], axis=1)) < 1e-3
    for axis in range(2):
        assert ks_2samp(ends[0][:, axis], ends[1][:, axis]).pvalue > 0.01


@pytest.mark.slow
def test_32_episodes_succeed_and_end_as_on_the_host(twin, task):
    pytest.importorskip("mujoco_warp", reason="mujoco-warp is not installed: pip install 'twinloop[gpu]'")
    compare(twin, task, 32, "warp:cpu")


@pytest.mark.gpu
def test_a_thousand_episodes_succeed_and_end_as_on_the_host(twin, task):
    compare(twin, task, 1000, "warp")
