"""The writer: datasets read back whole or not at all, with the same bytes after any number of interruptions."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from support.dataset_writer import CAMERAS, KEPT, SPEC, SPEC_VIDEO, UNITS, commit, images, planted, write_all
from twinloop.core.errors import DatasetError, DatasetLockedError, InputError, UnitsError
from twinloop.core.files import sha256_tree
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.tables import content_hash
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.media.video import encode_block
from twinloop.dataset.spec import CameraSpec


def siblings(path: Path) -> list[str]:
    return sorted(item.name for item in path.parent.iterdir() if item.name.startswith(f".{path.name}"))


def test_states_and_commands_come_back_exactly_and_numbers_are_kept(tmp_path):
    reader = DatasetReader(write_all(tmp_path / "set"))
    kept = [number for numbers in KEPT.values() for number in numbers]
    assert reader.numbers.tolist() == kept
    for index, number in enumerate(kept):
        episode = planted(number)
        np.testing.assert_array_equal(reader.states(index), episode.states)
        np.testing.assert_array_equal(reader.commands(index), episode.commands)
        np.testing.assert_array_equal(reader.array(index, "action"), episode.action.astype(np.float32))
        np.testing.assert_array_equal(reader.array(index, "observation.state"), episode.observation.astype(np.float32))
        np.testing.assert_array_equal(reader.array(index, "next.success").astype(bool), episode.next_success)
        expected = np.float32(np.arange(len(episode)) / SPEC.fps)
        np.testing.assert_array_equal(reader.array(index, "timestamp"), expected)
        wanted = dataclasses.replace(episode.provenance, content_hash=content_hash(episode))
        assert reader.provenance(index) == wanted
        row = reader.row(index)
        assert row["provenance/rand.object.cube.mass"] == episode.provenance.params["object/cube/mass"]
        assert row["provenance/episode_id"] == content_hash(episode)
        assert row["tasks"] == [episode.provenance.task]


def test_spec_units_and_task_list_come_back(tmp_path):
    reader = DatasetReader(write_all(tmp_path / "set", SPEC_VIDEO))
    assert reader.spec == SPEC_VIDEO
    assert reader.units == UNITS
    assert reader.feature_names("action") == ["shoulder_pan.pos", "elbow_flex.pos", "gripper.pos"]
    tasks = pq.read_table(tmp_path / "set" / layout.TASKS).to_pydict()
    assert tasks == {"task_index": [0, 1], "__index_level_0__": ["put the cube back", "put the cube into the zone"]}
    modality = json.loads((tmp_path / "set" / layout.MODALITY).read_text())
    assert modality["action"]["gripper"] == {"start": 2, "end": 3}
    assert modality["video"]["wrist"] == {"original_key": "observation.images.wrist"}


def test_tasks_parquet_is_a_pandas_frame_indexed_by_the_task(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(write_all(tmp_path / "set") / layout.TASKS)
    assert frame.index.tolist() == ["put the cube back", "put the cube into the zone"]
    assert frame["task_index"].tolist() == [0, 1]
    assert list(frame.columns) == ["task_index"]


def test_stats_equal_those_of_all_frames_together(tmp_path):
    reader = DatasetReader(write_all(tmp_path / "set"))
    stats = json.loads((tmp_path / "set" / layout.STATS).read_text())
    for feature in ("action", "observation.state", "timestamp", "index"):
        parts = [reader.array(i, feature) for i in range(len(reader))]
        values = np.concatenate(parts).reshape(sum(map(len, parts)), -1)
        expected = {
            "min": values.min(0),
            "max": values.max(0),
            "mean": values.mean(0),
            "std": values.std(0),
            **{f"q{q:02d}": np.quantile(values, q / 100, axis=0) for q in (1, 10, 50, 90, 99)},
        }
        for name, value in expected.items():
            np.testing.assert_allclose(stats[feature][name], value, rtol=1e-9, atol=1e-9, err_msg=f"{feature} {name}")
        assert stats[feature]["count"] == [len(values)]


@pytest.mark.parametrize(
    ("spec", "stop_after"), [(SPEC, 0), (SPEC, 1), (SPEC, 2), (SPEC, 3), (SPEC_VIDEO, 1), (SPEC_VIDEO, 3)]
)
def test_resume_gives_the_bytes_of_an_unbroken_run(tmp_path, spec, stop_after):
    whole = write_all(tmp_path / "a" / "set", spec)
    broken = tmp_path / "b" / "set"
    with DatasetWriter.open(broken, spec) as writer:
        for block in range(stop_after):
            commit(writer, block)
    write_all(broken, spec, resume=True)
    assert sha256_tree(broken) == sha256_tree(whole)
    assert siblings(broken) == []


def test_committed_data_files_are_never_written_again(tmp_path):
    path = tmp_path / "set"
    with DatasetWriter.open(path, SPEC_VIDEO) as writer:
        commit(writer, 0)
        before = {file: file.stat().st_ino for file in path.rglob("file-000.*")}
        for block in (1, 2, 3):
            commit(writer, block)
        writer.finish()
    assert len(before) == 6
    assert {file: file.stat().st_ino for file in before} == before


KILLED_IN_ENCODING = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from support.dataset_writer import KEPT, SPEC_VIDEO, commit, images, planted
from twinloop.dataset.lerobot.writer import DatasetWriter

def frames(episodes):
    yield images(episodes[0].number, len(episodes[0]))
    os.kill(os.getpid(), signal.SIGKILL)

writer = DatasetWriter.open(Path(sys.argv[2]), SPEC_VIDEO)
commit(writer, 0)
commit(writer, 1)
episodes = [planted(number) for number in KEPT[2]]
writer.commit_block(2, episodes, frames=frames(episodes))
"""

LOOPS_FOREVER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from support.dataset_writer import SPEC, planted
from twinloop.dataset.lerobot.writer import DatasetWriter

writer = DatasetWriter.open(Path(sys.argv[2]), SPEC, resume=True)
while True:
    k = writer.next_block
    writer.commit_block(k, [planted(4 * k), planted(4 * k + 1)])
    print(k, flush=True)
"""


def test_kill_9_in_the_middle_of_a_commit_leaves_the_last_one(tmp_path):
    path = tmp_path / "set"
    command = [sys.executable, "-c", KILLED_IN_ENCODING, str(Path(__file__).parents[1]), str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert ".set.next" in siblings(path)
    assert len(DatasetReader(path)) == 3
    write_all(path, SPEC_VIDEO, resume=True)
    assert siblings(path) == []
    assert sha256_tree(path) == sha256_tree(write_all(tmp_path / "unbroken" / "set", SPEC_VIDEO))


def test_kill_9_at_any_time_leaves_a_readable_dataset(tmp_path):
    path, done = tmp_path / "set", 0
    for delay in (0.005, 0.04, 0.1):
        command = [sys.executable, "-c", LOOPS_FOREVER, str(Path(__file__).parents[1]), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            committed = 2 * (int(process.stdout.readline()) + 1)
            time.sleep(delay)
            process.kill()
        reader = DatasetReader(path)
        assert len(reader) >= committed > done
        done = len(reader)
        for index in range(done):
            episode = planted(int(reader.numbers[index]))
            np.testing.assert_array_equal(reader.states(index), episode.states)
            assert reader.frames_table(index).num_rows == len(episode)


def test_a_reader_never_sees_half_a_commit(tmp_path):
    path = tmp_path / "set"
    errors: list[Exception] = []
    ended = threading.Event()
    seen = set()

    def read() -> None:
        while not ended.is_set():
            try:
                reader = DatasetReader(path)
                last = len(reader) - 1
                assert reader.frames_table(last).num_rows == reader.lengths[last]
                seen.add(len(reader))
            except Exception as error:  # noqa: BLE001 - carried to the test's own thread
                errors.append(error)
                return

    with DatasetWriter.open(path, SPEC) as writer:
        writer.commit_block(0, [planted(0), planted(2)])
        thread = threading.Thread(target=read)
        thread.start()
        for block in range(1, 12):
            writer.commit_block(block, [planted(4 * block), planted(4 * block + 1)])
        ended.set()
        thread.join()
    assert not errors, errors[0]
    assert len(seen) > 1


def test_a_second_writer_is_refused_and_told_who_holds_the_folder(tmp_path):
    path = tmp_path / "set"
    with DatasetWriter.open(path, SPEC) as writer:
        commit(writer, 0)
        with pytest.raises(DatasetLockedError, match=rf"process {os.getpid()}\) has .*set open. Wait for it to end"):
            DatasetWriter.open(path, SPEC, resume=True)
        commit(writer, 1)
    with DatasetWriter.open(path, SPEC, resume=True) as writer:
        assert writer.committed_blocks == {0, 1}
        assert writer.total_outcome == {"attempted": 8, "success": 3}


FULL_DISK = """
import sys, resource
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from support.dataset_writer import SPEC, commit
from twinloop.core.errors import DatasetError
from twinloop.dataset.lerobot.writer import DatasetWriter

with DatasetWriter.open(Path(sys.argv[2]), SPEC) as writer:
    commit(writer, 0)
    commit(writer, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY))
    try:
        commit(writer, 2)
    except DatasetError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert writer.committed_blocks == {0, 1}
    for block in (2, 3):
        commit(writer, block)
    writer.finish({"yield": 0.5625})
"""


def test_a_file_size_limit_is_one_clear_message_and_loses_nothing(tmp_path):
    path = tmp_path / "set"
    command = [sys.executable, "-c", FULL_DISK, str(Path(__file__).parents[1]), str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"No space left on the disk (or a file size limit reached) while writing {path}.")
    assert "Free some space, then continue the run that made it, or run it again into another folder." in done.stdout
    assert sha256_tree(path) == sha256_tree(write_all(tmp_path / "unbroken" / "set"))


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_one_clear_message_and_loses_nothing(small_disk):
    path = small_disk / "set"
    with DatasetWriter.open(path, SPEC) as writer:
        with pytest.raises(DatasetError, match="No space left on the disk"):
            for block in range(200):
                writer.commit_block(block, [planted(4 * block + i) for i in range(4)])
        done = writer.next_block
        assert done > 0
        reader = DatasetReader(path)
        assert len(reader) == 4 * done
        np.testing.assert_array_equal(reader.states(4 * done - 1), planted(4 * done - 1).states)


FULL_WHILE_ENCODING = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from support.dataset_writer import encode_under_a_limit
from twinloop.core.errors import DatasetError

with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
    try:
        pool.submit(encode_under_a_limit, Path(sys.argv[2])).result()
    except DatasetError as error:
        print(error)
"""


def test_a_full_disk_while_encoding_in_another_process_is_one_clear_message(tmp_path):
    command = [sys.executable, "-c", FULL_WHILE_ENCODING, str(Path(__file__).parents[1]), str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.match(r"No space left on the disk .* while writing \S+/(front|wrist).mp4. Earlier", done.stdout)


def test_a_full_disk_while_encoding_loses_nothing(small_disk):
    path = small_disk / "set"
    with DatasetWriter.open(path, SPEC_VIDEO) as writer:
        with pytest.raises(DatasetError, match=rf"^No space left on the disk .* while writing {path}\. Earlier"):
            for block in range(200):
                episodes = [planted(4 * block)]
                writer.commit_block(block, episodes, frames=[images(0, len(episodes[0]))])
        done = writer.next_block
    assert len(DatasetReader(path)) == done


@pytest.mark.parametrize("place", ["/proc/foo/bar", "/proc/x", "{tmp}/afile/x", "{tmp}/" + 300 * "n"])
def test_a_folder_that_cannot_be_is_refused_by_name(tmp_path, place):
    (tmp_path / "afile").write_text("not a folder")
    path = place.format(tmp=tmp_path)
    with pytest.raises(DatasetError, match=rf"^{path} cannot be written \(.*\)\. Choose another output folder, or"):
        DatasetWriter.open(path, SPEC)


def test_an_interrupted_writer_goes_on_from_what_is_on_the_disk(tmp_path):
    def interrupted():
        yield images(8, 43)
        raise KeyboardInterrupt

    path = tmp_path / "set"
    with DatasetWriter.open(path, SPEC_VIDEO) as writer:
        commit(writer, 0)
        commit(writer, 1)
        with pytest.raises(KeyboardInterrupt):
            writer.commit_block(2, [planted(8), planted(10)], frames=interrupted())
        for block in (2, 3):
            commit(writer, block)
        writer.finish({"yield": 0.5625})
    assert sha256_tree(path) == sha256_tree(write_all(tmp_path / "unbroken" / "set", SPEC_VIDEO))
    with pytest.raises(DatasetError, match="is closed. Open it again with resume"):
        writer.finish()


def test_an_existing_dataset_is_neither_overwritten_nor_mixed(tmp_path):
    path = write_all(tmp_path / "set")
    before = sha256_tree(path)
    advice = (
        r"already holds a dataset of 9 episodes. Choose another folder, or continue the run that made it with --resume"
    )
    with pytest.raises(DatasetError, match=advice):
        DatasetWriter.open(path, SPEC)
    other = dataclasses.replace(SPEC, config={"seed": 8}, fps=50)
    with pytest.raises(DatasetError, match=r"started with another config, fps, so it cannot be resumed"):
        DatasetWriter.open(path, other, resume=True)
    assert sha256_tree(path) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(DatasetError, match="has files but is not a twinloop dataset"):
        DatasetWriter.open(tmp_path / "mine", SPEC, resume=True)


def test_blocks_and_episodes_that_do_not_fit_are_refused(tmp_path):
    with DatasetWriter.open(tmp_path / "set", SPEC) as writer:
        with pytest.raises(DatasetError, match=r"Block 1 cannot be committed .* block 0 is next"):
            commit(writer, 1)
        with pytest.raises(DatasetError, match=r"Block 0 covers the episode numbers 0 to 3.* given \[2, 5\]"):
            writer.commit_block(0, [planted(2), planted(5)])
        with pytest.raises(DatasetError, match=r"each once and in order; it was given \[2, 1\]"):
            writer.commit_block(0, [planted(2), planted(1)])
        bad = planted(0).action.copy()
        bad[5, 1] = np.nan
        with pytest.raises(DatasetError, match="Episode number 0: action is not finite at frame 5"):
            writer.commit_block(0, [dataclasses.replace(planted(0), action=bad)])
        short = dataclasses.replace(planted(0), states=planted(0).states[:-1])
        with pytest.raises(DatasetError, match=r"35 states and 35 commands for 35 frames; T frames have"):
            writer.commit_block(0, [short])
        strange = dataclasses.replace(planted(1).provenance, params={"object/ball/mass": 1.0})
        with pytest.raises(DatasetError, match=r"has the parameters object/ball/mass, which"):
            writer.commit_block(0, [planted(0), dataclasses.replace(planted(1), provenance=strange)])
    assert not (tmp_path / "set").exists()


def test_a_spec_that_cannot_be_written_is_refused():
    with pytest.raises(UnitsError, match="The unit map covers shoulder_pan, elbow_flex, gripper, the dataset's joints"):
        dataclasses.replace(SPEC, joints=("a", "b", "c"))
    with pytest.raises(InputError, match="needs even sides"):
        CameraSpec(name="front", height=33, width=64)
    with pytest.raises(InputError, match="no '/' in feature names"):
        CameraSpec(name="a/b", height=32, width=64)


def test_video_frames_come_back_in_place_and_close(tmp_path):
    reader = DatasetReader(write_all(tmp_path / "set", SPEC_VIDEO))
    for index, number in enumerate(reader.numbers):
        for name, truth in images(int(number), int(reader.lengths[index])).items():
            found = reader.images(index, name)
            assert found.shape == truth.shape
            error = ((found.astype(float) - truth) ** 2).mean(axis=(1, 2, 3))
            psnr = 10 * np.log10(255**2 / error)
            # Saturated synthetic colours at 48×64 with chroma subsampling; a frame out of place is below 20 dB.
            assert psnr.min() > 24, (index, name, psnr.min())
    some = reader.images(4, "front", [3, 4, 30])
    np.testing.assert_array_equal(some, reader.images(4, "front")[[3, 4, 30]])


def test_an_encoder_failure_reaches_the_caller(tmp_path):
    truth = images(0, 10)
    with DatasetWriter.open(tmp_path / "set", SPEC_VIDEO) as writer:
        wrong = [{**truth, "wrist": truth["wrist"].astype(float)}]
        with pytest.raises(InputError, match=r"Camera wrist of episode 0 of the block has float64 frames"):
            writer.commit_block(0, [planted(0)], frames=wrong)
        with pytest.raises(DatasetError, match=r"Camera front of block 0 has \[10\] frames; the episodes have \[35\]"):
            writer.commit_block(0, [planted(0)], frames=[truth])
        with pytest.raises(InputError, match="has the cameras front, wrist; block 0 has no images"):
            writer.commit_block(0, [planted(0)])
    assert not (tmp_path / "set").exists()
    paths = {"front": tmp_path / "front.mp4", "wrist": tmp_path / "folder.mp4"}
    paths["wrist"].mkdir()  # the second encoder cannot open its file
    with pytest.raises(DatasetError, match=r"folder.mp4 cannot be written \(Is a directory\). Choose another output"):
        encode_block([truth] * 6, CAMERAS, paths, fps=30)


def test_blocks_encoded_elsewhere_give_the_same_bytes(tmp_path):
    whole = write_all(tmp_path / "a" / "set", SPEC_VIDEO)
    with DatasetWriter.open(tmp_path / "b" / "set", SPEC_VIDEO) as writer:
        for block, numbers in KEPT.items():
            episodes = [planted(number) for number in numbers]
            paths = {camera.name: tmp_path / f"{block}-{camera.name}.mp4" for camera in CAMERAS}
            frames = (images(e.number, len(e)) for e in episodes)
            videos = encode_block(frames, CAMERAS, paths, fps=30) if episodes else None
            writer.commit_block(block, episodes, videos=videos, outcome={"attempted": 4, "success": len(episodes)})
        writer.finish({"yield": 0.5625})
    assert sha256_tree(tmp_path / "b" / "set") == sha256_tree(whole)


def test_the_bytes_do_not_depend_on_the_clock_or_the_folder(tmp_path):
    first = write_all(tmp_path / "a" / "set", SPEC_VIDEO)
    time.sleep(1.1)  # a second in a header would differ now
    second = write_all(tmp_path / "elsewhere" / "deep" / "other", SPEC_VIDEO)
    assert sha256_tree(first) == sha256_tree(second)
    year = time.strftime("%Y-")
    text = "".join(f.read_text() for f in first.rglob("*") if f.suffix in (".json", ".md", ".jsonl"))
    assert year not in text


def test_content_hash_tells_episodes_apart():
    episode = planted(3)
    moved = dataclasses.replace(episode, states=episode.states + np.eye(39, 17) * 1e-12)
    renamed = dataclasses.replace(episode, provenance=dataclasses.replace(episode.provenance, task="other"))
    assert len({content_hash(episode), content_hash(moved), content_hash(renamed)}) == 3
    assert content_hash(planted(3)) == content_hash(episode)
    assert re.fullmatch("[0-9a-f]{64}", content_hash(episode))
