"""Two writers at once: one wins or both take turns; nothing is lost, doubled or half written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _campaign import Campaign
from _campaign_jobs import campaign, environment_of
from _campaign_verbs import VERBS

from support.dataset_writer import SPEC, commit
from twinloop.catalog import Workspace
from twinloop.core.errors import DatasetError, DatasetLockedError, InputError
from twinloop.core.files import atomic_open, write_bytes
from twinloop.dataset.export.protocol import create_output_folder
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.storage.snapshot import FolderLock, create_locked_snapshot, hold_folder_lock
from twinloop.workflows.run.results import lock_run_folder

SAME = ("generate", "render", "import", "pull", "edit select", "edit split", "export", "export robomimic", "fetch",
        "datasets materialize", "identify", "train", "curate", "evaluate", "compare", "gap compare", "evidence", "gate",
        "add", "datasets freeze", "label add", "policies add", "promote", "rollback", "monitor calibrate", "record",
        "scenario from-failure", "query", "label export", "init")  # fmt: skip
MIXED = {  # two different commands at once; the second is the one whose result is compared
    "add while generate adds its own": ("generate", "add"),
    "fsck --repair while generate writes": ("fsck", "generate"),
    "curate while labels are given": ("label add", "curate"),
    "freeze while a dataset is added": ("add", "datasets freeze"),
    "rollback while labels are given": ("label add", "rollback"),
    "export while the source is curated": ("curate", "export"),
}
LOST = ("Another writer", "Another process", "exists", "holds an earlier run", "holds a finished run", "not empty",
        "holds a dataset", "is taken", "is already a workspace", "was stopped", "already", "has a scenario",
        "There is no", "is the champion", "nothing to roll back", "is not an empty folder")  # fmt: skip


@pytest.fixture(name="run", scope="module")
def running_campaign() -> Iterator[tuple[Campaign, Path]]:
    """One process with everything loaded, and the folder that all copies are made of."""
    with campaign() as both:
        yield both


def _at_once(run: tuple[Campaign, Path], names: tuple[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what came of two commands at once, and what the second one makes alone."""
    runner, world = run
    for name in names:
        if VERBS[name].missing:
            pytest.skip(f"{VERBS[name].missing} is not installed")
    with environment_of(names[1], world) as environment:
        given = {"world": str(world), "environment": environment}
        plain = runner.do("_campaign_jobs:unbroken", name=names[1], **given)
        lines = [list(VERBS[name].words) for name in names]
        return plain, runner.do("_campaign_jobs:at_once", lines=lines, check=names[1], **given)


def _ends(found: dict[str, Any]) -> str:
    return ", ".join(f"exit code {one['code']}" + (f" ({one['text']})" if one["code"] == 2 else "")
                     for one in found["ends"])  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=name.replace(" ", "-"), marks=pytest.mark.attack(
        f"`twinloop {name}` twice at the same time, with the same output",
        expected="one result, that of one run alone; a loser has exit code 2 and says who was faster"))
     for name in SAME],
)  # fmt: skip
def test_the_same_command_twice(name: str, run: tuple[Campaign, Path], observed: Callable[[object], None]) -> None:
    plain, found = _at_once(run, (name, name))
    assert all(one["clear"] for one in found["ends"]), found["ends"]
    losers = [one for one in found["ends"] if one["code"] != plain["code"]]
    assert len(losers) < 2, found["ends"]
    for one in losers:
        assert one["code"] == 2, one
        assert any(word in one["text"] for word in LOST), one
    assert found["wrong"] == []
    if VERBS[name].writes:
        assert found["made"] == plain["made"]
    assert set(found["hidden"]) <= set(plain["hidden"])
    observed(_ends(found))


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [pytest.param(what, id=what.replace(" ", "-"), marks=pytest.mark.attack(
        f"at the same time in one workspace: {what}", expected="both end well, or one says who was faster"))
     for what in MIXED],
)  # fmt: skip
def test_two_commands(what: str, run: tuple[Campaign, Path], observed: Callable[[object], None]) -> None:
    plain, found = _at_once(run, MIXED[what])
    assert all(one["clear"] for one in found["ends"]), found["ends"]
    assert all(one["code"] in (0, 1) for one in found["ends"]), found["ends"]
    assert found["wrong"] == []
    if VERBS[MIXED[what][1]].writes:
        assert found["made"] == plain["made"]
    observed(_ends(found))


# In one process: the locks themselves.


@pytest.mark.attack("an export into a folder that another export writes right now",
                    expected="the second is refused by name; the first finishes unharmed")  # fmt: skip
def test_an_export_into_a_folder_that_is_being_written(tmp_path: Path, observed: Callable[[object], None]) -> None:
    with create_output_folder(tmp_path / "out") as stage:
        (stage / "one").write_text("one")
        with (
            pytest.raises(DatasetLockedError, match="Another writer") as caught,
            create_output_folder(tmp_path / "out"),
        ):
            pass
        assert (stage / "one").read_text() == "one"
    assert (tmp_path / "out" / "one").read_text() == "one"
    observed(caught.value)


@pytest.mark.attack("two exports one after the other, where the first ends after the second has looked",
                    expected="the second is refused, and nothing is mixed")  # fmt: skip
def test_an_output_that_appeared_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("twinloop.dataset.export.protocol.create_locked_snapshot", _late)
        with (
            pytest.raises(InputError, match="exists and is not an empty folder"),
            create_output_folder(tmp_path / "out"),
        ):
            pass
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["one"]


def _late(folder: Path):
    """Finish another export first, and then begin this one."""
    with create_locked_snapshot(folder) as stage:
        (stage / "one").write_text("one")
    return create_locked_snapshot(folder)


@pytest.mark.attack("two processes measure into the same folder, and the slower one wants to store its result",
                    expected="refused by name; the faster one's files stay as they are")  # fmt: skip
def test_the_slower_measurement_does_not_overwrite(tmp_path: Path, observed: Callable[[object], None]) -> None:
    with lock_run_folder(tmp_path / "run"):
        with pytest.raises(DatasetLockedError), lock_run_folder(tmp_path / "run"):
            pass
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "result.json").write_text("{}")
    with pytest.raises(InputError, match="holds an earlier run") as caught, lock_run_folder(tmp_path / "run"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    observed(caught.value)


@pytest.mark.slow
@pytest.mark.attack("a second process trains into a folder in which one trains already",
                    expected="refused before the first step; the first one's checkpoint is not touched")  # fmt: skip
def test_a_second_training(tmp_path: Path, observed: Callable[[object], None]) -> None:
    pytest.importorskip("torch")
    from support.training import config, dataset
    from twinloop.train.run import train

    data = dataset(tmp_path / "sim", range(4))
    with (
        hold_folder_lock(tmp_path / "new", "training"),
        pytest.raises(DatasetLockedError, match="Another writer") as caught,
    ):
        train(config(data), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert train(config(data), tmp_path / "new").metrics["steps"] == 12
    observed(caught.value)


@pytest.mark.attack(
    "two threads replace one file fifty times each", expected="at every moment one of their texts, whole"
)
def test_a_file_that_two_replace(tmp_path: Path) -> None:
    path, wrong = tmp_path / "out.json", list[bytes]()
    texts = [bytes([65 + i]) * 50_000 for i in range(2)]

    def write(text: bytes) -> None:
        for _ in range(50):
            write_bytes(path, text)

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if path.exists() and path.read_bytes() not in texts:
            wrong.append(path.read_bytes())
    for writer in writers:
        writer.join()
    assert wrong == []
    assert [one.name for one in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.attack("a file is replaced while another process is in the middle of replacing it",
                    expected="neither writes into the other's temporary file")  # fmt: skip
def test_a_file_within_a_file(tmp_path: Path) -> None:
    with atomic_open(tmp_path / "out") as outer:
        outer.write(b"outer")
        outer.flush()
        write_bytes(tmp_path / "out", b"inner")
        assert (tmp_path / "out").read_bytes() == b"inner"
    assert (tmp_path / "out").read_bytes() == b"outer"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.attack(
    "two writers open one dataset, and the second waits in a loop until it may",
    expected="refused with the holder's process number until the first closes, then admitted",
)
def test_a_second_writer_of_a_dataset(tmp_path: Path, observed: Callable[[object], None]) -> None:
    refusals = []
    with DatasetWriter.open(tmp_path / "set", SPEC) as first:
        for _ in range(3):
            with pytest.raises(DatasetLockedError) as caught:
                DatasetWriter.open(tmp_path / "set", SPEC, resume=True)
            refusals.append(str(caught.value))
        commit(first, 0)
    with DatasetWriter.open(tmp_path / "set", SPEC, resume=True) as second:
        assert second.next_block == 1
        commit(second, 1)
    observed(refusals[0])


@pytest.mark.attack("four threads add a folder to one workspace at once", expected="each episode is there once")
def test_the_same_folder_added_many_times(tmp_path: Path, observed: Callable[[object], None]) -> None:
    from support.dataset_writer import planted
    from support.labelled import workspace, write_batch

    held, _ = workspace(tmp_path / "cell")
    held.close()
    write_batch(tmp_path / "cell" / "data" / "new", [planted(number) for number in (10, 11, 12)])
    added, errors = list[int](), list[Exception]()

    def add() -> None:
        try:
            with Workspace.open(tmp_path / "cell") as ws:
                added.append(ws.add(tmp_path / "cell" / "data" / "new").new)
        except DatasetError as error:  # changed meanwhile, or somebody wrote for too long
            errors.append(error)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Workspace.open(tmp_path / "cell") as ws:
        rows = ws.query("SELECT count(*) AS n, count(DISTINCT episode_id) AS m FROM episodes WHERE batch = 'new'")
        assert rows.to_pylist() == [{"n": 3, "m": 3}]
    assert sum(added) == 3
    observed(f"{added} new episodes, {len(errors)} refusals")


@pytest.mark.attack("a lock file that names a process which is long gone, or holds garbage",
                    expected="the lock is taken at once: a file alone holds nothing")  # fmt: skip
@pytest.mark.parametrize("content", [b"999999999", b"", b"\xff\xfe garbage", b"1"])
def test_a_stale_lock(content: bytes, tmp_path: Path) -> None:
    (tmp_path / ".set.lock").write_bytes(content)
    began = time.monotonic()
    FolderLock(tmp_path / "set").release()
    assert time.monotonic() - began < 5.0
    assert list(tmp_path.iterdir()) == []
