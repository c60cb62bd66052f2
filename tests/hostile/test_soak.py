"""A soak: generate, query, curate, label, edit and serve in turn for a long time; nothing grows, nothing leaks."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from _soak import Judged, Sample, soak

from support.labelled import workspace
from twinloop.cli.main import main

SERVED = all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn", "websockets"))
needs_serve = pytest.mark.skipif(not SERVED, reason="fastapi, uvicorn or websockets is not installed")

MINUTES = float(os.environ.get("TWINLOOP_SOAK_MINUTES", "20"))
MOST_GROWTH = 0.10


def _told(name: str, judged: Judged) -> str:
    last = judged.samples[-1]
    return (
        f"{name}: {judged.first:.0f} to {judged.last:.0f} MiB ({100 * judged.growth:+.1f} %), {last.descriptors} "
        f"descriptors, {last.threads} threads"
    )


def _require_nothing_leaked(judged: Judged) -> None:
    for name in ("descriptors", "threads", "children", "temporary"):
        assert not judged.rises(name), (name, [getattr(one, name) for one in judged.samples])
    assert judged.samples[-1].children == 0


WORDS = {
    "init": ["init", "../other"],
    "add": ["add", "data/first"],
    "query": ["query", "SELECT count(*) AS n FROM frames"],
    "a query that is refused": ["query", "SELECT nothing FROM nowhere"],
    "fsck": ["fsck"],
    "datasets freeze": ["datasets", "freeze", "one", "--sql", "SELECT episode_id FROM episodes"],
    "datasets list": ["datasets", "list"],
    "label add": ["label", "add", "first:0", "--success", "yes", "--author", "Ada"],
    "label show": ["label", "show", "first:0"],
    "label list": ["label", "list"],
    "label export": ["label", "export", "labels.csv"],
    "label agreement": ["label", "agreement"],
    "label rules": ["label", "rules"],
    "policies list": ["policies", "list"],
    "policies audit": ["policies", "audit"],
    "edit select": ["edit", "select", "data/first", "--episodes", "0", "--output", "data/one"],
    "coverage --nearest": ["coverage", "--nearest", "first:0"],
    "curate": ["curate", "--checks", "recording", "--workers", "1"],
    "evidence": ["evidence", "--failure-rate", "0.01", "--output", "runs/claim"],
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=name.replace(" ", "-"), marks=pytest.mark.attack(
        f"`twinloop {name}` in a process that lives on, such as a notebook",
        expected="no file stays open, and none stays in the folder for temporary files")) for name in WORDS],
)  # fmt: skip
def test_a_command_gives_its_files_back(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observed: Callable[[object], None]
) -> None:
    held, _ = workspace(tmp_path / "cell")
    held.close()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "cell")
    code = main(WORDS[name])
    assert code in (0, 1, 2)
    opened = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert [path for path in opened if path.startswith(str(tmp_path))] == []
    assert list((tmp_path / "temporary").iterdir()) == []
    observed(f"exit code {code}, no descriptor in the workspace")


@pytest.mark.slow
@needs_serve
@pytest.mark.attack(
    "five rounds of every command of the soak in one process", expected="no descriptor or temporary file is left"
)
def test_five_rounds(tmp_path: Path, observed: Callable[[object], None]) -> None:
    working, serving = soak(tmp_path, seconds=0.0, rounds=5)
    for samples in (working, serving):
        assert min(one.descriptors for one in samples[3:]) <= max(one.descriptors for one in samples[1:3])
        assert min(one.temporary for one in samples[3:]) <= max(one.temporary for one in samples[1:3])
        assert samples[-1].children == 0
    observed(f"{working[-1].descriptors} and {serving[-1].descriptors} descriptors")


@pytest.mark.slow
@needs_serve
@pytest.mark.attack(
    "generate, query, curate, label, edit and serve in turn for 20 minutes, in one process and one server",
    expected="memory flat within 10 %, no descriptor, thread, child or temporary file leaked",
)
def test_twenty_minutes(tmp_path: Path, observed: Callable[[object], None]) -> None:
    working, serving = (Judged.of(samples) for samples in soak(tmp_path, seconds=60.0 * MINUTES, rounds=12))
    for judged in (working, serving):
        _require_nothing_leaked(judged)
        assert judged.growth <= MOST_GROWTH, [round(one.memory) for one in judged.samples]
    rounds = len(working.samples)
    observed(f"{rounds} rounds; {_told('worker', working)}; {_told('server', serving)}")
    print(f"\n{rounds} rounds; {_told('worker', working)}; {_told('server', serving)}")  # noqa: T201 - figures of a run


def test_a_leak_would_be_seen() -> None:
    def samples(step: float, descriptors: int) -> Judged:
        return Judged.of([
            Sample(memory=200.0 + step * i, descriptors=20 + descriptors * i, threads=3, children=0, temporary=0)
            for i in range(60)
        ])  # fmt: skip

    assert samples(0.0, 0).growth == 0.0
    assert samples(1.0, 0).growth > MOST_GROWTH
    assert samples(0.0, 1).rises("descriptors")
    assert not samples(0.0, 0).rises("descriptors")
