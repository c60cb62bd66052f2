"""Full disks and other refusals of the operating system, for every command that writes."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _campaign import Campaign, can_mount
from _campaign_jobs import campaign, environment_of
from _campaign_verbs import LEFT_OUT, READING, VERBS, leaves

from support.labelled import workspace
from twinloop.cli.main import main
from twinloop.core.errors import DatasetError, InputError, convert_os_error
from twinloop.core.files import write_bytes
from twinloop.dataset.lerobot.writer import DatasetWriter

ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EROFS", "EACCES", "EMFILE", "ENAMETOOLONG")
STEPS = {"ENOSPC": "Free some space", "EDQUOT": "Free some space", "EIO": "has a fault", "EROFS": "another file system",
         "EACCES": "make this one writable", "EMFILE": "ulimit -n", "ENAMETOOLONG": "a shorter name"}  # fmt: skip
CLEAR = "exit code 2, one message with the path and the next step, and everything from before unchanged"


@pytest.fixture(name="run", scope="module")
def running_campaign() -> Iterator[tuple[Campaign, Path]]:
    """One process with everything loaded, and the folder that all copies are made of."""
    with campaign() as both:
        yield both


@pytest.mark.attack("a new command that writes and is in no campaign", expected="every command is in one, or says why")
def test_every_command_is_in_a_campaign(observed: Callable[[object], None]) -> None:
    listed = {"export" if name.startswith("export") else name for name in VERBS} | set(READING) | set(LEFT_OUT)
    assert set(leaves()) == listed
    observed(f"{len(VERBS)} write, {len(READING)} only read, {len(LEFT_OUT)} left out for a reason")


# In one process: small files, each refusal on its own.


class Refusal:
    """Refuse one kind of call of the ``os`` module, from its n-th time on."""

    def __init__(self, number: int, after: int = 0) -> None:
        self.number, self.left = number, after

    def __call__(self, handle: int, *_: object) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(self.number, os.strerror(self.number))
        return 0


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=name, marks=pytest.mark.attack(
        f"flushing a file of results fails with {name} ({os.strerror(getattr(errno, name))})", expected=CLEAR))
     for name in ERRORS],
)  # fmt: skip
def test_a_file_that_cannot_be_flushed_is_not_replaced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observed: Callable[[object], None]
) -> None:
    path = tmp_path / "result.json"
    write_bytes(path, b"before")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Refusal(getattr(errno, name)))
        with pytest.raises(DatasetError) as caught:
            write_bytes(path, b"after")
    assert str(path) in str(caught.value)
    assert STEPS[name] in str(caught.value)
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["result.json"]  # noqa: PTH208 - hidden names too
    observed(caught.value)


WORDS = {
    "query --output": ["query", "SELECT episode_id FROM episodes", "--output", "out.csv"],
    "label add": ["label", "add", "first:0", "--success", "yes", "--author", "Ada"],
    "label export": ["label", "export", "labels.csv"],
    "datasets freeze": ["datasets", "freeze", "one", "--sql", "SELECT episode_id FROM episodes"],
    "edit select": ["edit", "select", "data/first", "--episodes", "0-2", "--output", "data/chosen"],
    "evidence --output": ["evidence", "--failure-rate", "0.01", "--output", "runs/claim"],
}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "fault"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=name, marks=pytest.mark.attack(
        f"the disk refuses to flush while `twinloop {name}` writes", expected=CLEAR + "; then it goes on"))
     for name in WORDS],
)  # fmt: skip
def test_a_command_goes_on_when_the_disk_takes_data_again(
    name: str,
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    observed: Callable[[object], None],
) -> None:
    held, _ = workspace(tmp_path / "cell")
    held.close()
    monkeypatch.chdir(tmp_path / "cell")
    before = {path: path.read_bytes() for path in (tmp_path / "cell" / "data").rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Refusal(number))
        code = main(WORDS[name])
    told = " ".join(capfd.readouterr().err.split())
    if name == "label add":  # SQLite flushes by itself
        assert code == 0
    else:
        assert code == 2, told
        assert "No space left" in told or "has a fault" in told
    assert "Traceback" not in told
    assert {path: path.read_bytes() for path in before} == before
    assert main(WORDS[name]) == 0
    observed(f"exit code {code}: {told}")


@pytest.mark.attack(
    "the disk is full, then free again, between two blocks of one run",
    expected="the block is refused and committed again; the bytes are those of an unbroken run",
)
def test_a_block_that_did_not_fit_is_committed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from support.dataset_writer import SPEC, commit
    from twinloop.core.files import sha256_tree

    with DatasetWriter.open(tmp_path / "set", SPEC) as writer:
        for block in range(4):
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", Refusal(errno.ENOSPC, after=block))
                with pytest.raises(DatasetError, match="No space left"):
                    commit(writer, block)
            commit(writer, block)
        writer.finish({})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]
    with DatasetWriter.open(tmp_path / "plain", SPEC) as writer:
        for block in range(4):
            commit(writer, block)
        writer.finish({})
    assert sha256_tree(tmp_path / "set") == sha256_tree(tmp_path / "plain")


@pytest.mark.attack("a name of 253 characters for a file of results", expected="refused by name, and nothing is left")
def test_a_name_that_is_too_long_is_refused(tmp_path: Path, observed: Callable[[object], None]) -> None:
    with pytest.raises(InputError, match="a shorter name") as caught:
        write_bytes(tmp_path / ("n" * 253), b"data")
    assert list(tmp_path.iterdir()) == []
    observed(caught.value)


@pytest.mark.parametrize("kind", ["link", "link to nothing", "hard link", "folder", "pipe"])
@pytest.mark.attack(
    "somebody plants the temporary name of a file that is about to be written: a link, a pipe, a folder",
    expected="the planted name is neither followed nor changed",
)
def test_a_planted_temporary_name_is_left_alone(kind: str, tmp_path: Path) -> None:
    victim, planted = tmp_path / "victim", tmp_path / ".out.csv.tmp"
    victim.write_bytes(b"precious")
    plant: dict[str, Callable[[], object]] = {
        "link": lambda: planted.symlink_to(victim),
        "link to nothing": lambda: planted.symlink_to(tmp_path / "new"),
        "hard link": lambda: planted.hardlink_to(victim),
        "folder": planted.mkdir,
        "pipe": lambda: os.mkfifo(planted),
    }
    plant[kind]()
    write_bytes(tmp_path / "out.csv", b"mine")
    assert (tmp_path / "out.csv").read_bytes() == b"mine"
    assert victim.read_bytes() == b"precious"
    assert planted.is_symlink() or planted.exists()
    assert not (tmp_path / "new").exists()


@pytest.mark.attack("a writer is killed a hundred times before it renames its file", expected="one leftover, then none")
def test_killed_writers_leave_one_file_and_not_many(tmp_path: Path) -> None:
    for _ in range(3):
        child = os.fork()
        if child == 0:
            os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
            write_bytes(tmp_path / "out.csv", b"half")
        os.waitpid(child, 0)
        assert [path.name for path in tmp_path.iterdir()] == [".out.csv.tmp"]
    write_bytes(tmp_path / "out.csv", b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


@pytest.mark.attack(
    "the operating system reports an error that nobody has listed", expected="its words and a next step"
)
def test_any_number_of_an_error_has_a_next_step() -> None:
    for number in sorted(errno.errorcode):
        told = str(convert_os_error(OSError(number, os.strerror(number), "/data/x"), "/data"))
        assert told.startswith(("/data cannot be written (", "No space left on the disk"))
        assert told.endswith(".")
        assert told.count(". ") >= 1


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=name, marks=pytest.mark.attack(
        f"deep within a command a call fails with {name}, which no code there expects",
        expected="exit code 2, the path, the reason and the next step; with --json as an object too"))
     for name in ERRORS],
)  # fmt: skip
def test_an_error_that_no_code_expects(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], observed: Callable[[object], None]
) -> None:
    number = getattr(errno, name)

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "/data/some/file")

    monkeypatch.setattr("twinloop.workflows.doctor.run_doctor", fail)
    assert main(["doctor", "--json"]) == 2
    out, err = capfd.readouterr()
    metrics = json.loads(out.splitlines()[-1])
    assert metrics["error"] == "DatasetError"
    assert "/data/some/file" in metrics["message"]
    assert "Traceback" not in err
    observed(metrics["message"])


@pytest.mark.attack("the reader of a pipe ends while a command prints", expected="no message: whoever reads has enough")
def test_a_pipe_that_was_closed_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("twinloop.workflows.doctor.run_doctor", fail)
    with pytest.raises(BrokenPipeError):
        main(["doctor"])


@pytest.mark.slow
@pytest.mark.attack("a process may open 7 files and edits a dataset", expected="exit code 2 and `ulimit -n` is named")
def test_too_few_open_files_is_a_clear_message(tmp_path: Path, observed: Callable[[object], None]) -> None:
    held, _ = workspace(tmp_path / "cell")
    held.close()
    code = (
        "import resource, sys\nfrom twinloop.cli.main import main\nimport twinloop.workflows.data.datasets, duckdb\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (7, 7))\n"
        "sys.exit(main(['edit', 'select', 'data/first', '--episodes', '0', '--output', 'data/one']))"
    )
    line = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(line, cwd=tmp_path / "cell", capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "ulimit -n" in done.stderr or "Too many open files" in done.stderr
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 7
    observed(done.stderr)


# Every command, on a real file system that is full, and with single calls refused.


def _skip_where_missing(name: str) -> None:
    if VERBS[name].missing:
        pytest.skip(f"{VERBS[name].missing} is not installed")


def _judge(name: str, found: dict[str, Any], plain: dict[str, Any]) -> str:
    """Fail where a try was not clear or something was lost; return how often it was refused."""
    for one in found["tries"]:
        assert one["clear"], f"{name}: {one}"
        assert one["code"] in (2, plain["code"]), f"{name}: {one}"
    assert found["wrong"] == [], name
    assert found["again"] in (0, plain["code"]), f"{name}: {found['text']}"
    assert VERBS[name].unlike(found["made"], plain["made"]) == [], f"{name}: {found['text']}"
    assert VERBS[name].left(found["hidden"], plain["hidden"]) == [], name
    codes = [one["code"] for one in found["tries"]]
    return f"{codes.count(2)} of {len(codes)} refused, the rest finished; then as an unbroken run"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=name.replace(" ", "-"), marks=pytest.mark.attack(
        f"`twinloop {name}` three times on a file system that fills up, then on a free one",
        expected=CLEAR + "; then the result of an unbroken run")) for name in VERBS],
)  # fmt: skip
def test_a_disk_that_fills_up(name: str, run: tuple[Campaign, Path], observed: Callable[[object], None]) -> None:
    _skip_where_missing(name)
    if not can_mount():
        pytest.skip("this container may not mount a file system in memory")
    runner, world = run
    with environment_of(name, world) as environment:
        given = {"world": str(world), "name": name, "environment": environment}
        plain = runner.do("_campaign_jobs:unbroken", **given)
        assert plain["code"] in (0, 1), plain["text"]
        observed(_judge(name, runner.do("_campaign_jobs:full_disk", needed=plain["bytes"], **given), plain))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=name.replace(" ", "-"), marks=pytest.mark.attack(
        f"seven calls of `twinloop {name}` refused, one error each: {', '.join(ERRORS)}",
        expected=CLEAR + "; then the result of an unbroken run")) for name in VERBS],
)  # fmt: skip
def test_single_calls_refused(name: str, run: tuple[Campaign, Path], observed: Callable[[object], None]) -> None:
    _skip_where_missing(name)
    runner, world = run
    with environment_of(name, world) as environment:
        given = {"world": str(world), "name": name, "environment": environment}
        plain = runner.do("_campaign_jobs:unbroken", **given)
        assert plain["code"] in (0, 1), plain["text"]
        rng = random.Random(name)
        faults = [
            {"kind": "errno", "at": rng.randrange(max(1, plain["points"])), "errno": getattr(errno, word),
             "lasting": rng.random() < 0.5}
            for word in ERRORS
        ]  # fmt: skip
        observed(_judge(name, runner.do("_campaign_jobs:refused_calls", faults=faults, **given), plain))
