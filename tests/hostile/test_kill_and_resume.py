"""SIGKILL at any moment: committed data are whole, and the repeated command ends as if undisturbed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _campaign import Campaign
from _campaign_jobs import again, campaign, environment_of, killed_at_random
from _campaign_verbs import VERBS, leftovers, whole

from twinloop.core.errors import DatasetLockedError, InputError
from twinloop.core.files import sha256_tree
from twinloop.dataset.export.protocol import create_output_folder
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.storage.snapshot import FolderLock, create_locked_snapshot
from twinloop.report import ReportPage
from twinloop.workflows.run.results import claim_output, write_run

NAMED = ("identify", "train", "import", "pull", "curate", "generate")  # those that the issue names, and generate
POINTS = {name: 12 if name in NAMED else 3 for name in VERBS}
MOMENTS = {"identify": 6, "train": 6, "import": 6, "pull": 6, "curate": 6, "generate": 6}
SECONDS = {"identify": 6.0, "train": 10.0, "import": 4.0, "pull": 4.0, "curate": 6.0, "generate": 5.0}
WHOLE = (
    "fsck finds nothing wrong, the command run again ends as an unbroken run, "
    "and fsck --repair leaves no temporary file"
)


@pytest.fixture(name="run", scope="module")
def running_campaign() -> Iterator[tuple[Campaign, Path]]:
    """One process with everything loaded, and the folder that all copies are made of."""
    with campaign() as both:
        yield both


def _unbroken(run: tuple[Campaign, Path], name: str, environment: dict[str, str]) -> dict[str, Any]:
    if VERBS[name].missing:
        pytest.skip(f"{VERBS[name].missing} is not installed")
    plain = run[0].do("_campaign_jobs:unbroken", world=str(run[1]), name=name, environment=environment)
    assert plain["code"] in (0, 1), plain["text"]
    return plain


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=name.replace(" ", "-"), marks=pytest.mark.attack(
        f"`twinloop {name}` ended by SIGKILL at {POINTS[name]} write points, each in a workspace of its own",
        expected=WHOLE)) for name in VERBS],
)  # fmt: skip
def test_killed_at_write_points(name: str, run: tuple[Campaign, Path], observed: Callable[[object], None]) -> None:
    with environment_of(name, run[1]) as environment:
        plain = _unbroken(run, name, environment)
        rng, count = random.Random(name), plain["points"]
        points = sorted({*rng.sample(range(count), min(count, POINTS[name])), count - 1})  # with the last one
        given = {"world": str(run[1]), "name": name, "at": points, "environment": environment}
        tries = run[0].do("_campaign_jobs:killed", **given)
    fewer = count if name == "pull" else 1  # a retry more or less; a download in other pieces, as the machine is busy
    assert sum(one["code"] == -signal.SIGKILL for one in tries) >= (len(tries) - 1) / 2
    for one in tries:
        late = one["at"] >= count - fewer and one["code"] == plain["code"]  # it had fewer points than the unbroken run
        assert one["code"] == -signal.SIGKILL or late, one
        assert one["wrong"] == one["after"] == [], one
        assert one["again"] in (0, plain["code"]), one
        assert VERBS[name].unlike(one["made"], plain["made"]) == [], (name, one["at"], one["text"])
        assert VERBS[name].left(one["hidden"], plain["hidden"]) == [], one
    observed(f"{len(tries)} kills at {count} write points: each time whole, and finished as an unbroken run")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=name, marks=pytest.mark.attack(
        f"the real program `twinloop {name}` ended by SIGKILL at {MOMENTS[name]} random moments, one after the other",
        expected=WHOLE)) for name in MOMENTS],
)  # fmt: skip
def test_killed_at_random_moments(
    name: str,
    run: tuple[Campaign, Path],
    monkeypatch: pytest.MonkeyPatch,
    observed: Callable[[object], None],
) -> None:
    with environment_of(name, run[1]) as environment:
        plain = _unbroken(run, name, environment)
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        with killed_at_random(run[1], name, moments=MOMENTS[name], seconds=SECONDS[name]) as (cell, codes):
            assert whole(cell) == []
            ran = again(VERBS[name], cell, environment)
            assert ran.code in (0, plain["code"]), ran.text
            assert VERBS[name].unlike(VERBS[name].made(cell), plain["made"]) == []
            assert whole(cell) == []
            assert set(leftovers(cell.parent)) <= set(plain["hidden"])
    observed(f"ended with {codes}; whole, and finished as an unbroken run")


# Without the campaign: single writers, each ended at the moment that matters most.


def _killed_in(folder: Path, work: Callable[[], None]) -> None:
    """Run something in a fork that kills itself."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, folder


def _die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.attack("an export is ended by SIGKILL half way, and run again",
                    expected="the second export begins anew and finishes; nothing of the first is left")  # fmt: skip
def test_an_export_after_a_killed_one(tmp_path: Path) -> None:
    def half() -> None:
        with create_output_folder(tmp_path / "out") as stage:
            (stage / "half").write_text("half")
            _die()

    _killed_in(tmp_path, half)
    assert not (tmp_path / "out").exists()
    with create_output_folder(tmp_path / "out") as stage:
        assert list(stage.iterdir()) == []
        (stage / "whole").write_text("whole")
    assert os.listdir(tmp_path) == ["out"]  # noqa: PTH208 - hidden names too
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["whole"]


@pytest.mark.attack("an import is ended by SIGKILL between two blocks, and its folder is read",
                    expected="the reader sees the blocks that were committed, whole")  # fmt: skip
def test_a_reader_after_a_killed_writer(tmp_path: Path, observed: Callable[[object], None]) -> None:
    from support.dataset_writer import SPEC, commit
    from twinloop.dataset.lerobot.writer import DatasetWriter

    def half() -> None:
        with DatasetWriter.open(tmp_path / "set", SPEC) as writer:
            commit(writer, 0)
            os.fsync = _die  # type: ignore[assignment]
            commit(writer, 1)

    _killed_in(tmp_path, half)
    reader = DatasetReader(tmp_path / "set")
    for index in range(len(reader)):
        assert np.isfinite(reader.states(index)).all()
    committed = len(reader)
    with DatasetWriter.open(tmp_path / "set", SPEC, resume=True) as writer:
        assert writer.next_block == 1
        for block in range(1, 4):
            commit(writer, block)
        writer.finish({})
    with DatasetWriter.open(tmp_path / "plain", SPEC) as writer:
        for block in range(4):
            commit(writer, block)
        writer.finish({})
    assert sha256_tree(tmp_path / "set") == sha256_tree(tmp_path / "plain")
    observed(f"{committed} episodes of one block, then the bytes of an unbroken run")


@pytest.mark.attack("a measurement is ended by SIGKILL after its report and before its figures",
                    expected="the folder does not count as finished, and the same command writes both")  # fmt: skip
def test_a_run_without_metrics_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    folder, console = tmp_path / "run", Console(quiet=True)

    def half() -> None:
        monkeypatch.setattr("twinloop.workflows.run.results.write_result", _die)
        write_run(folder, {"verb": "test"}, ReportPage("A run", ""), lambda page: None, console)

    _killed_in(tmp_path, half)
    assert (folder / "report.html").is_file()
    assert not (folder / "result.json").exists()
    claim_output(folder)
    write_run(folder, {"verb": "test"}, ReportPage("A run", ""), lambda page: None, console)
    assert json.loads((folder / "result.json").read_text()) == {"verb": "test"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    with pytest.raises(InputError, match="holds an earlier run"):
        write_run(folder, {"verb": "other"}, ReportPage("A run", ""), lambda page: None, console)


def test_lock_files_of_ended_writers_are_removed_when_a_finished_run_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run [1]"
    folder.mkdir()
    (folder / "result.json").write_text("{}")
    for purpose in ("", "run.", "training."):
        (tmp_path / f".run [1].{purpose}lock").write_text("4000000")
    held = FolderLock(folder, "held")
    with pytest.raises(InputError, match="holds an earlier run"):
        claim_output(folder)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [".run [1].held.lock"]
    held.release()


@pytest.mark.attack("a writer that holds a folder is ended by SIGKILL, and another one wants it",
                    expected="the lock is free at once, though its file is still there")  # fmt: skip
def test_a_lock_dies_with_its_process(tmp_path: Path, observed: Callable[[object], None]) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom twinloop.dataset.storage.snapshot import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1]))\nprint('held', flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "set")], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DatasetLockedError, match=f"process {holder.pid}") as caught:
            FolderLock(tmp_path / "set")
        holder.kill()
        holder.wait()
    assert (tmp_path / ".set.lock").is_file()
    began = time.monotonic()
    FolderLock(tmp_path / "set").release()
    assert time.monotonic() - began < 5.0
    assert list(tmp_path.iterdir()) == []
    observed(caught.value)


@pytest.mark.attack("a store's dataset is fetched, and the process is ended by SIGKILL while files arrive",
                    expected="no half folder; the next fetch takes over the lock and what was left")  # fmt: skip
def test_a_fetch_after_a_killed_one(tmp_path: Path) -> None:
    def half() -> None:
        with create_locked_snapshot(tmp_path / "set") as stage:
            (stage / "meta").mkdir()
            (stage / "meta" / "info.json").write_text("{}")
            _die()

    _killed_in(tmp_path, half)
    assert not (tmp_path / "set").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".set.lock", ".set.next"]
    with create_locked_snapshot(tmp_path / "set") as stage:
        assert list(stage.iterdir()) == []
        (stage / "whole").write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.attack("a workspace is made, and the process is ended by SIGKILL at each of its files",
                    expected="either no workspace, or a whole one; `twinloop init` again makes it")  # fmt: skip
def test_a_workspace_is_whole_once_it_is_one(tmp_path: Path, observed: Callable[[object], None]) -> None:
    from twinloop.catalog import Workspace

    rename, made = Path.replace, 0
    for point in range(20):
        root = tmp_path / str(point)

        def half(root: Path = root, point: int = point) -> None:
            left = [point]

            def replace(self: Path, target: Path) -> Path:
                left[0] -= 1
                if left[0] < 0:
                    _die()
                return rename(self, target)

            Path.replace = replace  # type: ignore[method-assign]
            Workspace.create(root, files={".gitignore": "*", "generate.yaml": "seed: 0"})

        child = os.fork()
        if child == 0:
            try:
                half()
            finally:
                os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        if not killed:
            break
        made += 1
        assert not (root / "twinloop.yaml").is_file() or (root / "generate.yaml").is_file()
        if not (root / "twinloop.yaml").is_file():
            Workspace.create(root, files={".gitignore": "*", "generate.yaml": "seed: 0"}).close()
        with Workspace.open(root) as ws:
            assert ws.query("SELECT count(*) AS n FROM episodes")["n"].to_pylist() == [0]
        assert leftovers(root) == []
    assert made >= 4
    observed(f"{made} kills")


@pytest.mark.attack("a render is ended by SIGKILL after a finished video was taken into the dataset, and resumed",
                    expected="--resume goes on; the bytes are those of an unbroken run")  # fmt: skip
def test_a_render_whose_commit_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from support.generate_pixels_deaths import IMAGES
    from twinloop.dataset.storage.snapshot import _sync_tree
    from twinloop.generate import generate_states, render_dataset, resolve_config

    root = Path(__file__).parents[2]
    scene = {"twin": "double_pendulum", "task": "benchmarks/speed/swing.py:Swing"}
    config = resolve_config({"scene": scene, "rollout": {"parallel_envs": 4}}, where="test", folder=root, keep="all")
    generate_states(config, tmp_path / "states")
    render_dataset(tmp_path / "states", tmp_path / "plain", IMAGES)

    def half() -> None:
        monkeypatch.setattr("twinloop.dataset.storage.snapshot._sync_tree", lambda *given: (_sync_tree(*given), _die()))
        render_dataset(tmp_path / "states", tmp_path / "images", IMAGES)

    _killed_in(tmp_path, half)
    assert any((tmp_path / ".images.render").rglob("*.mp4"))
    monkeypatch.setenv("FRAGILE_LOG", str(tmp_path / "drawn"))
    render_dataset(tmp_path / "states", tmp_path / "images", IMAGES, resume=True)
    assert not (tmp_path / "drawn").exists(), "finished pictures were rendered anew"
    assert sha256_tree(tmp_path / "images") == sha256_tree(tmp_path / "plain")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "plain", "states"]


@pytest.mark.slow
@pytest.mark.attack(
    "a training is ended after its last step, before its report and its entry in the workspace",
    expected="--resume writes both, and trains nothing anew",
)
def test_a_training_that_ended_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from _campaign_verbs import SMALL

    from support.training import dataset
    from twinloop.catalog import Workspace
    from twinloop.cli.main import main

    Workspace.create(tmp_path / "cell").close()
    monkeypatch.chdir(tmp_path / "cell")
    dataset(tmp_path / "cell" / "data" / "planted", range(4))
    words = ["train", "--data", "data/planted", "--output", "policies/new", *SMALL]
    with monkeypatch.context() as patch:
        patch.setattr(
            "twinloop.workflows.train.train._print_summary", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        assert main(words) == 130
    assert (tmp_path / "cell" / "policies" / "new" / "result.json").is_file()
    assert main(words) == 2
    monkeypatch.setattr("twinloop.workflows.train.train.train", lambda *_, **__: pytest.fail("trained anew"))
    assert main([*words, "--resume", "--seed", "5"]) == 2
    assert "another configuration" in " ".join(capfd.readouterr().err.split())
    assert main([*words, "--resume"]) == 0
    assert (tmp_path / "cell" / "policies" / "new" / "report.html").is_file()
    with Workspace.open(tmp_path / "cell") as ws:
        assert ws.query("SELECT name FROM policies")["name"].to_pylist() == ["new"]
    assert main([*words, "--resume"]) == 2
