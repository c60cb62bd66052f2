"""Annotated episodes in the studio: contact forces as signals, and annotations drawn into images."""

from __future__ import annotations

import io

import numpy as np
import pytest
import yaml
from PIL import Image

from support import annot_dataset
from twinloop.catalog import Workspace
from twinloop.cli.main import main
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.render import probe_renderer

pytest.importorskip("starlette")

from twinloop.studio import episode
from twinloop.studio.data import StudioData

pytestmark = pytest.mark.skipif(not probe_renderer("gl").available, reason="the gl renderer does not work here")


def opened(folder, dataset):
    workspace = Workspace.create(folder)
    workspace.add(dataset)
    (row,) = workspace.query("SELECT episode_id FROM episodes WHERE episode_index = 0").to_pylist()
    return StudioData(workspace, "tester", folder), row["episode_id"]


def test_contact_forces_add_up_by_pair_and_frame(tmp_path):
    dataset, _ = annot_dataset.write(tmp_path / "annotated")
    data, name = opened(tmp_path / "cell", dataset)
    signals = {one["feature"]: one for one in episode.read_signals(data, name)["signals"]}
    found = signals["contact forces"]
    assert set(found["units"]) == {"N"}
    rows = DatasetReader(dataset).side_rows("annotations/contacts", 0).to_pylist()
    assert rows
    for pair, values in zip(found["names"], found["values"], strict=True):
        bodies = tuple(pair.split(" – "))
        for frame, value in enumerate(values):
            forces = [r["force"] for r in rows if (r["body1"], r["body2"]) == bodies and r["frame_index"] == frame]
            assert value == pytest.approx(sum(np.linalg.norm(force) for force in forces), rel=1e-6)
    sums = [sum(values) for values in found["values"]]
    assert sums == sorted(sums, reverse=True)
    assert episode.describe_episode(data, name)["annotated"]


@pytest.mark.slow
def test_annotations_are_drawn_into_the_image(tmp_path):
    worlds = {"scene": {"robot": "so101", "task": "pick_and_place"}, "randomization": "default"}
    (tmp_path / "worlds.yaml").write_text(yaml.safe_dump(worlds))
    assert (
        main(["generate", str(tmp_path / "worlds.yaml"), "--episodes", "1", "--output", str(tmp_path / "states")]) == 0
    )
    words = ["--camera", "front", "--size", "128x96", "--annotations", "all", "--output", str(tmp_path / "images")]
    assert main(["render", str(tmp_path / "states"), *words]) == 0
    data, name = opened(tmp_path / "cell", tmp_path / "images")
    plain, drawn = (
        np.asarray(Image.open(io.BytesIO(episode.read_frame(data, name, "front", 40, width=640, annotated=annotated))))
        for annotated in (False, True)
    )
    changed = np.abs(plain.astype(int) - drawn).max(axis=2) > 40
    assert 0.02 < changed.mean() < 0.9  # the objects, and not the whole image
