"""Data from the Hub or a store are untrusted: no program, no path out of the folder, no false size."""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.dataset_writer import SPEC, write_all
from support.hub_server import TOKEN, hub_server
from twinloop.cli.main import main
from twinloop.core.errors import DatasetError
from twinloop.core.files import dumps, sha256_tree
from twinloop.dataset.storage import dataset_files, hub
from twinloop.dataset.storage.dataset_files import is_dataset_file, select_dataset_files
from twinloop.dataset.storage.hub import pull_dataset, push_dataset
from twinloop.dataset.storage.store import POINTER, ObjectStore
from twinloop.dataset.storage.targets import fetch_dataset

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # caused by huggingface_hub's client


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("pull") / "set", SPEC)


@pytest.fixture(scope="module")
def running(dataset):
    """A Hub with one dataset."""
    with pytest.MonkeyPatch.context() as patch, hub_server() as server:
        patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)
        patch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
        patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        patch.setenv("HF_ENDPOINT", server.address)
        patch.setenv("HF_TOKEN", TOKEN)
        push_dataset(dataset, "me/set")
        yield server


@pytest.fixture
def server(running):
    running.extra = {}
    running.seen.clear()
    return running


@pytest.fixture(scope="module")
def written():
    """The objects of a dataset in fsspec's memory store, by relative path."""
    objects = fsspec.filesystem("memory").store
    objects.clear()
    write_all("memory://written/set")
    return {key.removeprefix("/written/set"): item.getvalue() for key, item in objects.items()}


@pytest.fixture
def store(written):
    """The address of a separate dataset in fsspec's memory store."""
    name, files = f"/bucket-{uuid.uuid4().hex}/set", fsspec.filesystem("memory")
    for key, data in written.items():
        files.pipe_file(name + key, data)
    yield f"memory:/{name}"
    files.store.clear()


UNWANTED = {
    "a Python module": "evil.py",
    "a module that a dataset's script would be": "set.py",
    "a module in the folder of data": "data/chunk-000/loader.py",
    "a pickle": "data/chunk-000/file-001.pkl",
    "a pickle under the name of PyTorch": "meta/stats.pt",
    "a checkpoint": "model.ckpt",
    "an array that may be a pickle": "twinloop/states/x.npy",
    "a shared library": "twinloop/lib.so",
    "a shell script": "setup.sh",
    "a notebook": "notebook.ipynb",
    "a make file": "Makefile",
    "settings of a build": "pyproject.toml",
    "a module that Python loads at its start": "sitecustomize.py",
    "a file of paths for Python": "data/evil.pth",
    "settings of git hooks": ".git/hooks/post-checkout",
    "a hidden file": ".bashrc",
    "a hidden file among data": "data/.hidden.parquet",
    "a plan that names code": "generate.yaml",
    "a page": "report.html",
    "an archive": "data/all.zip",
    "a database": "twinloop/state.sqlite",
    "a table in a folder of its own": "extra/table.parquet",
    "a table with a second suffix": "data/chunk-000/file-001.parquet.py",
    "a device of Windows": "data/CON.parquet",
    "a device of Windows in a folder's name": "videos/aux/file-000.mp4",
    "a name that ends in a blank": "data/chunk-000/file-001.parquet ",
    "a folder whose name ends in a dot": "data/chunk-000./file-001.parquet",
    "a name with a line break": "data/chunk-000/a\nb.parquet",
    "a name that clears the screen": "data/chunk-000/\x1b[2Ja.parquet",
    "a name that is written backwards": "data/chunk-000/\u202etekraq.parquet",
    "a name that looks like a flag": "data/-rf.parquet",
    "a stream of another file": "data/file.parquet:stream.parquet",
    "a name of 300 letters": f"data/{'a' * 300}.parquet",
    "twenty folders": f"data/{'a/' * 20}b.parquet",
    "a shortcut": "videos/x.lnk",
    "an upper-case suffix": "data/chunk-000/file-001.PARQUET",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.attack(
                f"a dataset on the Hub holds {what}",
                expected="not downloaded, named in the output; the dataset is whole",
            ),
            id=what,
        )
        for what, name in UNWANTED.items()
    ],
)
def test_files_that_belong_to_no_dataset(observed, name):
    assert select_dataset_files(["meta/info.json", name]) == {"meta/info.json"}
    observed("left out")


@pytest.mark.attack(
    "a dataset on the Hub holds all of these at once",
    expected="none is downloaded, all are named, and the dataset is whole",
)
def test_all_files_that_belong_to_no_dataset(server, dataset, tmp_path, observed):
    server.extra = dict.fromkeys(UNWANTED.values(), b"evil")
    done = pull_dataset("me/set", tmp_path / "out", allow=("*",))
    observed(f"{len(done.left_out)} left out")
    assert done.left_out == tuple(sorted(UNWANTED.values()))
    assert sha256_tree(tmp_path / "out") == sha256_tree(dataset)
    asked = [line for line in server.seen if "/resolve/" in line]
    assert not [line for line in asked if any(name in line for name in UNWANTED.values())]


@pytest.mark.attack(
    "a user asks for a program by --allow", expected="left out all the same, and named on the console and in JSON"
)
def test_what_was_left_out_is_named(server, tmp_path, capfd):
    server.extra = {"evil.py": b"evil", "data/\x1b]52;c;ZXZpbA==\x07.py": b"evil", ".gitattributes": b""}
    words = ["pull", "me/set", "--allow", "*", "--output"]
    assert main([*words, str(tmp_path / "one")]) == 0
    said = capfd.readouterr().out
    assert "Left out 2 files that belong to no dataset: data/\\u001b]52" in " ".join(said.split())
    assert "\x1b" not in said
    assert main([*words, str(tmp_path / "two"), "--json"]) == 0
    metrics = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert metrics["left_out"] == ["data/\x1b]52;c;ZXZpbA==\x07.py", "evil.py"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.attack(
                f"a dataset on the Hub names a file {what}", expected="refused before anything is downloaded"
            ),
            id=what,
        )
        for what, name in {
            "above the folder": "../../.ssh/authorized_keys",
            "by an absolute path": "/etc/cron.d/evil",
            "above the folder, behind a folder of data": "data/../../evil.parquet",
            "with backslashes": "data\\..\\..\\evil.parquet",
            "on another drive": "C:/evil.parquet",
            "in the folder where downloads are noted": ".cache/huggingface/evil",
            "without a name": "",
        }.items()
    ],
)
def test_paths_out_of_the_folder(server, tmp_path, observed, name):
    server.extra = {name: b"evil"}
    with pytest.raises(DatasetError, match="leaves the dataset's folder or is hidden in it") as caught:
        pull_dataset("me/set", tmp_path / "out")
    observed(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.attack(
    "two files of a dataset differ in the case of a letter, or in how an accent is composed",
    expected="one of them is taken, the other is named",
)
@pytest.mark.parametrize("other", ["meta/INFO.json", "meta/Info.json", "data/Chunk-000/file-000.parquet"])
def test_names_that_are_one_on_other_systems(server, dataset, tmp_path, other):
    server.extra = {other: b"evil"}
    done = pull_dataset("me/set", tmp_path / "out")
    assert done.left_out == (other,)
    assert sha256_tree(tmp_path / "out") == sha256_tree(dataset)


@pytest.mark.attack("a file of a dataset arrives executable", expected="no file is executable after a pull")
def test_nothing_is_executable(server, tmp_path, monkeypatch):
    fetch = hub._download

    def executable(api, repo_id, commit, name, stage):
        fetch(api, repo_id, commit, name, stage)
        (stage / name).chmod(0o777)

    monkeypatch.setattr(hub, "_download", executable)
    pull_dataset("me/set", tmp_path / "out")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert modes == {0o644}


@pytest.mark.attack(
    "a download is replaced by a link to a file outside", expected="refused, and nothing is left in place"
)
def test_a_link_in_place_of_a_file(server, tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("secret")

    def linked(api, repo_id, commit, name, stage):
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).symlink_to(tmp_path / "secret")

    monkeypatch.setattr(hub, "_download", linked)
    with pytest.raises(DatasetError, match="is a link out of the folder"):
        pull_dataset("me/set", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.attack(
    "a dataset on the Hub announces more bytes than the disk has, or a million files and more",
    expected="refused before anything is downloaded",
)
@pytest.mark.parametrize("limit", ["bytes", "files"])
def test_more_than_there_is_room_for(server, tmp_path, monkeypatch, limit):
    if limit == "bytes":
        monkeypatch.setattr(dataset_files.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    else:
        monkeypatch.setattr(dataset_files, "MOST_FILES", 5)
    with pytest.raises(DatasetError, match="Free some space" if limit == "bytes" else "more than 5 files"):
        pull_dataset("me/set", tmp_path / "out")
    assert [line for line in server.seen if "/resolve/" in line] == []
    assert list(tmp_path.iterdir()) == []


_PARTS = st.text(st.characters(codec="utf-8"), min_size=0, max_size=12) | st.sampled_from(
    [
        "..",
        ".",
        "",
        "data",
        "meta",
        "CON",
        "nul.parquet",
        "file-000.parquet",
        "a b.parquet",
        "é.parquet",
        "x.py",
        "~x.json",
    ]
)


@pytest.mark.attack(
    "any path that random text and known tricks make up",
    expected="what is taken stays in its folder, has a data suffix and a name that every system writes alike",
)
@settings(max_examples=200, deadline=None)
@given(st.lists(_PARTS, min_size=1, max_size=5).map("/".join))
def test_what_is_taken_is_harmless(name):
    if is_dataset_file(name):
        place = (Path("/base") / name).resolve()
        assert place.parent.is_relative_to("/base")
        assert name.isprintable()
        assert not set(name) & set('<>:"|?*\\')
        assert place.suffix in {".json", ".jsonl", ".parquet", ".mp4", ".mkv", ".webm", ".mov", ".avi", ".png", ".jpg",
                                ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".md", ".txt", ".cff", ""}  # fmt: skip
        assert not any(part.startswith(".") for part in name.split("/"))
        assert select_dataset_files([name, name.swapcase() if is_dataset_file(name.swapcase()) else name]) <= {
            name,
            name.swapcase(),
        }


@pytest.mark.attack(
    "a file and a folder of a dataset have one name", expected="the file is left out, what is in the folder is taken"
)
def test_a_file_that_is_also_a_folder():
    names = ["data/a.parquet", "data/a.parquet/b.parquet", "data/c.parquet"]
    assert select_dataset_files(names) == {"data/a.parquet/b.parquet", "data/c.parquet"}
    assert select_dataset_files(
        ["data/A.parquet", "data/a.parquet", "data/cafe\u0301.parquet", "data/caf\u00e9.parquet"]
    ) == {
        "data/a.parquet",
        "data/caf\u00e9.parquet",
    }


@pytest.mark.attack("every kind of file that twinloop and LeRobot write", expected="all of them are taken")
@pytest.mark.parametrize(
    "name",
    [
        *("meta/info.json", "meta/episodes.jsonl", "meta/tasks.parquet", "README.md", "LICENSE", "meta/modality.json"),
        "data/chunk-000/file-000.parquet",
        "data/chunk-012/episode_012345.parquet",
        "videos/observation.images.front/chunk-000/file-000.mp4",
        "videos/chunk-000/observation.images.Kamera_über/episode_000000.mp4",
        "images/observation.images.front/episode_000000/frame_000000.png",
        "twinloop/annotations/frames/chunk-000/file-000.parquet",
        "twinloop/provenance/chunk-000/file-000.jsonl",
    ],
)
def test_files_of_a_dataset_are_taken(name):
    assert select_dataset_files([name]) == {name}


def changed_manifest(address: str, change) -> None:
    """Change a store's manifest and make the pointer fit it, as the store's owner can."""
    files, root = fsspec.core.url_to_fs(address)
    pointer = json.loads(files.cat_file(f"{root}/{POINTER}"))
    manifest = json.loads(files.cat_file(f"{root}/{pointer['manifest']}"))
    change(manifest["files"], pointer)
    data = dumps(manifest).encode()
    if "sha256" in pointer:
        files.pipe_file(f"{root}/{json.loads(files.cat_file(f'{root}/{POINTER}'))['manifest']}", data)
        pointer["sha256"] = hashlib.sha256(data).hexdigest()
    files.pipe_file(f"{root}/{POINTER}", dumps(pointer).encode())


INFO = "meta/info.json"
MANIFESTS = {
    "names a file above the folder": (lambda f, p: f.update({"../evil.json": f[INFO]}), "leaves the dataset's folder"),
    "names a file by an absolute path": (lambda f, p: f.update({"/tmp/evil.json": f[INFO]}), "leaves the dataset's"),
    "names a file with backslashes": (lambda f, p: f.update({"a\\..\\b": f[INFO]}), "leaves the dataset's folder"),
    "reads an object above its folders": (lambda f, p: f[INFO].update(key="../../other/secret"), "is damaged"),
    "reads an object at its root": (lambda f, p: f[INFO].update(key="secret.json"), "is damaged"),
    "reads an object behind a detour": (lambda f, p: f[INFO].update(key="dataset/../../secret"), "is damaged"),
    "says a smaller size": (lambda f, p: f[INFO].update(size=3), "the manifest has 3"),
    "says a negative size": (lambda f, p: f[INFO].update(size=-1), "is not a number of bytes"),
    "says a size of 1e18 bytes": (lambda f, p: f[INFO].update(size=10**18), "Free some space"),
    "says a size in words": (lambda f, p: f[INFO].update(size="many"), "is not a number of bytes"),
    "says another hash": (lambda f, p: f[INFO].update(sha256="0" * 64), "its SHA-256 differs from the manifest"),
    "says a hash that is none": (lambda f, p: f[INFO].update(sha256="../x"), "is not a SHA-256"),
    "has an entry of another kind": (lambda f, p: f.update({INFO: [1, 2]}), "is damaged"),
    "has an entry with more in it": (lambda f, p: f[INFO].update(run="rm"), "is damaged"),
    "lies outside its folder": (lambda f, p: p.update(manifest="../../other/manifest.json"), "is damaged"),
    "has a number that is none": (lambda f, p: p.update(commit="one"), "is damaged"),
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            change,
            said,
            marks=pytest.mark.attack(f"the manifest of a store {what}", expected="refused; nothing is written"),
            id=what,
        )
        for what, (change, said) in MANIFESTS.items()
    ],
)
def test_manifests_that_lie(store, tmp_path, observed, change, said):
    changed_manifest(store, change)
    with pytest.raises(DatasetError, match=said) as caught:
        fetch_dataset(store, tmp_path / "deep" / "out")
    observed(caught.value)
    assert not (tmp_path / "deep" / "out").exists()
    assert {path.name for path in tmp_path.rglob("*")} <= {"deep"}


@pytest.mark.attack(
    "a store names programs and hidden files beside the dataset's", expected="left out and named; the rest is fetched"
)
def test_programs_in_a_store(store, tmp_path, capfd, monkeypatch):
    download = ObjectStore.download

    def executable(self, files):
        download(self, files)
        for path in files.values():
            path.chmod(0o777)

    monkeypatch.setattr(ObjectStore, "download", executable)
    evil = ["evil.py", "data/x.pkl", ".bashrc", "twinloop/run.sh", "data/CON.parquet"]
    changed_manifest(store, lambda files, _: files.update(dict.fromkeys(evil, files[INFO])))
    assert main(["fetch", store, str(tmp_path / "out")]) == 0
    said = capfd.readouterr().out
    assert "Left out 5 files that belong to no dataset" in " ".join(said.split())
    assert sha256_tree(tmp_path / "out") == sha256_tree(write_all(tmp_path / "local"))
    assert {path.stat().st_mode & 0o111 for path in (tmp_path / "out").rglob("*") if path.is_file()} == {0}


@pytest.mark.attack(
    "the pointer of a store is an object of many gigabytes", expected="refused by its size, without reading it"
)
def test_a_pointer_of_any_size(store, monkeypatch):
    opened = ObjectStore(store)
    monkeypatch.setattr(type(opened._files), "sizes", lambda self, paths: [10**12 for _ in paths])
    monkeypatch.setattr(type(opened._files), "cat_file", lambda *_: pytest.fail("it was read"))
    with pytest.raises(DatasetError, match=r"current\.json has 1000000000000 bytes; at most"):
        opened.newest_commit()


@pytest.mark.attack(
    "the pointer of a store is JSON nested a thousand levels deep, or no JSON", expected="refused by name"
)
@pytest.mark.parametrize("data", [b"[" * 1000, b"\xff\xfe", b'{"commit": NaN}', b"null", b'"x"', b"{}"])
def test_a_pointer_of_any_content(store, tmp_path, data):
    files, root = fsspec.core.url_to_fs(store)
    files.pipe_file(f"{root}/{POINTER}", data)
    with pytest.raises(DatasetError, match=r"current\.json"):
        fetch_dataset(store, tmp_path / "out")


@pytest.mark.attack(
    "a folder that was fetched before, and was sent by somebody, holds a link to a folder outside",
    expected="fetching into it writes nothing there",
)
def test_a_link_in_the_folder_that_is_brought_up_to_date(store, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    fetch_dataset(store, tmp_path / "out")
    for path in sorted((tmp_path / "out" / "data").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (tmp_path / "out" / "data").rmdir()
    (tmp_path / "out" / "data").symlink_to(outside)
    with pytest.raises(DatasetError, match="leaves the dataset's folder"):
        fetch_dataset(store, tmp_path / "out")
    assert list(outside.rglob("*")) == []
