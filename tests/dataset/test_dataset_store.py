"""Datasets in object stores: a fetched dataset equals a local run byte for byte and is always a whole commit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from support.dataset_writer import SPEC, commit, write_all
from twinloop.cli.main import main
from twinloop.core.errors import DatasetError, DatasetLockedError, MissingDependencyError, UnknownNameError
from twinloop.core.files import sha256_file, sha256_tree
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.validation import validate
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.storage.store import POINTER, ObjectStore
from twinloop.dataset.storage.targets import fetch_dataset, open_target, read_committed_progress

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def address():
    """A unique prefix in fsspec's memory store."""
    name = f"memory://bucket-{uuid.uuid4().hex}/runs/set"
    yield name
    fsspec.filesystem("memory").store.clear()


def tree(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): sha256_file(p) for p in folder.rglob("*") if p.is_file()}


def test_what_is_fetched_equals_a_local_run(tmp_path, address):
    local = write_all(tmp_path / "local")
    write_all(address)
    metrics = fetch_dataset(address, tmp_path / "fetched")
    assert tree(tmp_path / "fetched") == tree(local)
    assert metrics["episodes"] == 9
    assert read_committed_progress(address).to_json() == read_committed_progress(local).to_json()


def test_a_finished_run_is_a_plain_dataset_under_the_address(tmp_path, address):
    """Any tool that copies a prefix gets a LeRobot folder, without knowing of pointers."""
    write_all(address)
    fsspec.filesystem("memory").get(f"{address}/dataset/", str(tmp_path / "copy"), recursive=True)
    assert tree(tmp_path / "copy") == tree(write_all(tmp_path / "local"))
    assert all(verdict.accepted for verdict in validate(tmp_path / "copy"))


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_reader_sees_whole_commits_and_a_resumed_run_ends_with_the_same_bytes(tmp_path, address, stop_after):
    with DatasetWriter.open(address, SPEC) as writer:
        assert read_committed_progress(address).episodes == 0
        with pytest.raises(DatasetError, match="holds no dataset: there is no current.json"):
            fetch_dataset(address, tmp_path / "too early")
        for block in range(stop_after):
            commit(writer, block)
            reader_folder = tmp_path / "reader"
            metrics = fetch_dataset(address, reader_folder)
            assert metrics["downloaded"] <= 16, "only what changed"
            reader = DatasetReader(reader_folder)
            assert len(reader) == writer.episodes == metrics["episodes"]
            assert all(len(reader.states(i)) == reader.lengths[i] + 1 for i in range(len(reader)))
    assert ObjectStore(address).read("dataset/meta/info.json") is None, "no dataset for others before the end"
    write_all(address, resume=True)
    fetch_dataset(address, tmp_path / "reader")
    assert tree(tmp_path / "reader") == tree(write_all(tmp_path / "local"))


def test_old_commits_are_cleared_and_blocks_are_uploaded_once(address, monkeypatch):
    uploaded = []
    upload = ObjectStore.upload
    monkeypatch.setattr(ObjectStore, "upload", lambda self, files: (uploaded.extend(files), upload(self, files)))
    write_all(address)
    blocks = [key for key in uploaded if "/chunk-" in key]
    assert len(blocks) == len(set(blocks)) == 12
    commits = {name.rpartition("/")[2] for name in fsspec.filesystem("memory").ls(f"{address}/commits", detail=False)}
    assert commits == {"000004", "000005"}


def test_an_upload_that_fails_is_one_message_and_loses_nothing(tmp_path, address, monkeypatch):
    with DatasetWriter.open(address, SPEC) as writer:
        commit(writer, 0)

        def refuse(self, *_, **__):
            raise ConnectionError("the network is\n gone")

        with monkeypatch.context() as patch:
            patch.setattr(fsspec.implementations.memory.MemoryFileSystem, "put", refuse)
            with pytest.raises(DatasetError, match=r"set cannot be written \(ConnectionError: the network is gone\)"):
                commit(writer, 1)
        assert read_committed_progress(address).episodes == 3
        for block in (1, 2, 3):
            commit(writer, block)
        writer.finish({"yield": 0.5625})
    fetch_dataset(address, tmp_path / "fetched")
    assert tree(tmp_path / "fetched") == tree(write_all(tmp_path / "local"))


def test_what_is_there_is_neither_overwritten_nor_mixed(address):
    write_all(address)
    with pytest.raises(DatasetError, match=rf"{address} already holds a dataset of 9 episodes"):
        DatasetWriter.open(address, SPEC)
    fsspec.filesystem("memory").pipe_file(f"{address}-other/notes.txt", b"keep")
    with pytest.raises(DatasetError, match=r"holds objects that are not a twinloop dataset \(notes.txt\)"):
        DatasetWriter.open(f"{address}-other", SPEC)


def test_a_second_writer_is_noticed_before_the_pointer_moves(address):
    with DatasetWriter.open(address, SPEC) as one, DatasetWriter.open(address, SPEC) as two:
        commit(one, 0)
        with pytest.raises(DatasetLockedError, match=f"Another writer has committed to {address}"):
            commit(two, 0)
        commit(one, 1)
    assert read_committed_progress(address).episodes == 3


def test_damage_and_escapes_are_refused(tmp_path, address):
    write_all(address)
    files, store = fsspec.filesystem("memory"), ObjectStore(address)
    key = "dataset/data/chunk-000/file-000.parquet"
    whole = store.read(key)
    store.write(key, whole[:-1] + b"x")
    with pytest.raises(DatasetError, match=rf"{key} is damaged: its SHA-256 differs from the manifest"):
        fetch_dataset(address, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()
    store.write(key, whole)
    manifest = json.loads(store.read(json.loads(store.read(POINTER))["manifest"]))
    manifest["files"]["../../escaped"] = manifest["files"][next(iter(manifest["files"]))]
    data = json.dumps(manifest).encode()
    store.write("commits/evil.json", data)
    import hashlib

    pointer = {"schema": 1, "commit": 9, "manifest": "commits/evil.json", "sha256": hashlib.sha256(data).hexdigest()}
    store.write(POINTER, json.dumps(pointer).encode())
    with pytest.raises(DatasetError, match="leaves the dataset's folder. No file was written outside it"):
        fetch_dataset(address, tmp_path / "fetched")
    store.write(POINTER, b"{}")
    with pytest.raises(DatasetError, match="lacks schema, commit, manifest, sha256"):
        fetch_dataset(address, tmp_path / "fetched")
    assert files.exists(address)


def test_a_store_that_cannot_be_opened_says_what_is_missing(monkeypatch):
    with pytest.raises(
        UnknownNameError, match=r"Unknown kind of store 's4' in 's4://bucket/x'\. Nearest existing: .*s3"
    ):
        open_target("s4://bucket/x")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(MissingDependencyError, match=r's3://bucket/x needs .* To add it: pip install "twinloop\[s3\]"'):
        open_target("s3://bucket/x")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependencyError, match=r"needs fsspec, which is not installed"):
        open_target("memory://bucket/x")


def test_a_file_address_is_a_folder(tmp_path):
    write_all(f"file://{tmp_path}/set")
    assert sha256_tree(tmp_path / "set") == sha256_tree(write_all(tmp_path / "local"))


# A real S3 protocol from here on: moto's server in a separate process, s3fs as the client.


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """A bucket on a local S3-compatible server."""
    server = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    patch = pytest.MonkeyPatch()
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        patch.setenv(name, value)
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir("runs")
    yield "s3://runs"
    running.stop()
    patch.undo()


GENERATE = "scene: {robot: so101, task: pick_and_place}\nrollout: {parallel_envs: 4, episodes_per_env: 4}\n"

KILLED_BEFORE_THE_POINTER = """
import os, signal, sys
from twinloop.cli.main import main
from twinloop.dataset.storage.store import POINTER, ObjectStore

write, moved = ObjectStore.write, []

def kill_before(self, key, data):
    moved.append(key) if key == POINTER else None
    if len(moved) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, key, data)

ObjectStore.write = kill_before
main(["generate", sys.argv[1], "--output", sys.argv[2], "--workers", "1"])
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_killed_between_upload_and_pointer_is_whole_and_resumes_from_s3(s3, tmp_path, capsys):
    file, output = tmp_path / "generate.yaml", f"{s3}/killed/batch"
    file.write_text(GENERATE)
    command = [sys.executable, "-c", KILLED_BEFORE_THE_POINTER, str(file), output]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert ObjectStore(output).read("dataset/data/chunk-000/file-002.parquet") is not None, "uploaded, not committed"
    assert main(["fetch", output, str(tmp_path / "seen")]) == 0
    seen = DatasetReader(tmp_path / "seen")
    assert seen.numbers.max() < 8
    assert len(seen) == seen.info["total_episodes"] > 0
    assert main(["generate", str(file), "--output", output, "--workers", "1"]) == 2
    assert "already holds a dataset" in capsys.readouterr().err
    assert main(["generate", str(file), "--output", output, "--workers", "2", "--resume"]) == 0
    assert main(["generate", str(file), "--output", str(tmp_path / "local"), "--workers", "1"]) == 0
    assert main(["fetch", output, str(tmp_path / "seen")]) == 0
    assert tree(tmp_path / "seen") == tree(tmp_path / "local")
    logs = fsspec.filesystem("s3").ls(f"{output}/log")
    assert len(logs) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_s3_refuses_is_one_message(s3, tmp_path, capsys):
    file = tmp_path / "generate.yaml"
    file.write_text(GENERATE)
    assert main(["generate", str(file), "--output", "s3://no-such-bucket/x", "--workers", "1"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "s3://no-such-bucket/x cannot be" in said
    assert "Check that the bucket exists" in said
    file.write_text(GENERATE + "render: {cameras: [front]}\n")
    assert main(["generate", str(file), "--output", f"{s3}/pixels"]) == 2
    assert "Images are rendered from a local dataset" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("address", ["", "/nowhere", "data/batch", "file:///data/batch"])
def test_a_local_folder_is_not_fetched(tmp_path, address):
    with pytest.raises(DatasetError, match="is not an address of a store, such as s3://bucket/prefix. .* copied"):
        fetch_dataset(address, tmp_path / "copy")


@pytest.mark.parametrize("address", ["memory://", "s3:///"])
def test_an_address_names_a_place(tmp_path, address):
    with pytest.raises(DatasetError, match="is not an address in a store. Write an address such as s3://bucket/prefix"):
        fetch_dataset(address, tmp_path / "copy")
