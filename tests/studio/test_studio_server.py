"""The studio's server: who is admitted, what it answers, and what it writes."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException

import numpy as np
import pytest
from PIL import Image

from support.quality import write_dataset
from support.studio import Client, Server, studio_workspace
from twinloop.catalog import Workspace
from twinloop.core import metrics
from twinloop.report.page import ReportPage
from twinloop.stats.proportion import clopper_pearson

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from twinloop.studio.jobs import read_figures


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return studio_workspace(tmp_path_factory.mktemp("studio") / "cell")


@pytest.fixture(scope="module")
def server(folder):
    with Server(folder) as made:
        yield made


@pytest.fixture(scope="module")
def client(server):
    return server.admit()


@pytest.fixture(scope="module")
def ids(client):
    return [row["episode_id"] for row in client.get("/api/episodes")["rows"]]


def test_nothing_is_shown_without_the_cookie(server, client, ids):
    stranger = Client(server.port)
    for path in (
        "/",
        "/episodes",
        "/api/about",
        "/api/episodes",
        f"/media/{ids[0]}/front/0.jpg",
        "/static/main.js",
        "/x",
    ):
        assert stranger.ask("GET", path).status == 401, path
        assert client.ask("GET", path).status == 200, path


def test_a_token_works_once_and_a_wrong_one_never(server):
    token = server.address.rpartition("/")[2]
    assert Client(server.port).ask("GET", "/enter/" + token[:-1] + ("A" if token[-1] != "A" else "B")).status == 401
    assert Client(server.port).ask("GET", "/enter/").status == 401
    used = server.address
    assert server.admit().ask("GET", "/api/about").status == 200
    assert Client(server.port).ask("GET", "/enter/" + used.rpartition("/")[2]).status == 401
    assert server.address != used


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1:1"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
def test_other_pages_and_other_host_names_are_refused(client, headers):
    assert client.ask("GET", "/api/about", headers=headers).status == 403
    assert client.ask("POST", "/api/labels", b"{}", headers=headers).status == 403


def test_a_link_from_another_page_opens_the_studio(client):
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.ask("GET", "/episodes", headers=link).status == 200
    assert client.ask("POST", "/api/labels", b"{}", headers=link).status == 403


def test_answers_forbid_scripts_of_others(client):
    policy = client.ask("GET", "/").headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe-eval" not in policy


@pytest.mark.parametrize(
    "path", ["/static/../access.py", "/static/..%2faccess.py", "/static/%2e%2e/access.py", "/static//etc/passwd"]
)
def test_no_file_outside_its_folder_is_sent(client, path):
    assert client.ask("GET", path).status == 404


def test_unknown_cameras_frames_and_episodes_are_not_found(client, ids):
    for path in (f"/media/{ids[0]}/..%2f..%2fmeta.mp4", f"/media/{ids[0]}/nose.mp4", f"/media/{ids[0]}/front/99999.jpg",
                 f"/media/{'0' * 64}/front.mp4", "/api/episodes/..%2f..", f"/api/episodes/{'0' * 64}"):  # fmt: skip
        assert client.ask("GET", path).status == 404, path


def test_filters_become_sql_that_selects_the_same(client, ids):
    by_filter = client.get("/api/episodes?outcome=no")
    assert by_filter["total"] == 2
    by_sql = client.get("/api/episodes", sql=by_filter["sql"])
    assert [row["episode_id"] for row in by_sql["rows"]] == [row["episode_id"] for row in by_filter["rows"]]
    assert client.get("/api/episodes?source=real&order=shortest")["total"] == len(ids)
    assert client.get("/api/episodes?offset=1&limit=2")["rows"][0]["episode_id"] == ids[1]


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("sql=DELETE FROM episodes", "read"),
        ("sql=SELECT 1", "episode_id"),
        ("sql=SELECT * FROM nothing", "nothing"),
        ("colour=red", "colour"),
        ("order=random", "random"),
        ("parameter=mass", "mass"),
        ("offset=-1", "-1"),
        ("limit=many", "many"),
    ],
)
def test_a_wrong_question_gets_a_message(client, query, named):
    answer = client.ask("GET", "/api/episodes?" + query.replace(" ", "%20"))
    assert answer.status in (400, 404)
    assert named in json.loads(answer.body)["message"]


def test_a_value_with_quotes_is_no_sql(client):
    assert client.get("/api/episodes", task="it's '; DROP TABLE episodes --")["total"] == 0


def test_signals_are_those_of_the_dataset(client, folder, ids):
    with Workspace.open(folder) as ws:
        place = ws.locate(ids[1])
        reader = ws.reader(place.batch)
        measured = reader.array(place.index, "observation.state")
    signals = {one["feature"]: one for one in client.get(f"/api/episodes/{ids[1]}/signals")["signals"]}
    assert signals["observation.state"]["values"][0] == pytest.approx(measured[:, 0].tolist(), rel=1e-6)
    assert len(signals["observation.state"]["names"]) == measured.shape[1]
    assert "frame_index" not in signals


def test_images_are_those_of_the_video(client, folder, ids):
    with Workspace.open(folder) as ws:
        place = ws.locate(ids[0])
        stored = ws.reader(place.batch).images(place.index, "front", [0, 12, 30]).astype(float)
    sent = np.asarray(Image.open(io.BytesIO(client.ask("GET", f"/media/{ids[0]}/front/12.jpg").body)), float)
    errors = np.abs(sent - stored).mean(axis=(1, 2, 3))
    assert np.argmin(errors) == 1
    assert errors[1] < 6
    small = Image.open(io.BytesIO(client.ask("GET", f"/media/{ids[0]}/front/12.jpg?width=32").body))
    assert small.size == (32, 24)


def test_videos_are_sent_in_parts(client, folder, ids):
    whole = client.ask("GET", f"/media/{ids[0]}/front.mp4").body
    part = client.ask("GET", f"/media/{ids[0]}/front.mp4", headers={"Range": "bytes=100-199"})
    assert (part.status, part.body) == (206, whole[100:200])


def test_labels_are_stored_and_undone(client, folder, ids):
    reach = {"kind": "subtask", "value": "reach", "first_frame": 0, "last_frame": 9}
    failed, succeeded = ({"kind": "success", "value": value} for value in ("no", "yes"))
    first = client.post("/api/labels", {ids[2]: {"add": [failed, reach]}})
    assert first == {ids[2]: {"add": [], "remove": [failed, reach]}}
    with Workspace.open(folder) as ws:
        rows = ws.query("SELECT kind, value, source, author FROM labels WHERE episode_id = ? ORDER BY kind", [ids[2]])
    assert rows.to_pylist() == [
        {"kind": "subtask", "value": "reach", "source": "hand", "author": "tester"},
        {"kind": "success", "value": "no", "source": "hand", "author": "tester"},
    ]
    second = client.post("/api/labels", {ids[2]: {"add": [succeeded]}})
    assert second == {ids[2]: {"add": [failed], "remove": [succeeded]}}
    assert client.get(f"/api/episodes/{ids[2]}")["facts"]["labelled"] == "yes"
    third = client.post("/api/labels", {ids[2]: {"remove": [reach]}})
    for undo, left in ((third, 2), (second, 2), (first, 0)):
        client.post("/api/labels", undo)
        assert len(client.get(f"/api/episodes/{ids[2]}")["labels"]) == left


def test_labels_that_are_given_at_once_are_all_kept(server, ids):
    clients = [server.admit() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda n: clients[n].post("/api/labels", {ids[0]: {"add": [{"kind": "tag", "value": f"t{n}"}]}}),
                range(8),
            )
        )
    tags = {label["value"] for label in clients[0].get(f"/api/episodes/{ids[0]}")["labels"]}
    assert tags == {f"t{n}" for n in range(8)}
    clients[0].post("/api/labels", {ids[0]: {"remove": [{"kind": "tag", "value": tag} for tag in tags]}})


def test_exclusion_hides_an_episode_and_keeps_it(client, ids):
    undo = client.post("/api/labels", {ids[3]: {"excluded": "blurry"}})
    assert undo[ids[3]]["excluded"] is None
    assert client.get("/api/episodes")["total"] == len(ids) - 1
    (row,) = client.get("/api/episodes?excluded=yes")["rows"]
    assert (row["episode_id"], row["excluded"]) == (ids[3], "blurry")
    assert client.post("/api/labels", undo)[ids[3]]["excluded"] == "blurry"
    assert client.get("/api/episodes")["total"] == len(ids)


@pytest.mark.parametrize(
    "wrong",
    [
        {"add": [{"kind": "mood", "value": "good"}]},
        {"add": [{"kind": "success", "value": "perhaps"}]},
        {"add": [{"kind": "subtask", "value": "reach", "first_frame": 9, "last_frame": 2}]},
        {"add": [{"kind": "subtask", "value": "reach", "first_frame": "0"}]},
        {"add": [{"kind": "tag", "value": "x", "author": "somebody"}]},
        {"add": [{"kind": "tag"}]},
        {"add": "all"},
        {"remove": [{"kind": "tag", "value": "kept"}, 3]},
        {"excluded": None, "add": [{"kind": "mood", "value": "good"}]},
    ],
)
def test_a_wrong_label_changes_nothing(client, ids, wrong):
    undo = client.post("/api/labels", {ids[4]: {"add": [{"kind": "tag", "value": "kept"}]}})
    client.post("/api/labels", {ids[4]: {"excluded": "kept"}})
    answer = client.ask("POST", "/api/labels", json.dumps({ids[4]: wrong}).encode())
    assert answer.status in (400, 404)
    found = client.get(f"/api/episodes/{ids[4]}")
    assert [label["value"] for label in found["labels"]] == ["kept"]
    assert found["facts"]["excluded"] == "kept"
    client.post("/api/labels", {ids[4]: {"excluded": None}})
    client.post("/api/labels", undo)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a": 1}', b"\xff", b" " * (1 << 20) + b"{}", b"[" * 5000])
def test_a_wrong_body_gets_a_message(client, body):
    answer = client.ask("POST", "/api/labels", body)
    assert answer.status == 400
    assert json.loads(answer.body)["message"]


def test_runs_are_listed_newest_first(client):
    listed = client.get("/api/runs")
    assert [run["verb"] for run in listed["rows"]] == ["export", "gate", "gap"]
    assert [run["exit_code"] for run in listed["rows"]] == [0, 1, 0]
    assert {one["value"]: one["n"] for one in listed["verbs"]} == {"export": 1, "gate": 1, "gap": 1}
    assert client.get("/api/runs?verb=gap")["total"] == 1
    run = client.get(f"/api/runs/{listed['rows'][2]['run_id']}")
    assert (run["command"], run["report"]) == (["twinloop", "gap", "--data", "data/it's here"], True)
    assert run["result"]["error"]["estimate"] == 0.25
    assert client.ask("GET", "/api/runs/01XX").status == 404


def test_a_report_is_confined_and_only_one_of_the_workspace_is_sent(client):
    export, _, gap = client.get("/api/runs")["rows"]
    answer = client.ask("GET", f"/reports/{gap['run_id']}.html")
    assert b"All is well." in answer.body
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts")
    assert "same-origin" not in policy
    assert "default-src 'none'" in policy
    assert not export["report"]
    assert client.ask("GET", f"/reports/{export['run_id']}.html").status == 400


def test_versions_of_datasets_and_their_difference(client, ids):
    second, first = client.get("/api/datasets")
    assert (first["version"], first["episodes"], first["note"]) == (1, 4, "the first look")
    assert first["content"][0]["succeeded"] == 4
    changed = client.get("/api/datasets/difference", one="good@1", other="good@2")
    assert (changed["added"], changed["removed"]) == ([ids[4]], [])
    assert client.get("/api/datasets/difference", one="good@2", other="good@1")["removed"] == [ids[4]]
    assert client.ask("GET", "/api/datasets/difference?one=good@1&other=good@9").status == 404
    assert client.ask("GET", "/api/datasets/difference?one=good@1").status == 400
    assert second["sql"].endswith("<> 1")


def test_policies_have_exact_intervals_and_are_compared_in_pairs(client):
    found = client.get("/api/policies")
    assert [row["name"] for row in found["policies"]] == ["first"]
    rates = {(row["policy"][0], row["condition"]): row for row in found["rates"]}
    assert (rates["1", "dark"]["succeeded"], rates["1", "dark"]["n"]) == (15, 20)
    interval = clopper_pearson(15, 20)
    assert rates["1", "dark"]["rate"]["low"] == pytest.approx(float(interval.low))
    compared = client.get("/api/policies/comparison", a="1" * 64, b="2" * 64, suite="nominal")
    assert (compared["pairs"], compared["counts"]["only_a"], compared["counts"]["only_b"]) == (40, 18, 0)
    assert compared["answer"] == "better"
    assert compared["interval"]["low"] < 18 / 40 < compared["interval"]["high"]
    assert client.ask("GET", f"/api/policies/comparison?a={'1' * 64}&b=x&suite=nominal").status == 400


def test_releases_show_decisions_and_a_changed_log(tmp_path):
    folder = studio_workspace(tmp_path / "cell")
    with Server(folder) as server:
        client = server.admit()
        found = client.get("/api/releases")
        assert {row["alias"]: row["policy"] for row in found["aliases"]}["champion"] == "pick@2"
        assert [row["candidate"] for row in found["decisions"]] == ["pick@3", "pick@2", "pick@1"]
        assert found["decisions"][0]["record"]["rules"][0]["reason"] == "planted"
        assert found["faults"] == []
        (folder / "policies" / "audit-head.json").unlink()
        (fault,) = client.get("/api/releases")["faults"]
        assert "missing" in fault


def test_every_command_has_a_form_with_the_flags_of_its_request(client):
    commands = {one["name"]: one for one in client.get("/api/commands")}
    assert {"identify", "gap dynamics", "generate", "label rules"} <= set(commands)
    assert not {"studio", "serve", "demo"} & set(commands)
    fields = {one["flag"]: one for one in commands["identify"]["fields"]}
    assert fields["--twin"]["required"]
    assert fields["--optimal"] | {"help": ""} == {
        "flag": "--optimal", "label": "optimal", "help": "", "kind": "choice", "choices": ["D", "A", "E"],
        "several": False, "required": False, "default": "D",
    }  # fmt: skip
    assert (fields["--data"]["several"], fields["--compare"]["kind"]) == (True, "flag")
    assert all(field["help"] for command in commands.values() for field in command["fields"])
    dataset = commands["curate"]["fields"][0]
    assert (dataset["flag"], dataset["label"], dataset["kind"]) == (None, "DATASET", "path")
    assert any(field["flag"] == "--no-why" for field in commands["gap dynamics"]["fields"])


def wait_for(client, job: str, done=lambda job: job["state"] == "ended"):
    end = time.monotonic() + 60
    while not done(found := client.get(f"/api/jobs/{job}")):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def test_a_command_runs_in_the_workspace_and_its_log_is_kept(client, folder):
    job = client.post("/api/jobs", ["query", "SELECT count(*) AS many FROM episodes"])
    ended = wait_for(client, job["id"])
    assert (ended["exit"], "many" in ended["log"]) == (0, True)
    refused = client.post("/api/jobs", ["query", "SELECT nothing FROM nowhere"])
    assert wait_for(client, refused["id"])["exit"] == 2
    assert [one["id"] for one in client.get("/api/jobs")][:2] == [refused["id"], job["id"]]


ENDLESS = "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE a.range + b.range = 7"


def test_a_command_is_stopped_and_survives_the_studio(tmp_path):
    folder = studio_workspace(tmp_path / "cell")
    with Server(folder) as server:
        client = server.admit()
        job = client.post("/api/jobs", ["query", ENDLESS])["id"]
        wait_for(client, job, lambda found: found["state"] == "running")
    with Server(folder) as server:
        client = server.admit()
        assert client.get(f"/api/jobs/{job}")["state"] == "running"
        time.sleep(2)  # until Python handles signals
        client.post(f"/api/jobs/{job}/stop", {})
        assert wait_for(client, job)["exit"] is None  # nobody was there to read it


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["studio"], "studio"),
        (["serve", "--policy", "x"], "serve"),
        (["gapp"], "gapp"),
        ([], "words"),
        ("gap", "words"),
        ([["gap"]], "words"),
        (["gap", "dynamics", "a\0b"], "character"),
        (["query"] + ["x"] * 500, "400"),
    ],
)
def test_what_is_no_command_is_not_started(client, words, named):
    before = len(client.get("/api/jobs"))
    answer = client.ask("POST", "/api/jobs", json.dumps(words).encode())
    assert answer.status in (400, 404)
    assert named in json.loads(answer.body)["message"]
    assert len(client.get("/api/jobs")) == before
    assert client.ask("GET", "/api/jobs/..%2f..").status == 404
    assert client.ask("POST", "/api/jobs/nothing/stop", b"{}").status == 404


@pytest.mark.slow
def test_twenty_readers_at_a_time_get_their_answers(server, ids):
    readers = [server.admit() for _ in range(20)]
    start = threading.Barrier(20)

    def read(reader: Client) -> int:
        start.wait()
        seen = [reader.get(f"/api/episodes/{name}")["facts"]["episode_id"] for name in ids]
        return seen == ids and reader.get("/api/episodes")["total"] == len(ids)

    with ThreadPoolExecutor(20) as pool:
        assert all(pool.map(read, readers))


def test_a_killed_server_loses_no_label(tmp_path):
    folder = studio_workspace(tmp_path / "cell")
    with Server(folder) as server:
        client = server.admit()
        ids = [row["episode_id"] for row in client.get("/api/episodes")["rows"]]
        done = 0
        stopped = threading.Event()

        def write() -> None:
            nonlocal done
            while not stopped.is_set():
                try:
                    client.post("/api/labels", {ids[done % len(ids)]: {"add": [{"kind": "tag", "value": f"t{done}"}]}})
                except (OSError, HTTPException):
                    return
                done += 1

        writer = threading.Thread(target=write)
        writer.start()
        while done < 10:
            assert writer.is_alive()
            stopped.wait(0.01)
        server.process.send_signal(signal.SIGKILL)
        writer.join()
        stopped.set()
    with Workspace.open(folder) as ws:
        stored = set(ws.query("SELECT value FROM label_history WHERE NOT retracted").column("value").to_pylist())
    assert stored >= {f"t{number}" for number in range(done)}


def test_a_dataset_outside_a_workspace_is_shown_and_not_changed(tmp_path):
    dataset = write_dataset(tmp_path / "alone", episodes=2)
    before = {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()}
    with Server(dataset, environment={"XDG_CACHE_HOME": str(tmp_path / "cache")}) as server:
        client = server.admit()
        (first, _) = client.get("/api/episodes")["rows"]
        client.post("/api/labels", {first["episode_id"]: {"add": [{"kind": "tag", "value": "kept"}]}})
    with Server(dataset, environment={"XDG_CACHE_HOME": str(tmp_path / "cache")}) as server:
        assert server.admit().get("/api/episodes?tag=kept")["total"] == 1
    assert {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()} == before


def test_the_folder_of_a_run_opens_its_page(tmp_path, folder):
    alone = tmp_path / "fit"
    alone.mkdir()
    (alone / "result.json").write_text('{"verb": "identify", "estimates": [], "made": "2026-01-02T03:04:05"}')
    ReportPage("Alone").text("It stands alone.").write(alone / "report.html")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for _ in range(2):  # the second time it is known
        with Server(alone, environment=cache) as server:
            client = server.admit()
            (run,) = client.get("/api/runs")["rows"]
            assert (run["verb"], run["report"]) == ("identify", True)
            assert b"It stands alone." in client.ask("GET", f"/reports/{run['run_id']}.html").body
            assert client.get(f"/api/runs/{run['run_id']}")["result"]["estimates"] == []
            assert client.start == f"/runs/{run['run_id']}"
    assert sorted(path.name for path in alone.iterdir()) == ["report.html", "result.json"]


def test_a_folder_that_is_none_of_these_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "twinloop", "studio", str(tmp_path), "--no-browser"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "nor the folder of a run" in " ".join(done.stderr.split())


def test_a_file_of_figures_is_read_while_it_is_written(tmp_path):
    file = tmp_path / "m.jsonl"
    code = (
        "from twinloop.core.metrics import log_metrics\n"
        "for step in range(1201): log_metrics(step, {'loss': step / 2, 'nan': float('nan')})\n"
    )
    environment = {**os.environ, metrics.VARIABLE: str(file)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, cwd=tmp_path)
    with file.open("a") as added:
        added.write('{"step": 5, "loss"')  # a line that is being written
    curves = read_figures(file)
    assert len(curves["loss"]["steps"]) <= 500
    assert curves["loss"]["steps"][-1] == 1200
    assert curves["loss"]["values"] == [step / 2 for step in curves["loss"]["steps"]]
    assert read_figures(tmp_path / "none") == {}
