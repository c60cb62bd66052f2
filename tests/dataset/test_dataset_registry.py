"""Public data by name: the local folder first, a verified download else, and a clear word when there is neither."""

from __future__ import annotations

import dataclasses
import functools
import http.server
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from support.dataset_logs import real
from twinloop.core.errors import DatasetError, InputError, LogError, MissingDependencyError, UnknownNameError
from twinloop.core.files import sha256_tree
from twinloop.dataset.logs.sets import registry


@pytest.fixture
def server(tmp_path):
    """Start a loopback server in place of the public host; return its folder and address."""
    folder = tmp_path / "public"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


@pytest.fixture
def no_local_data(tmp_path, monkeypatch):
    monkeypatch.delenv(registry.DATA_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def publish(folder: Path, entry: registry.RealSet, source: Path) -> Path:
    base = folder / entry.repository / entry.commit
    for file, (upstream, _) in entry.manifest().items():
        target = base / upstream
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((source / file).read_bytes())
    return base


@pytest.mark.parametrize("entry", registry.SETS.values(), ids=list(registry.SETS))
def test_every_entry_says_where_it_comes_from(entry):
    assert re.fullmatch(r"[0-9a-f]{40}", entry.commit)
    assert entry.address == f"https://raw.githubusercontent.com/{entry.repository}/{entry.commit}/"
    assert entry.licence
    assert entry.citation
    assert entry.note
    manifest = entry.manifest()
    assert manifest
    for file, (upstream, digest) in manifest.items():
        assert not Path(file).is_absolute()
        assert ".." not in Path(file).parts
        assert not upstream.startswith("/")
        assert digest is None or re.fullmatch(r"[0-9a-f]{64}", digest)


def test_the_local_folder_is_used_as_it_is(tmp_path, monkeypatch):
    folder = tmp_path / "so101_pick_place_tape"
    folder.mkdir()
    (folder / "part.txt").write_text("a part of it")
    monkeypatch.setenv(registry.DATA_VARIABLE, str(tmp_path))
    located = registry.fetch("so101_pick_place_tape")
    assert located.path == folder
    assert (located.origin, located.verified) == ("TWINLOOP_DATA", False)
    assert located.hash == sha256_tree(folder)
    assert str(tmp_path) not in str(located.to_json())
    with pytest.raises(UnknownNameError, match="Unknown public data set 'so101_pick'. Nearest existing: so101_pick"):
        registry.fetch("so101_pick")


@pytest.mark.usefixtures("no_local_data")
def test_without_data_or_network_one_line_says_so():
    entry = dataclasses.replace(registry.SETS["so101_pick_place_tape"], host="http://127.0.0.1:9")
    with pytest.raises(MissingDependencyError) as caught:
        registry.download(entry)
    assert isinstance(caught.value, registry.RealDataUnavailableError)
    assert str(caught.value) == (
        "The real data so101_pick_place_tape is not in a folder that TWINLOOP_DATA names, and cannot be downloaded "
        "(ConnectionError). To add it: set TWINLOOP_DATA to a folder that holds so101_pick_place_tape/, or connect to "
        "the internet"
    )


@pytest.mark.usefixtures("no_local_data")
def test_a_file_that_is_not_the_named_one_is_refused(server):
    folder, host = server
    entry = dataclasses.replace(registry.SETS["dfki_double_pendulum"], host=host)
    first = next(iter(entry.manifest().values()))[0]
    target = folder / entry.repository / entry.commit / first
    target.parent.mkdir(parents=True)
    target.write_text("time,pos\n")
    with pytest.raises(DatasetError, match=r"is not the file that the registry names: its SHA-256 differs. It was not"):
        registry.download(entry)


def test_a_download_is_verified_where_hashes_are_known(server, request):
    source = real("dfki_double_pendulum")
    request.getfixturevalue("no_local_data")
    folder, host = server
    entry = dataclasses.replace(registry.SETS["dfki_double_pendulum"], host=host)
    publish(folder, entry, source)
    located = registry.download(entry)
    assert located.verified
    assert located.origin == entry.address
    assert len([file for file in located.path.rglob("*") if file.is_file()]) == len(entry.manifest())


def test_an_unpinned_download_is_remembered_not_verified(server, request):
    source = real("so101_pick_place_tape")
    request.getfixturevalue("no_local_data")
    folder, host = server
    entry = dataclasses.replace(registry.SETS["so101_pick_place_tape"], host=host)
    base = publish(folder, entry, source)
    first = registry.download(entry)
    assert not first.verified
    assert registry.download(entry).hash == first.hash
    (base / "bb_local/train/data-00000-of-00001.arrow").write_bytes(b"another")
    (first.path / "train/data-00000-of-00001.arrow").unlink()
    with pytest.raises(DatasetError, match=r"data-00000-of-00001.arrow changed since the first download"):
        registry.download(entry)


def test_the_so101_set_loads_with_joints_and_units():
    real("so101_pick_place_tape")
    episodes, located = registry.load("so101_pick_place_tape")
    assert episodes[0].joints[-1] == "gripper"
    assert [unit.unit for unit in episodes[0].units.joints] == ["range_m100_100"] * 5 + ["range_0_100"]
    assert episodes[0].robot_type == "so101_follower"
    assert episodes[0].origin == "so101_pick_place_tape (TWINLOOP_DATA)"
    assert re.fullmatch(r"[0-9a-f]{64}", located.hash)


def test_the_g1_set_loads_its_arms_in_radians():
    real("g1_inspire_lerobot")
    episodes, _ = registry.load("g1_inspire_lerobot")
    assert episodes[0].state.shape[1] == 14
    assert np.abs(episodes[0].units.to_si(episodes[0].state)).max() < np.pi


def test_a_folder_of_a_sets_layout_is_read_whatever_lies_there(tmp_path):
    with pytest.raises(InputError, match="nowhere is not a folder. Give one with the layout of the set planar_impacts"):
        registry.load_set("planar_impacts", tmp_path / "nowhere")
    with pytest.raises(LogError, match=r"holds no recordings of this set: it has no square_dice/\*.csv"):
        registry.load_set("planar_impacts", tmp_path)
    with pytest.raises(UnknownNameError, match="Unknown public data set 'planar'. Nearest existing: planar_impacts"):
        registry.load_set("planar", tmp_path)
    (tmp_path / "square_dice").mkdir()
    for number in (9, 501, 70):
        (tmp_path / "square_dice" / f"traj_{number}.csv").write_text(
            "x,z,th,vx,vz,vth\n0,0.1,0,1,0,2\n0.1,0.2,0,1,0,3\n"
        )
    episodes = registry.load_set("planar_impacts", tmp_path)
    assert [episode.index for episode in episodes] == [9, 70, 501]
    assert episodes[1].origin == "planar_impacts: square_dice/traj_70.csv"
    assert registry.load_set("planar_impacts", tmp_path / "square_dice")[0].state.shape == (2, 3)
