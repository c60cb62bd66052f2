"""A wrong clock must not change an order: the last commit counts."""

from __future__ import annotations

import datetime
import multiprocessing
import shutil

import pyarrow as pa
import pytest
from _clock import NOW_MS, YEAR_MS, clock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.catalog_workspace import score
from support.dataset_writer import write_all
from twinloop.catalog import Workspace, querying, view_tables
from twinloop.catalog import parts as compaction
from twinloop.catalog.label_checks import Label
from twinloop.catalog.parts import LENGTH, DraftPart, convert_table_rows, register_parts, ulid
from twinloop.catalog.reference import EXAMPLE_QUERIES
from twinloop.cli.main import main
from twinloop.core.files import dumps
from twinloop.release.registry import PolicyRegistry

MOMENT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
EPISODE = "e" * 64


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("clock") / "planted")


@pytest.fixture
def ws(tmp_path):
    with Workspace.create(tmp_path / "cell") as made:
        yield made


def scored(ws, value: float, check: str = "recording/blur") -> str:
    """Record a run and the score that it found, as `twinloop curate` does."""
    run = ws.record_run("curate", None, {}, MOMENT, MOMENT, [])
    ws.append("scores", score(EPISODE, value, check), run_id=run)
    return run


def shown_value(ws) -> list[float]:
    return ws.query("SELECT value FROM scores")["value"].to_pylist()


def evaluation(success: bool) -> pa.Table:
    row = {"policy": "act", "suite": "pick", "trial": "t1", "source": "sim", "success": success}
    return pa.table({name: [value] for name, value in row.items()})


@pytest.mark.parametrize(
    ("offsets"),
    [
        pytest.param(
            [10 * YEAR_MS, 0],
            marks=pytest.mark.attack(
                "a run scores an episode with a clock ten years ahead, then a run with the right clock scores it again",
                expected="the second score is shown",
            ),
            id="ahead",
        ),
        pytest.param(
            [0, -30 * YEAR_MS],
            marks=pytest.mark.attack(
                "the clock of a robot cell has fallen back thirty years before the second scoring",
                expected="the second score is shown",
            ),
            id="behind",
        ),
        pytest.param(
            [0, 5 * YEAR_MS, -YEAR_MS, 1, 1],
            marks=pytest.mark.attack(
                "the clock jumps ahead, then back, then stands still between five scorings",
                expected="the score committed last is shown",
            ),
            id="jumps",
        ),
        pytest.param(
            [-70 * YEAR_MS, 0, -70 * YEAR_MS],
            marks=pytest.mark.attack(
                "the clock is before 1970", expected="the score committed last is shown, and no error"
            ),
            id="before 1970",
        ),
    ],
)
def test_the_score_committed_last_is_shown(ws, observed, offsets):
    for value, offset in enumerate(offsets):
        with clock(offset):
            scored(ws, float(value))
    assert shown_value(ws) == [len(offsets) - 1]
    observed(f"shown: the score of commit {len(offsets)} of {len(offsets)}")


@pytest.mark.attack(
    "any sequence of clocks, with parts joined and the workspace opened anew in between",
    expected="in memory and read from the files, the score committed last is shown; runs sort by commit",
)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    offsets=st.lists(st.integers(-40 * YEAR_MS, 40 * YEAR_MS), min_size=1, max_size=6),
    joined=st.sets(st.integers(0, 5)),
)
def test_whatever_clock_each_run_has(tmp_path_factory, offsets, joined):
    root = tmp_path_factory.mktemp("law") / "cell"
    Workspace.create(root).close()
    runs = list[str]()
    for value, offset in enumerate(offsets):
        with clock(offset), Workspace.open(root) as ws:
            runs.append(scored(ws, float(value)))
            if value in joined:
                compaction.compact(ws.parts, min_files=2)
    with Workspace.open(root) as ws:
        assert shown_value(ws) == [len(offsets) - 1]
        assert ws.query("SELECT run_id FROM runs ORDER BY run_id")["run_id"].to_pylist() == runs
        values = ws.query("SELECT value FROM score_history")["value"].to_pylist()
        assert values == list(range(len(offsets)))
    with pytest.MonkeyPatch.context() as patch, Workspace.open(root) as ws:
        patch.setattr(querying, "MOST_IN_MEMORY", -1)
        assert shown_value(ws) == [len(offsets) - 1]


@pytest.mark.attack(
    "the order of the scores in memory is kept in a file by a run with a clock ahead",
    expected="a later process shows the later score, not the one that was kept",
)
def test_what_is_kept_for_quick_opening_follows_the_commits(tmp_path, monkeypatch):
    monkeypatch.setattr(view_tables, "MIN_CACHED_ROWS", 1)
    root = tmp_path / "cell"
    with Workspace.create(root) as ws, clock(9 * YEAR_MS):
        scored(ws, 1.0)
        assert shown_value(ws) == [1.0]
    with Workspace.open(root) as ws:
        scored(ws, 2.0)
        assert shown_value(ws) == [2.0]
    with Workspace.open(root) as ws:
        assert shown_value(ws) == [2.0]


@pytest.mark.attack(
    "an evaluation made with a clock ahead comes before a newer one of the same policy and suite",
    expected="the question `evaluations` answers with the newer one",
)
def test_the_evaluation_committed_last_is_shown(ws):
    for success, offset in ((True, 20 * YEAR_MS), (False, 0)):
        with clock(offset):
            run = ws.record_run("evaluate", None, {}, MOMENT, MOMENT, [])
            ws.append("evaluations", evaluation(success), run_id=run)
    [row] = ws.query(next(question.sql for question in EXAMPLE_QUERIES if question.name == "evaluations")).to_pylist()
    assert (row["run_id"], row["success_rate"]) == (run, 0.0)


@pytest.mark.attack(
    "a program appends scores under a run's name that sorts after every other, zzz",
    expected="scores of later runs are shown all the same",
)
@pytest.mark.parametrize("held", ["in memory", "in files"])
def test_the_name_of_a_run_decides_nothing(ws, monkeypatch, held):
    if held == "in files":
        monkeypatch.setattr(querying, "MOST_IN_MEMORY", -1)
    for number, run in enumerate(("zzz", "a")):
        ws.append("scores", score(EPISODE, float(number)), run_id=run)
        ws.append("evaluations", evaluation(success=number == 1), run_id=run)
    assert shown_value(ws) == [1.0]
    assert ws.query("SELECT run_id, success FROM latest_evaluations").to_pylist() == [{"run_id": "a", "success": True}]


@pytest.mark.attack(
    "a run recorded first commits its scores after a run that was recorded second",
    expected="the scores committed last are shown, not those of the run with the later name",
)
def test_commits_decide_and_not_when_a_run_was_recorded(ws):
    first, second = (ws.record_run("curate", None, {}, MOMENT, MOMENT, []) for _ in range(2))
    assert first < second
    ws.append("scores", score(EPISODE, 2.0), run_id=second)
    ws.append("scores", score(EPISODE, 1.0), run_id=first)
    assert shown_value(ws) == [1.0]


def _append_many(root, start, offset_ms, count):
    with clock(offset_ms), Workspace.open(root) as ws:
        start.wait()
        for number in range(count):
            scored(ws, number, f"check/{offset_ms}")


@pytest.mark.attack(
    "two processes whose clocks differ by a year score at the same time",
    expected="every commit sorts after those before it, and each process' last score is shown",
)
def test_two_processes_with_different_clocks(ws):
    spawn = multiprocessing.get_context("fork")
    start = spawn.Event()
    workers = [spawn.Process(target=_append_many, args=(ws.root, start, offset, 5)) for offset in (0, YEAR_MS)]
    for worker in workers:
        worker.start()
    start.set()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    positions = [row["position"] for row in ws.state.rows("SELECT position FROM parts ORDER BY rowid")]
    assert positions == sorted(set(positions))
    assert len(positions) == 10
    assert shown_value(ws) == [4.0, 4.0]


@pytest.mark.attack(
    "two writers choose the same place for their parts, since both were ready before either committed",
    expected="the one that commits last gets the later place",
)
def test_writers_that_overlap(ws):
    def draft(value: float) -> DraftPart:
        return DraftPart(
            table="scores", rows=convert_table_rows("scores", score(EPISODE, value), given={"run_id": f"r{value}"})
        )

    with clock(-50 * YEAR_MS), ws.parts.write_parts([draft(1.0)], run_id="r1") as early:
        with clock(0), ws.parts.write_parts([draft(2.0)], run_id="r2") as late, ws.state.transaction() as connection:
            register_parts(connection, late)
        with ws.state.transaction() as connection:
            register_parts(connection, early)
    assert early[0].position < late[0].position
    assert shown_value(ws) == [1.0]


@pytest.mark.attack(
    "state.sqlite is lost after runs with a clock ahead and a clock behind",
    expected="the list made again from the parts has the order of the commits",
)
def test_the_order_survives_the_loss_of_the_index(ws, capfd):
    for value, offset in enumerate((3 * YEAR_MS, 0, -YEAR_MS) * 4):
        with clock(offset):
            scored(ws, float(value))
    ws.close()
    path = ws.root / "catalog" / "state.sqlite"
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    main(["fsck", "--workspace", str(ws.root), "--repair"])
    capfd.readouterr()
    with Workspace.open(ws.root) as again:
        assert again.query("SELECT value FROM score_history")["value"].to_pylist() == list(range(12))
        assert shown_value(again) == [11.0]
        with clock(-10 * YEAR_MS):
            scored(again, 7.0)
        assert shown_value(again) == [7.0]


@pytest.mark.attack(
    "a workspace of an older version holds parts in the order of a clock that was ahead",
    expected="fsck names it, --repair puts them into the order of their commits",
)
def test_an_order_that_an_older_version_took_from_the_clock_is_repaired(ws, capfd, observed):
    with clock(YEAR_MS):
        scored(ws, 1.0)
    with clock():
        key = ulid()
    [ahead] = ws.parts.list_parts("scores")
    folder = ws.root / "catalog" / "scores"
    (folder / f"part-{key}.parquet").write_bytes((folder / ahead.part).read_bytes())
    row = {**vars(ahead), "part": f"part-{key}.parquet", "position": key}
    with ws.state.transaction() as connection:
        connection.execute(f"INSERT INTO parts VALUES ({', '.join('?' * len(row))})", list(row.values()))
    assert [part.part for part in ws.parts.list_parts("scores")] == [row["part"], ahead.part]
    ws.close()
    assert main(["fsck", "--workspace", str(ws.root)]) == 1
    said = capfd.readouterr().out
    observed(said.splitlines()[0])
    assert "1 parts of scores come before parts that were committed earlier" in " ".join(said.split())
    main(["fsck", "--workspace", str(ws.root), "--repair"])
    with Workspace.open(ws.root) as again:
        assert [part.part for part in again.parts.list_parts("scores")] == [ahead.part, row["part"]]
    capfd.readouterr()
    assert main(["fsck", "--workspace", str(ws.root)]) == 0


@pytest.mark.attack(
    "parts are joined by a process whose clock is a year ahead, and later by one whose clock is right",
    expected="their files are removed an hour after the second one came, not in a year",
)
def test_files_of_joined_parts_do_not_stay_for_years(ws):
    for value in range(4):
        scored(ws, float(value))
    with clock(YEAR_MS):
        compaction.compact(ws.parts, min_files=2)
    old = [path.name for path in (ws.root / "catalog" / "scores").glob("part-*")]
    assert len(old) == 5
    assert compaction.remove_retired(ws.parts) == 0
    with clock(2 * 3_600_000):
        assert compaction.remove_retired(ws.parts) == 4
    assert shown_value(ws) == [3.0]


@pytest.mark.attack(
    "a dataset is added with a clock ahead, grows, and is added again with the right clock",
    expected="each episode is there once, and the first copy stays the first",
)
def test_episodes_of_a_batch_added_with_another_clock(ws, batch):
    with clock(4 * YEAR_MS):
        ws.add(batch, batch="first")
    before = ws.query("SELECT episode_id, batch FROM episodes ORDER BY 1").to_pylist()
    copy = ws.root / "data" / "copy"
    shutil.copytree(batch, copy)
    assert ws.add(copy).new == 0
    assert ws.query("SELECT episode_id, batch FROM episodes ORDER BY 1").to_pylist() == before


@pytest.mark.attack(
    "the newest version of a dataset version was frozen by a clock that is behind",
    expected="its name means the version frozen last",
)
def test_the_version_frozen_last_is_meant(ws, batch):
    ws.add(batch)
    with clock(YEAR_MS):
        first = ws.freeze("set", "SELECT episode_id FROM episodes LIMIT 3")
    with clock(-YEAR_MS):
        second = ws.freeze("set", "SELECT episode_id FROM episodes LIMIT 4")
    assert (first.version, second.version, ws.find_dataset_version("set").version) == (1, 2, 2)


@pytest.mark.attack(
    "a label is given with a clock ahead, then corrected with the right clock", expected="the correction holds"
)
def test_the_label_given_last_holds(ws, batch):
    ws.add(batch)
    name = ws.query("SELECT min(episode_id) AS n FROM episodes")["n"][0].as_py()
    for value, offset in (("yes", 9 * YEAR_MS), ("no", 0)):
        with clock(offset):
            ws.label([Label(episode_id=name, kind="success", value=value, source="hand", author="ada")])
    assert ws.query("SELECT value FROM labels")["value"].to_pylist() == ["no"]


@pytest.mark.attack(
    "a record of runs holds names that no clock can have made: too long, of other letters, at the end of all ULIDs",
    expected="new runs get proper names; nothing fails or runs out of names",
)
@pytest.mark.parametrize(
    "name", ["7" + "Z" * 25, "Z" * 26, "~" * 26, "u" * 26, "0" * 25, "", "7ZZZZZZZZZ0000000000000000"]
)
def test_names_that_no_clock_makes(ws, name):
    with ws.state.transaction() as connection:
        values = (name, "curate", None, "[]", "{}", "", "", "1")
        connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    made = [ws.record_run("curate", None, {}, MOMENT, MOMENT, []) for _ in range(3)]
    assert made == sorted(set(made))
    assert all(len(one) == LENGTH and one < "1" for one in made)


@pytest.mark.attack("two names are made in the same millisecond", expected="the second sorts after the first")
@settings(max_examples=30, deadline=None)
@given(st.integers(0, NOW_MS + 100 * YEAR_MS), st.integers(0, NOW_MS + 100 * YEAR_MS))
def test_names_rise_whatever_the_clock(first_ms, second_ms):
    with clock(at_ms=first_ms):
        first = ulid()
        second = ulid()
    with clock(at_ms=second_ms):
        third = ulid(after=second)
    assert first < second < third


@pytest.mark.attack(
    "the gate says yes with a clock ahead, then no with the right clock", expected="the newest decision is the no"
)
def test_decisions_of_the_gate_are_in_the_order_they_were_made(ws):
    records = [dumps({"passed": passed}) for passed in (True, False)]
    with ws.state.transaction() as connection:
        for number, (record, at) in enumerate(zip(records, ("2036-01-01", "2026-01-01"), strict=True)):
            values = (f"d{number}", "main", "act@1", None, 0, "any", "[]", record, at)
            connection.execute(f"INSERT INTO gate_decisions VALUES ({', '.join('?' * 9)})", values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twinloop.release.registry.GateDecision.from_json", lambda value: value["passed"])
        patch.setattr(PolicyRegistry, "version", lambda self, reference: type("V", (), {"reference": reference})())
        registry = PolicyRegistry.__new__(PolicyRegistry)
        registry.workspace, registry.deployment = ws, "main"
        assert registry.decisions("act@1") == [True, False]
