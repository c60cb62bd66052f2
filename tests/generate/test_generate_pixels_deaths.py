"""A renderer that ends its process loses no finished frame: blocks stay, slow frames stay, the bytes are the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.generate_pixels_deaths import FRAGILE, IMAGES, ROOT
from twinloop.core.errors import TwinloopError
from twinloop.core.files import sha256_tree
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate import generate_states, render_dataset, resolve_config
from twinloop.generate.pixels import dataset as second_pass

SLOW = f"{ROOT / 'tests/support/fragile.py'}:Slow"


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """Twenty episodes of twenty steps of a double pendulum."""
    folder = tmp_path_factory.mktemp("states") / "states"
    value = {
        "scene": {"twin": "double_pendulum", "task": "benchmarks/speed/swing.py:Swing"},
        "rollout": {"parallel_envs": 20},
    }
    generate_states(resolve_config(value, where="test", folder=ROOT, keep="all"), folder)
    return folder


@pytest.fixture(scope="module")
def unbroken(states, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken") / "images"
    render_dataset(states, folder, IMAGES)
    return sha256_tree(folder)


def first_position(states: Path, episode: int, frame: int) -> float:
    return round(float(DatasetReader(states).states(episode)[frame, 1]), 4)


def dies(monkeypatch, tmp_path, states, *, episode, frame, times):
    folder = tmp_path / "deaths"
    folder.mkdir()
    monkeypatch.setenv("FRAGILE", f"{folder}:{first_position(states, episode, frame)}:{times}")
    return folder


def test_one_death_costs_nothing(states, unbroken, tmp_path, monkeypatch):
    deaths = dies(monkeypatch, tmp_path, states, episode=9, frame=7, times=1)
    metrics = render_dataset(states, tmp_path / "images", IMAGES, workers=1)
    assert len(list(deaths.iterdir())) == 1
    assert metrics["episodes"] == 20
    assert sha256_tree(tmp_path / "images") == unbroken
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deaths", "images"]


@pytest.mark.slow
def test_what_dies_twice_is_named_and_the_rest_is_kept(states, unbroken, tmp_path, monkeypatch):
    deaths = dies(monkeypatch, tmp_path, states, episode=9, frame=7, times=2)
    output = tmp_path / "images"
    with pytest.raises(
        TwinloopError,
        match=r"crashed its process twice .*episode 9, frames 0 to 19: its process was ended by signal 11 \(SIGSEGV\)",
    ) as error:
        render_dataset(states, output, IMAGES, workers=2)
    assert "8 episodes are committed" in str(error.value)
    assert "--resume" in str(error.value)
    assert len(list(deaths.iterdir())) == 2
    assert len(DatasetReader(output)) == 8
    log = tmp_path / "log"
    monkeypatch.setenv("FRAGILE_LOG", str(log))
    metrics = render_dataset(states, output, IMAGES, resume=True)
    assert metrics["episodes"] == 20
    assert sha256_tree(output) == unbroken
    again = {float(line) for line in log.read_text().split()}
    done = {float(state[1]) for episode in range(16, 20) for state in DatasetReader(states).states(episode)[:-1]}
    assert not again & done, "the block after the broken one had been finished, and waited"


@pytest.mark.slow
def test_frames_that_cost_seconds_outlive_their_process(states, tmp_path, monkeypatch):
    """Frames are rendered once if a process dies: in the same run, and in a run that is killed and resumed."""
    settings = IMAGES.model_copy(update={"renderer": SLOW, "episodes": 2})
    render_dataset(states, tmp_path / "plain", settings)
    monkeypatch.setenv("FRAGILE_LOG", str(tmp_path / "log"))
    dies(monkeypatch, tmp_path, states, episode=1, frame=15, times=2)
    with pytest.raises(TwinloopError, match="episode 1, frame 15:"):
        render_dataset(states, tmp_path / "images", settings, workers=1)
    monkeypatch.delenv("FRAGILE")
    render_dataset(states, tmp_path / "images", settings, resume=True)
    assert sha256_tree(tmp_path / "images") == sha256_tree(tmp_path / "plain")
    drawn = (tmp_path / "log").read_text().split()
    assert len(drawn) == 40 + 2  # the frame that ended two processes was started three times


@pytest.mark.slow
def test_other_settings_do_not_take_the_frames_that_were_kept(states, tmp_path, monkeypatch):
    settings = IMAGES.model_copy(update={"renderer": SLOW, "episodes": 1})
    dies(monkeypatch, tmp_path, states, episode=0, frame=15, times=2)
    with pytest.raises(TwinloopError, match="frame 15:"):
        render_dataset(states, tmp_path / "images", settings, workers=1)
    assert any((tmp_path / ".images.render").rglob("*.npz"))
    larger = settings.model_copy(update={"width": 32})
    render_dataset(states, tmp_path / "images", larger)
    assert DatasetReader(tmp_path / "images").images(0, "side").shape == (20, 16, 32, 3)
    assert not (tmp_path / ".images.render").exists()


def test_a_run_that_is_killed_goes_on(states, unbroken, tmp_path, monkeypatch):
    output = tmp_path / "images"
    code = (
        "import time\nfrom pathlib import Path\nfrom twinloop.generate import RenderConfig, render_dataset\n"
        "from twinloop.generate.pixels import dataset\nrender = dataset._RenderPass.record\n"
        "def slowly(self, index):\n    time.sleep(0.1)\n    return render(self, index)\n"
        "dataset._RenderPass.record = slowly\n"
        f"render_dataset(Path({str(states)!r}), Path({str(output)!r}), RenderConfig(**{IMAGES.model_dump()!r}))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    deadline = time.monotonic() + 60.0
    while not (output / "meta").is_dir() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < len(DatasetReader(output)) < 20
    render_dataset(states, output, IMAGES, resume=True)
    assert sha256_tree(output) == unbroken
    assert os.listdir(tmp_path) == ["images"]  # noqa: PTH208 - names alone


@pytest.mark.slow
def test_three_lost_blocks_are_enough(states, tmp_path, monkeypatch):
    monkeypatch.setattr(second_pass, "BLOCK", 2)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "killer.py").write_text(
        (ROOT / "tests/support/fragile.py").read_text().replace("round(float(position), 4) == float(where)", "True")
    )
    (tmp_path / "deaths").mkdir()
    monkeypatch.setenv("FRAGILE", f"{tmp_path / 'deaths'}:0:999")
    monkeypatch.setattr(second_pass, "check_render", lambda settings, twin: settings.renderer)
    settings = IMAGES.model_copy(update={"renderer": f"{tmp_path / 'killer.py'}:Fragile"})
    with pytest.raises(TwinloopError, match=r"episode 0, frames.*episode 2, frames.*episode 4, frames"):
        render_dataset(states, tmp_path / "images", settings, workers=1)
    assert len(list((tmp_path / "deaths").iterdir())) == 6


@pytest.mark.slow
def test_progress_and_json_are_said(states, tmp_path, capsys):
    from twinloop.cli.main import main

    words = ["render", str(states), "--renderer", FRAGILE, "--size", "24x16", "--episodes", "9", "--json"]
    assert main([*words, "--output", str(tmp_path / "x"), "--workers", "1"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert metrics["episodes"] == 9
    assert metrics["sizes"] == {"side": "24x16"}


@pytest.mark.slow
def test_what_was_there_before_counts_for_nothing_in_the_rate(states, tmp_path, capsys):
    from twinloop.cli.main import main

    words = ["render", str(states), "--renderer", FRAGILE, "--size", "24x16", "--episodes", "9", "--json"]
    words += ["--output", str(tmp_path / "x"), "--workers", "1"]
    assert main(words) == main([*words, "--resume"]) == 0
    first, again = (json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{"))
    assert again["episodes"] == first["episodes"] == 9
    assert first["images_per_second"] > 0
    assert again["images_per_second"] == again["episodes_per_second"] == 0
