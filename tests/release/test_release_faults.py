"""Kills at any point and concurrent writers: a release happened completely or not at all."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest

from support.killed import Forks
from support.releases import act, policy_folder, registry_of, released
from twinloop.catalog import Workspace
from twinloop.catalog.fsck_state import check_release
from twinloop.core.errors import DatasetError, InputError
from twinloop.release import StageTracker, rollback

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["twinloop.release", "twinloop.stats", "duckdb", "secrets", "pyarrow.parquet", "encodings.utf_8_sig"]
)
pytestmark = pytest.mark.slow  # separate processes, each of which loads everything


@pytest.fixture(name="made", scope="module")
def made_once(tmp_path_factory):
    return released(tmp_path_factory.mktemp("made") / "cell")


@pytest.fixture(name="forks", scope="module")
def fork_server():
    with Forks.open() as forks:
        yield forks


def seen(root: Path) -> str:
    """All release data that a reader gets, without times and hashes."""
    with Workspace.open(root) as ws:
        registry = registry_of(ws)
        for version in registry.versions():
            registry.folder(version.reference)
        told = [(entry.action, entry.policy, entry.details["aliases"]) for entry in registry.audit()]
        stages = sorted((one.policy, one.stage) for one in StageTracker(registry).history())
        episodes = ws.state.rows("SELECT policy, stage, episode, arm FROM release_episodes")
        names = [version.reference for version in registry.versions()]
        return json.dumps([names, registry.aliases(), told, stages, episodes], sort_keys=True)


def wrong(root: Path) -> list[str]:
    """What fsck finds that is no mere leftover."""
    with Workspace.open(root) as ws:
        return [finding.problem for finding in check_release(root, ws.state) if finding.kind != "leftover"]


def prepared(made: Path, folder: Path, what: str) -> Path:
    root = shutil.copytree(made, folder)
    if what == "outcome":
        with Workspace.open(root) as ws:
            act(ws, "send")
    return root


def walked(forks: Forks, made: Path, folder: Path, what: str) -> int:
    """End ``what`` at write points; each time all of it is there or nothing, and again it is done."""
    before = seen(prepared(made, folder / "before", what))
    finished = prepared(made, folder / "finished", what)
    assert forks.run(10_000, finished, f"release {what}") == 0
    after = seen(finished)
    assert before != after
    for step in range(10_000):
        root = prepared(made, folder / f"step-{step}", what)
        code = forks.run(step, root, f"release {what}")
        assert code in (0, -signal.SIGKILL)
        assert seen(root) in ((after,) if code == 0 else (before, after)), (what, step)
        assert wrong(root) == [], (what, step)
        assert forks.run(10_000, root, f"release {what}") == 0
        if what != "gate":  # deciding again is another decision
            assert seen(root) == after, (what, step)
        assert wrong(root) == [], (what, step)
        shutil.rmtree(root)
        if code == 0:
            return step
    raise AssertionError


@pytest.mark.parametrize(
    ("what", "least"), [("add", 20), ("gate", 6), ("send", 6), ("outcome", 8), ("crown", 8), ("rollback", 8)]
)
def test_no_write_point_leaves_half_of_anything(forks, made, tmp_path, what, least):
    assert walked(forks, made, tmp_path, what) >= least


def test_the_first_addition_may_be_killed_too(forks, tmp_path):
    """There is no log yet that an external record could confirm."""
    for step in (3, 30):
        root = tmp_path / f"cell-{step}"
        Workspace.create(root).close()
        policy_folder(root / "trained", 9)
        forks.run(step, root, "release add")
        assert wrong(root) == []
        assert forks.run(10_000, root, "release add") == 0
        assert wrong(root) == []


def _add_many(root: Path, first: int) -> None:
    with Workspace.open(root) as ws:
        registry = registry_of(ws)
        for number in range(first, first + 6):
            folder = policy_folder(root / "made" / f"{first}-{number}", number)
            registry.add(folder, name="shared", policy=str(number))


def test_two_writers_number_their_versions_one_after_the_other(made, tmp_path):
    root = shutil.copytree(made, tmp_path / "cell")
    writers = [PROCESSES.Process(target=_add_many, args=(root, first)) for first in (10, 13)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    with Workspace.open(root) as ws:
        found = [one for one in registry_of(ws).versions() if one.name == "shared"]
        assert sorted(one.version for one in found) == list(range(1, 10))  # 10 to 18, three of them added by both
        assert len({one.hash for one in found}) == 9
    assert wrong(root) == []


def _read_only(root: Path) -> None:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    with Workspace.open(root) as ws:
        registry = registry_of(ws)
        assert registry.version("champion").reference == "pick@2"
        assert registry.folder("champion").is_dir()
        assert StageTracker(registry).assign_arm(3) == "champion"
        for change in (
            lambda: registry.add(root / "trained", name="pick", policy="9"),
            lambda: rollback(registry, "why"),
            lambda: act(ws, "send"),
        ):
            with pytest.raises((DatasetError, InputError), match=r"cannot be written|could not be written"):
                change()
    os._exit(7)


def test_a_workspace_that_cannot_be_written_answers_and_refuses(made, tmp_path):
    root = shutil.copytree(made, tmp_path / "cell")
    paths = [root, *root.rglob("*")]
    parents = [parent for parent in root.parents if parent.is_relative_to("/tmp") and parent != Path("/tmp")]
    modes = {path: path.stat().st_mode for path in parents}
    for path in parents:
        path.chmod(0o755)
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        process = PROCESSES.Process(target=_read_only, args=(root,))
        process.start()
        process.join()
        assert process.exitcode == 7
    finally:
        for path in reversed(paths):
            path.chmod(0o755 if path.is_dir() else 0o644)
        for path, mode in modes.items():
            path.chmod(mode)
