"""To the Hub and back, against a small Hub on this machine: whole commits, verified files, clean refusals."""

from __future__ import annotations

import json
import shutil
import socket
import sys

import pytest

from support.dataset_writer import SPEC, write_all
from support.hub_server import TOKEN, hub_server
from twinloop.cli.main import main
from twinloop.core.errors import DatasetError, InputError, MissingDependencyError
from twinloop.core.files import sha256_tree
from twinloop.dataset.storage.hub import pull_dataset, push_dataset

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # caused by huggingface_hub's client


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("hub") / "set", SPEC)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)  # between its own attempts


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # whose store is a separate service
        yield server


def sent(hub):
    return [line for line in hub.seen if line.startswith("PUT")]


def test_what_is_pushed_comes_back_byte_for_byte_under_the_tag_that_lerobot_looks_up(hub, dataset, tmp_path):
    done = push_dataset(dataset, "me/set", private=True)
    assert (done.tag, done.branch) == ("v3.0", "main")
    assert hub.repositories["me/set"].tags == {"v3.0": done.commit}
    assert hub.repositories["me/set"].private
    assert len(hub.repositories["me/set"].commits) == 2  # the empty one and this
    for revision in (None, "v3.0", done.commit):
        back = pull_dataset("me/set", tmp_path / str(revision), revision=revision)
        assert back.commit == done.commit
        assert back.files == done.files
        assert sha256_tree(back.output) == sha256_tree(dataset)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_second_push_sends_what_is_new_and_removes_what_is_gone(hub, dataset, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(dataset, copy)
    push_dataset(copy, "me/set")
    assert sent(hub)
    hub.seen.clear()
    (copy / "twinloop/provenance/chunk-000/file-000.jsonl").unlink()
    (copy / ".private").write_text("not theirs")
    done = push_dataset(copy, "me/set", ignore=("twinloop/states/*",))
    assert sent(hub) == []
    there = hub.repositories["me/set"].commits[done.commit]
    wanted = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert set(there) == {name for name in wanted if not name.startswith((".", "twinloop/states/"))}
    assert hub.repositories["me/set"].tags["v3.0"] == done.commit


def test_a_branch_is_pushed_without_moving_the_tag(hub, dataset):
    first = push_dataset(dataset, "me/set")
    second = push_dataset(dataset, "me/set", branch="trial", ignore=("README.md",))
    assert second.tag == ""
    assert hub.repositories["me/set"].tags["v3.0"] == first.commit
    assert hub.repositories["me/set"].refs["trial"] == second.commit
    assert hub.repositories["me/set"].refs["main"] == first.commit


def test_a_damaged_file_is_seen_and_the_next_pull_brings_only_that(hub, dataset, tmp_path):
    push_dataset(dataset, "me/set")
    for damage in ("data/chunk-000/file-000.parquet", "meta/info.json"):  # by SHA-256, and by git's SHA-1
        hub.damage, output = damage, tmp_path / damage.replace("/", "-")
        with pytest.raises(DatasetError, match=f"{damage} of me/set arrived damaged"):
            pull_dataset("me/set", output)
        assert not output.exists()
        hub.damage = ""
        hub.seen.clear()
        pull_dataset("me/set", output)
        assert sha256_tree(output) == sha256_tree(dataset)
        assert [line for line in hub.seen if line.startswith("GET /datasets")] == [
            line for line in hub.seen if line.startswith("GET /datasets") and line.endswith(damage)
        ]


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/outside", "data/../../outside", "a\\b", ".cache/x"])
def test_names_that_leave_the_folder_are_refused_before_anything_is_downloaded(hub, dataset, tmp_path, name):
    push_dataset(dataset, "me/set")
    hub.extra = {name: b"evil"}
    with pytest.raises(DatasetError, match="leaves the dataset's folder or is hidden in it"):
        pull_dataset("me/set", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_hub_that_does_not_answer_is_said_and_leaves_nothing(monkeypatch, dataset, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(DatasetError, match=rf"cannot be pulled from http://127.0.0.1:{port}: it cannot be reached"):
        pull_dataset("me/set", tmp_path / "out")
    with pytest.raises(DatasetError, match=r"cannot be pushed to .* run the same command again"):
        push_dataset(dataset, "me/set")
    assert list(tmp_path.iterdir()) == []


def test_refusals_say_what_to_do(hub, dataset, tmp_path, monkeypatch):
    push_dataset(dataset, "me/set")
    with pytest.raises(DatasetError, match="there is no such dataset, or it is private"):
        pull_dataset("me/other", tmp_path / "out")
    with pytest.raises(DatasetError, match="no such branch, tag or commit"):
        pull_dataset("me/set", tmp_path / "out", revision="v9")
    with pytest.raises(InputError, match="is not the name of a repository"):
        pull_dataset("a/b/c", tmp_path / "out")
    with pytest.raises(InputError, match="exists and is not an empty folder"):
        pull_dataset("me/set", dataset)
    with pytest.raises(InputError, match="is not a LeRobot dataset"):
        push_dataset(tmp_path, "me/set")
    with pytest.raises(InputError, match="to push. Change them"):
        push_dataset(dataset, "me/set", allow=("nothing/*",))
    with pytest.raises(DatasetError, match=r"has no meta/info.json"):
        pull_dataset("me/set", tmp_path / "out", ignore=("meta/*",))
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(DatasetError, match=r"HTTP 401.*HF_TOKEN"):
        push_dataset(dataset, "me/another")
    assert list(tmp_path.iterdir()) == []


def test_a_link_out_of_the_folder_is_not_pushed(hub, dataset, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(dataset, copy)
    (tmp_path / "secret").write_text("secret")
    (copy / "data/secret").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="is a link that leaves"):
        push_dataset(copy, "me/set")
    assert hub.repositories == {}


def test_without_the_package_the_command_that_adds_it_is_named(monkeypatch, dataset):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'twinloop\[hub\]'"):
        push_dataset(dataset, "me/set")


def test_the_commands_answer_in_json(hub, dataset, tmp_path, capsys):
    assert main(["push", str(dataset), "me/set", "--json"]) == 0
    pushed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert main(["pull", "me/set", "--output", str(tmp_path / "out"), "--revision", "v3.0", "--json"]) == 0
    pulled = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert pulled["commit"] == pushed["commit"]
    assert pulled["bytes"] == pushed["bytes"]
