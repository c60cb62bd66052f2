"""The loop: the same weights every time and after being killed, batches that break named, and when it ends."""

from __future__ import annotations

import json
import math
import os
import signal

import numpy as np
import pytest

from support.training import config, dataset, frames
from twinloop.core.contract import ACTION, STATE
from twinloop.core.errors import CheckFailedError, InputError
from twinloop.policies import open_policy, read_settings
from twinloop.policies.statistics import LAST_COMMAND
from twinloop.train import preparation
from twinloop.train.additions import TrainingAdditions
from twinloop.train.loop import learning_rate

torch = pytest.importorskip("torch")
import twinloop.train.run as run_module  # noqa: E402

train, RESULT = run_module.train, run_module.RESULT
Loop, Samples = run_module.TrainingLoop, run_module.SampleBatches
FILE = "checkpoint.safetensors"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    return dataset(root / "sim", range(20)), dataset(root / "real", range(30, 40), real=True)


@pytest.mark.parametrize("kind", ["mlp", "adaptive"])
def test_samples_never_cross_an_episode_and_what_is_missing_is_marked(kind):
    data = frames([[5, 1, 7], [3]])
    settings = read_settings(kind, {"n_obs_steps": 3, "chunk_size": 4, "last_command": True})
    samples = Samples(data, settings=settings)
    batch = {key: values.numpy() for key, values in samples.batch(np.arange(data.frames)).items()}
    for frame in range(data.frames):  # slowly, one by one
        episode = int(data.episode_of(np.array([frame]))[0])
        first, last = int(data.first[episode]), int(data.last[episode])
        past = [max(first, frame + step) for step in (-2, -1, 0)]
        ahead = [frame + step for step in range(4)]
        np.testing.assert_array_equal(batch[STATE][frame], data.columns[STATE][past])
        np.testing.assert_array_equal(batch["action_is_pad"][frame], [at > last for at in ahead])
        np.testing.assert_array_equal(batch[ACTION][frame], data.columns[ACTION][[min(at, last) for at in ahead]])
        held = [data.columns[STATE][at] if at == first else data.columns[ACTION][at - 1] for at in past]
        np.testing.assert_array_equal(batch[LAST_COMMAND][frame], held if kind == "adaptive" else held[-1])


def test_the_rate_rises_to_its_peak_and_falls_along_a_cosine_to_zero():
    rates = [learning_rate(step, steps=100, peak=2.0, warmup=0.1) for step in range(101)]
    np.testing.assert_allclose(rates[:10], 2.0 * np.arange(1, 11) / 10)
    assert rates[55] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.0)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(folders, tmp_path):
    state = torch.get_rng_state()
    runs = [train(config(*folders, seed=seed), tmp_path / name) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    hashes = [open_policy(tmp_path / name).hash for name in "abc"]  # of the bytes of all tensors
    assert hashes[0] == hashes[1] != hashes[2]
    assert runs[0].metrics["losses"] == runs[1].metrics["losses"]
    assert torch.equal(torch.get_rng_state(), state)
    assert not (tmp_path / "a" / FILE).exists()
    assert hashes[0] == runs[0].metrics["hash"]


def test_a_run_that_was_killed_and_resumed_has_the_weights_of_an_unbroken_one(folders, tmp_path):
    said = config(*folders, ema=0.9, curriculum={}, domain_token={"dropout": 0.3})
    train(said, tmp_path / "whole")
    child = os.fork()
    if child == 0:  # killed in the middle of step 7, with the checkpoint of step 4 on the disk
        step = Loop._step

        def killed(self):
            step(self)
            if self.progress.step == 7:
                os.kill(os.getpid(), signal.SIGKILL)

        Loop._step = killed
        try:
            train(said, tmp_path / "broken")
        finally:
            os._exit(0)  # after any error, the child does not continue the tests
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with pytest.raises(InputError, match="holds an interrupted run. Continue it with --resume"):
        train(said, tmp_path / "broken")
    with pytest.raises(InputError, match="belongs to a run with another configuration"):
        train(said.model_copy(update={"lr": 1.0}), tmp_path / "broken", resume=True)
    train(said, tmp_path / "broken", resume=True)
    first, second = (json.loads((tmp_path / name / RESULT).read_text()) for name in ("whole", "broken"))
    assert first["hash"] == second["hash"]  # of the bytes of all tensors
    assert first["losses"] == second["losses"]
    assert first["evaluations"] == second["evaluations"]
    assert first["sources"] == second["sources"]


def test_the_average_of_the_weights_is_the_result(folders, tmp_path, monkeypatch):
    step, mean = Loop._step, []

    def averaged(self):
        step(self)
        new, done = self.policy.network.head.bias.detach().clone(), len(mean)
        decay = min(0.5, (1 + done) / (10 + done))
        mean.append(decay * mean[-1] + (1 - decay) * new if mean else new)

    monkeypatch.setattr(Loop, "_step", averaged)
    train(config(*folders, ema=0.5, lr=0.1), tmp_path / "policy")
    result = open_policy(tmp_path / "policy").network.head.bias.detach()
    torch.testing.assert_close(result, mean[-1], atol=1e-7, rtol=0)
    assert not torch.allclose(mean[-1], mean[-2], atol=1e-3)


def test_resuming_without_or_with_a_damaged_checkpoint_is_refused(folders, tmp_path):
    with pytest.raises(InputError, match="holds no run to resume: checkpoint.safetensors is missing"):
        train(config(*folders), tmp_path / "none", resume=True)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / FILE).write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")
    with pytest.raises(InputError, match="is not a complete checkpoint"):
        train(config(*folders), tmp_path / "cut", resume=True)


def test_a_batch_that_breaks_is_named_and_the_checkpoint_before_it_is_kept(folders, tmp_path, monkeypatch):
    loaded = preparation.load_frames

    def planted(*args, **named):
        data = loaded(*args, **named)
        data.columns[ACTION][int(data.first[25]) + 3] = 1e30  # episode 5 of real: its square overflows
        return data

    monkeypatch.setattr(preparation, "load_frames", planted)
    said = config(*folders, holdout=0.0, normalization="sim", steps=60, evaluations=60)
    with pytest.raises(CheckFailedError) as caught:
        train(said, tmp_path / "out")
    message = str(caught.value)
    assert "of batch" in message
    assert "is not finite, so training stopped. Not finite: episode 5 frame" in message
    assert "of source real (" in message
    assert "file-000.parquet)" in message
    step = int(message.split("The loss of batch ")[1].split()[0])
    if step:
        assert f"The checkpoint of step {step} is kept: {tmp_path / 'out' / FILE}." in message
    tensors = pytest.importorskip("safetensors.torch").load_file(tmp_path / "out" / FILE)
    assert all(torch.isfinite(values).all() for values in tensors.values())


def test_training_ends_early_on_the_real_held_out_error_and_keeps_the_best(folders, tmp_path):
    said = config(*folders, steps=400, evaluations=40, patience=2, lr=0.05, warmup=0)
    metrics = train(said, tmp_path / "out").metrics
    assert metrics["judges"] == ["real"]
    assert metrics["steps"] < 400
    seen = [row["metric"] for row in metrics["evaluations"]]
    assert metrics["kept_step"] == metrics["evaluations"][int(np.argmin(seen))]["step"]
    assert min(seen) == seen[-3]
    real = next(row for row in metrics["held_out"] if row["source"] == "real")
    assert real["scaled"] == pytest.approx(min(seen), rel=1e-6)
    assert any("stopped early" in note for note in metrics["notes"])


def test_a_policy_learns_and_its_result_says_what_it_was_made_of(folders, tmp_path):
    metrics = train(config(*folders, steps=150, sim_fraction=0.75, seed=2), tmp_path / "out").metrics
    assert metrics["losses"][-1][1] < 0.5 * metrics["losses"][0][1]
    sim, real = metrics["sources"]
    assert (sim["samples"], real["samples"]) == (150 * 12, 150 * 4)
    assert sim["share_realized"] == 0.75
    assert (sim["episodes"], sim["held_out"]) == (18, 2)
    assert metrics["normalization"] == "frames of sim 0.75, real 0.25"
    errors = {row["source"]: row["by_unit"]["deg"] for row in metrics["held_out"]}
    assert all(row["low"] <= row["estimate"] <= row["high"] for row in errors.values())
    assert json.loads((tmp_path / "out" / RESULT).read_text())["hash"] == metrics["hash"]
    with pytest.raises(InputError, match="holds a finished run. Choose another --output"):
        train(config(*folders), tmp_path / "out")


def test_without_anything_held_out_the_result_says_that_no_error_is_known(folders, tmp_path):
    metrics = train(config(folders[0], holdout=0.0, steps=2), tmp_path / "out").metrics
    assert metrics["held_out"] == []
    assert any("no episodes are held out" in note for note in metrics["notes"])
    said = train(config(folders[0], steps=2), tmp_path / "sim").metrics
    assert any("no real episode is held out: the deciding error is that of sim" in n for n in said["notes"])


def test_domain_tokens_are_the_sources_and_the_real_one_is_the_default(folders, tmp_path):
    policy = train(config(*folders, domain_token={"dropout": 0.5}, steps=2), tmp_path / "out").policy
    assert policy.settings.domains == ("sim", "real")
    assert policy.settings.default_domain == "real"


def test_additions_choose_weights_change_batches_and_add_to_the_loss(folders, tmp_path):
    seen = []

    def made(policy, given):
        assert len(given.training) == 26

        def term(_, batch):
            seen.append(batch["source"].tolist())
            return policy.network.head.weight.square().sum()

        return TrainingAdditions(
            parameters=lambda policy: [{"params": list(policy.network.head.parameters()), "lr": 1e-4}],
            transform=lambda batch: {**batch, STATE: batch[STATE] * 0},
            terms={"small": term},
            facts={"method": "head"},
        )

    base = train(config(*folders, steps=2), tmp_path / "base").policy
    before = {name: values.clone() for name, values in base.state_dict().items()}
    tuned = train(config(*folders, steps=3), tmp_path / "tuned", base=base, additions=made)
    moved = {name for name, values in tuned.policy.state_dict().items() if not torch.equal(values, before[name])}
    assert moved == {"network.head.weight", "network.head.bias"}
    assert len(seen) == 3
    assert all(row == sorted(row) for row in seen)
    assert tuned.metrics["adaptation"] == {"method": "head"}
    assert math.isfinite(tuned.metrics["losses"][-1][1])
