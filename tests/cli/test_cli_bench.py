"""``python -m benchmarks gpu``: consistent metrics on the CPU device; one clear line if there is no GPU."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from benchmarks.commands import PROGRAM
from benchmarks.speed.gpu import run_bench_images
from twinloop.cli.main import main
from twinloop.core.errors import InputError

pytest.importorskip("mujoco_warp", reason="mujoco-warp is not installed: pip install 'twinloop[gpu]'")
pytest.importorskip("torch", reason="torch is not installed: pip install 'twinloop[gpu]'")


@pytest.mark.slow
def test_metrics_hold_together(capsys):
    assert main(["gpu", "--device", "cpu", "--worlds", "1,16", "--rounds", "1", "--json"], PROGRAM) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["worlds"] for row in metrics["rows"]] == [1, 16]
    for row in metrics["rows"]:
        assert row["ratio"] == pytest.approx(row["steps_per_s"] / row["bare_steps_per_s"])
        assert row["ratio"] > 0.0
        assert row["successful_per_s"] == pytest.approx(row["success"] * row["trajectories_per_s"])
        assert row["success"] > 0.5
        assert row["memory_bytes"] > 1e8
    assert metrics["rows"][1]["steps_per_s"] > metrics["rows"][0]["steps_per_s"]
    assert [row["worlds"] for row in metrics["images"]["rows"]] == [1, 16]
    assert all(row["ratio"] > 0.0 for row in metrics["images"]["rows"])


def test_images_of_worlds_are_timed_on_the_cpu_too(capsys):
    metrics = run_bench_images(Console(), device="cpu", worlds=[1, 4], rounds=1, height=32, width=48)
    assert [row["worlds"] for row in metrics["rows"]] == [1, 4]
    for row in metrics["rows"]:
        assert row["images_per_s"] > 1.0
        assert row["bare_images_per_s"] > 1.0
        assert row["ratio"] > 0.0
    assert "bare images/s" in capsys.readouterr().out
    with pytest.raises(InputError, match="Give at least one number of worlds"):
        run_bench_images(Console(), device="cpu", worlds=[0])


@pytest.mark.gpu
@pytest.mark.bench
def test_images_of_many_worlds_are_made_faster_on_a_gpu():
    rows = run_bench_images(Console(quiet=True), worlds=[1, 4096])["rows"]
    assert rows[1]["images_per_s"] > 20 * rows[0]["images_per_s"]


def test_without_a_gpu_it_says_what_is_missing_and_what_goes_without(capsys, monkeypatch):
    monkeypatch.setattr("warp.is_cuda_available", lambda: False)
    assert main(["gpu"], PROGRAM) == 3
    message = " ".join(capsys.readouterr().err.split())
    assert "finds no CUDA device" in message
    assert "--device cpu" in message


@pytest.mark.parametrize(("worlds", "words"), [("0", "each at least 1"), ("four", "whole numbers separated by commas")])
def test_numbers_of_worlds_that_make_no_sense_are_wrong_input(capsys, worlds, words):
    assert main(["gpu", "--device", "cpu", "--worlds", worlds], PROGRAM) == 2
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.gpu
@pytest.mark.bench
def test_many_worlds_reach_nine_tenths_of_the_bare_loop_on_a_gpu(capsys):
    assert main(["gpu", "--worlds", "4096,16384", "--json"], PROGRAM) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert min(row["ratio"] for row in metrics["rows"]) >= metrics["target"]
