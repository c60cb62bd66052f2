"""Long runs: batches are committed in blocks, few enough that a commit stays cheap, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.core.files import sha256_tree
from twinloop.core.pool import LocalProcesses
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate import config as settings
from twinloop.generate import generate_states, resolve_config
from twinloop.generate.batches import GenerateBatch, run_batch_job
from twinloop.generate.config import load_plan
from twinloop.rollout import software_versions

SWING = {
    "scene": {"twin": "double_pendulum", "task": "benchmarks/speed/swing.py:Swing"},
    "rollout": {"parallel_envs": 5},
}


@pytest.fixture
def config(request):
    """A run of 47 episodes in 10 batches of 5."""
    return resolve_config(SWING, where="test", folder=request.config.rootpath, episodes=47)


@pytest.mark.parametrize(
    ("episodes", "envs", "batch", "block"),
    [
        (12, 4, 4, 4),
        (32_768, 256, 128, 128),
        (32_769, 256, 128, 256),
        (100_000, 256, 128, 512),
        (100_000, 4, 4, 392),
        (10_000_000, 256, 128, 1024),
        (10_000_000, 3, 3, 1023),
    ],
)
def test_blocks_are_whole_batches_few_and_bounded(tmp_path, episodes, envs, batch, block):
    value = {"scene": {"robot": "so101", "task": "pick_and_place"}, "rollout": {"parallel_envs": envs}}
    config = resolve_config(value, where="test", folder=tmp_path, episodes=episodes)
    assert (config.batch_size, config.block_size) == (batch, block)
    assert config.block_size % config.batch_size == 0
    blocks = -(-episodes // config.block_size)
    assert blocks <= settings.BLOCKS or config.block_size + config.batch_size > settings.MAX_BLOCK


@pytest.mark.parametrize("backend", ["warp", "warp:cuda:1"])
def test_a_device_gets_larger_batches(tmp_path, backend):
    value = {"scene": {"robot": "so101", "task": "pick_and_place"}, "rollout": {"parallel_envs": 4096}}
    config = resolve_config(value, where="test", folder=tmp_path, episodes=10_000, backend=backend)
    assert (config.batch_size, config.block_size) == (2048, 2048)


def test_blocks_of_several_batches_hold_what_single_ones_do(config, tmp_path, monkeypatch):
    single = generate_states(config, tmp_path / "single")
    monkeypatch.setattr(settings, "BLOCKS", 4)
    assert config.block_size == 15
    several = generate_states(config, tmp_path / "several")
    one, two = DatasetReader(tmp_path / "single"), DatasetReader(tmp_path / "several")
    assert several["attempted"] == single["attempted"] == 47
    np.testing.assert_array_equal(one.numbers, two.numbers)
    for episode in range(len(one)):
        np.testing.assert_array_equal(one.states(episode), two.states(episode))
        assert one.provenance(episode) == two.provenance(episode)
    files = [len(list((tmp_path / name / "data").rglob("*.parquet"))) for name in ("single", "several")]
    assert files == [10, 4]


class Stopped(LocalProcesses):
    """Processes that are interrupted after some batches."""

    after = 4

    def map(self, function, items):
        for count, pair in enumerate(super().map(function, items)):
            if count == self.after:
                raise KeyboardInterrupt
            yield pair


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow
def test_a_run_stopped_within_a_block_resumes_from_the_last_whole_one(config, tmp_path, monkeypatch, workers):
    monkeypatch.setattr(settings, "BLOCKS", 4)
    generate_states(config, tmp_path / "whole")
    with Stopped(workers) as engine, pytest.raises(KeyboardInterrupt):
        generate_states(config, tmp_path / "stopped", engine=engine)
    assert DatasetReader(tmp_path / "stopped").numbers.max() < 15, "the second block had one batch of three"
    generate_states(config, tmp_path / "stopped", workers=workers, resume=True)
    assert sha256_tree(tmp_path / "stopped") == sha256_tree(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan_hash": "of another twin"}, "A worker read a different twin double_pendulum than the one of the run"),
        ({"versions": {"mujoco": "3.0"}}, r"A worker has mujoco \S+, .* the run was started with mujoco 3.0"),
    ],
)
def test_a_worker_that_would_write_other_bytes_is_refused(config, change, message):
    plan = load_plan(config)
    batch = GenerateBatch(
        config=config.model_dump_json(), plan_hash=plan.hash, versions=software_versions(), nthread=1, numbers=(0, 1)
    )
    assert len(run_batch_job(batch).episodes) == 2
    with pytest.raises(InputError, match=message):
        run_batch_job(replace(batch, **change))
