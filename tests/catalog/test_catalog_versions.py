"""Versions of ``state.sqlite``: older files are brought up to date in one step, newer ones are left alone."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from support.catalog_workspace import score
from twinloop.catalog import Workspace, state_schema
from twinloop.cli.main import main
from twinloop.core.errors import DatasetError

ADDED = "ALTER TABLE tombstones ADD COLUMN mood TEXT"
FILLED = "UPDATE tombstones SET mood = 'calm'"


@pytest.fixture(name="root")
def workspace(tmp_path):
    with Workspace.create(tmp_path / "cell") as ws:
        ws.append("scores", score("e", 0.5), run_id="01")
        ws.exclude_episodes(["e"], "why", "who")
    return tmp_path / "cell"


def version(root) -> tuple[int, list[str]]:
    with contextlib.closing(sqlite3.connect(root / "catalog" / "state.sqlite")) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(tombstones)")]
        return connection.execute("PRAGMA user_version").fetchone()[0], columns


def test_every_version_has_its_step():
    assert list(state_schema.STEPS) == list(range(1, state_schema.VERSION))


def test_an_older_file_is_brought_up_to_date_step_by_step(root, monkeypatch):
    now = state_schema.VERSION
    monkeypatch.setattr(state_schema, "VERSION", now + 2)
    monkeypatch.setattr(state_schema, "STEPS", {now: (ADDED,), now + 1: (FILLED,)})
    with Workspace.open(root) as ws, Workspace.open(root) as other:
        assert ws.state.rows("SELECT mood FROM tombstones") == [{"mood": "calm"}]
        assert other.query("SELECT episode_id FROM tombstones")["episode_id"].to_pylist() == ["e"]
        assert len(ws.query("SELECT * FROM scores")) == 1
    assert version(root)[0] == now + 2


def test_a_step_that_fails_changes_nothing(root, monkeypatch):
    before = version(root)
    now = state_schema.VERSION
    monkeypatch.setattr(state_schema, "VERSION", now + 2)
    monkeypatch.setattr(state_schema, "STEPS", {now: (ADDED,), now + 1: ("UPDATE nowhere SET a = 1",)})
    with pytest.raises(DatasetError, match="no such table: nowhere"):
        Workspace.open(root)
    assert version(root) == before


def test_a_newer_file_is_refused_and_not_repaired(root, capfd):
    with contextlib.closing(sqlite3.connect(root / "catalog" / "state.sqlite")) as connection:
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(DatasetError, match=r"has schema 7; this version reads 1 to 4\. Upgrade twinloop\."):
        Workspace.open(root)
    assert main(["fsck", "--workspace", str(root), "--repair"]) == 2
    assert "Upgrade twinloop." in " ".join(capfd.readouterr().err.split())
    assert version(root)[0] == 7
    assert not list((root / "catalog").glob("*.damaged*"))
