"""LeRobot 0.4.4 itself loads what we write: numbers exact, images as PyAV decodes them, statistics, two steps of ACT.

``TWINLOOP_LEROBOT_PYTHON`` names the interpreter of an environment that ``scripts/lerobot_env.sh`` made.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from support.dataset_writer import JOINTS, SPEC_VIDEO, UNITS, write_all
from twinloop.core.files import sha256_tree
from twinloop.core.records import Episode
from twinloop.dataset.edit.operations import delete, merge, reencode
from twinloop.dataset.export.formats import exporter
from twinloop.dataset.export.protocol import ExportOptions
from twinloop.dataset.export.verification import psnr
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.validation import validate
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.dataset.media.video_copy import Encoding

PYTHON = os.environ.get("TWINLOOP_LEROBOT_PYTHON", "")
SIDE = Path(__file__).parents[1] / "support" / "lerobot_side.py"
# Both decode the same packets; torchcodec (ffmpeg's swscale, exact) and PyAV turn YUV into RGB with other rounding.
SAME_PACKETS_DB = 38.0
# LeRobot's quantiles are read off a histogram of 5000 bins over the range (`compute_stats.py`).
BIN = 1 / 5000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(PYTHON).is_file(), reason="TWINLOOP_LEROBOT_PYTHON names no interpreter with LeRobot"),
]


def ask(*words: object) -> dict:
    """What LeRobot's side answers."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [PYTHON, str(SIDE), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """Two cameras, nine episodes in three files."""
    return write_all(tmp_path_factory.mktemp("generated") / "set", SPEC_VIDEO)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    rng = np.random.default_rng(1)
    logs = []
    for index in range(3):
        state = np.cumsum(rng.normal(size=(60, 3)), axis=0)
        time = np.arange(60) / 30
        logs.append(
            Episode(index=index, time=time, action=state + 1, state=state, units=UNITS, task="t", source="real")
        )
    return write_log_dataset(logs, tmp_path_factory.mktemp("imported") / "set", name="log")


@pytest.fixture(scope="module")
def folders(generated, imported, tmp_path_factory):
    """Every way by which a folder of ours comes to LeRobot, and the folder that it must equal."""
    root = tmp_path_factory.mktemp("folders")
    exporter("lerobot").export(generated, root / "exported")
    exporter("lerobot").export(generated, root / "some", ExportOptions(episodes=(7, 2, 3)))
    exporter("lerobot-v2").export(generated, root / "legacy")
    exporter("lerobot").export(root / "legacy", root / "back")
    exporter("lerobot-v2").export(generated, root / "converted")
    ask("convert", root, "converted")  # by LeRobot's own v2.1 to v3.0
    exporter("lerobot").export(generated, root / "rest", ExportOptions(episodes=(0, 1, 4, 5, 6, 8)))
    merge([root / "some", root / "rest"], root / "merged")
    delete(generated, root / "left", "1,4")
    reencode(generated, root / "av1", Encoding(codec="av1"))
    return {
        "generated": (generated, generated),
        "imported": (imported, imported),
        "exported": (root / "exported", generated),
        "some": (root / "some", root / "some"),
        "back": (root / "back", generated),
        "converted": (root / "converted", generated),
        "merged": (root / "merged", root / "merged"),
        "left": (root / "left", root / "left"),
        "av1": (root / "av1", root / "av1"),
    }


NAMES = ("generated", "imported", "exported", "some", "back", "converted", "merged", "left", "av1")


def picked(folder: Path) -> np.ndarray:
    """Ten frames of a dataset at random."""
    total = int(DatasetReader(folder).lengths.sum())
    return np.sort(np.random.default_rng(0).choice(total, size=10, replace=False))


@pytest.fixture(scope="module")
def answers(folders, tmp_path_factory):
    """LeRobot's results for every folder, from one process; the folders stay unchanged."""
    root = tmp_path_factory.mktemp("answers")
    before = {name: sha256_tree(folder) for name, (folder, _) in folders.items()}
    jobs = [
        {
            "name": name,
            "folder": str(folder),
            "target": str(root / f"{name}.npz"),
            "frames": picked(wanted).tolist(),
        }
        for name, (folder, wanted) in folders.items()
    ]
    (root / "jobs.json").write_text(json.dumps(jobs))
    said = ask("load", root / "jobs.json")
    assert {name: sha256_tree(folder) for name, (folder, _) in folders.items()} == before
    return {name: (said[name], np.load(root / f"{name}.npz")) for name in folders}


@pytest.mark.parametrize("name", NAMES)
def test_lerobot_loads_it_and_ten_frames_at_random_equal_the_source(folders, answers, name):
    reader, (answer, loaded) = DatasetReader(folders[name][1]), answers[name]
    starts = np.concatenate([[0], np.cumsum(reader.lengths)])
    assert answer["episodes"] == len(reader)
    assert answer["frames"] == starts[-1]
    assert answer["batch"]["action"] == [4, len(JOINTS)]
    worst = math.inf
    for pick in picked(folders[name][1]):
        episode = int(np.searchsorted(starts, pick, side="right") - 1)
        frame = int(pick - starts[episode])
        for key in ("action", "observation.state", "timestamp"):
            expected = reader.array(episode, key)[frame].astype(np.float32)
            np.testing.assert_array_equal(loaded[f"{pick}|{key}"].reshape(-1), expected.reshape(-1))
        assert loaded[f"{pick}|episode_index"] == episode
        for camera in reader.cameras:
            theirs = loaded[f"{pick}|observation.images.{camera}"]
            assert theirs.dtype == np.float32
            image = np.round(theirs.transpose(1, 2, 0) * 255).astype(np.uint8)
            worst = min(worst, psnr(reader.images(episode, camera, [frame])[0], image))
    print(f"{name}: 10 frames, numbers equal, pictures {'equal' if math.isinf(worst) else f'{worst:.1f} dB'}")  # noqa: T201 - the figure of docs/guides/datasets.md
    assert worst > SAME_PACKETS_DB


def test_statistics_are_what_lerobot_computes_itself(folders, answers):
    """Moments to float32's precision; quantiles within a bin of its histogram."""
    folder, _ = folders["exported"]
    theirs = answers["exported"][0]["stats"]
    import pyarrow.parquet as pq

    row = pq.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").slice(0, 1).to_pylist()[0]
    worst = 0.0
    for key in ("action", "observation.state", "timestamp", "index"):
        low, high = (np.array(theirs[key][name]) for name in ("min", "max"))
        for name, value in theirs[key].items():
            ours = np.array(row[f"stats/{key}/{name}"], dtype=float)
            if name.startswith("q"):
                # Between two order statistics LeRobot reads its histogram, we interpolate: a gap of values, and a bin.
                assert (np.abs(ours - value) <= 2 * (high - low) * BIN + _gap(folder, key)).all(), (key, name)
                worst = max(worst, float((np.abs(ours - value) / np.maximum(high - low, 1e-9)).max()))
            else:
                np.testing.assert_allclose(ours, value, rtol=1e-5, atol=1e-6, err_msg=f"{key} {name}")
    print(f"quantiles of one episode differ by at most {worst:.4f} of the range")  # noqa: T201 - the figure of docs/guides/datasets.md


def _gap(folder: Path, key: str) -> np.ndarray:
    values = DatasetReader(folder).array(0, key).reshape(DatasetReader(folder).lengths[0], -1)
    return np.diff(np.sort(values, axis=0), axis=0).max(axis=0)


def test_act_trains_two_steps(generated):
    losses = ask("train", generated)["losses"]
    assert len(losses) == 2
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("name", NAMES)
def test_both_validators_accept_it(folders, name):
    for verdict in validate(folders[name][0]):
        assert verdict.accepted, verdict
