"""Annotations in a dataset: codings keep the stated precision, and the true values read back with an episode."""

from __future__ import annotations

import json

import duckdb
import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from support.annot_dataset import write
from twinloop.core.errors import DatasetError, UnknownNameError
from twinloop.core.files import sha256_tree
from twinloop.dataset import annotations
from twinloop.dataset.annotations import poses, vectors
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.media.png_coding import (
    FLOW_UNIT,
    decode_depth,
    decode_flow,
    decode_normals,
    decode_png,
    encode_depth,
    encode_flow,
    encode_normals,
    encode_png,
)
from twinloop.render import probe_renderer
from twinloop.render.annotate import AnnotationSettings

SHAPE = (7, 5)
PIXELS = st.sampled_from([np.uint8, np.uint16]).flatmap(
    lambda kind: hnp.arrays(kind, st.sampled_from([SHAPE, (*SHAPE, 3)]))
)


@given(PIXELS)
def test_png_returns_every_bit(values):
    back = decode_png(encode_png(values))
    assert back.dtype == values.dtype
    assert np.array_equal(back, values)
    assert encode_png(values) == encode_png(values.copy())


def test_other_programs_read_the_images():
    cv2 = pytest.importorskip("cv2")
    rng = np.random.default_rng(0)
    for shape, kind in ((SHAPE, np.uint16), (SHAPE, np.uint8), ((*SHAPE, 3), np.uint16), ((*SHAPE, 3), np.uint8)):
        values = rng.integers(0, np.iinfo(kind).max, shape, dtype=kind, endpoint=True)
        read = cv2.imdecode(np.frombuffer(encode_png(values), np.uint8), cv2.IMREAD_UNCHANGED)
        assert np.array_equal(read if read.ndim == 2 else read[..., ::-1], values)


@given(hnp.arrays(np.float64, SHAPE, elements=st.floats(0.0, 6.5)), st.sampled_from([1e-4, 1e-3]))
def test_depth_errs_by_half_a_count(depth, unit):
    back = decode_depth(encode_depth(depth, unit), unit)
    assert np.abs(back - np.maximum(depth, unit)).max() <= 0.5 * unit + 1e-6


def test_what_has_no_depth_has_none():
    assert np.isinf(decode_depth(encode_depth([[np.inf, 7.0]], 1e-4), 1e-4)).all()
    assert encode_depth([np.inf, 7.0, 0.0], 1e-4).tolist() == [0, 65535, 1]


@given(st.integers(0, 2**31))
def test_normals_err_by_less_than_half_a_degree(seed):
    vector = np.random.default_rng(seed).normal(size=(*SHAPE, 3))
    normals = vector / np.linalg.norm(vector, axis=-1, keepdims=True)
    normals[0] = 0.0
    back = decode_normals(encode_normals(normals))
    assert (back[0] == 0.0).all()
    assert np.degrees(np.arccos(np.clip((back * normals).sum(axis=-1)[1:], -1, 1))).max() < 0.5


@given(hnp.arrays(np.float64, (*SHAPE, 2), elements=st.floats(-511.0, 511.0)), hnp.arrays(np.bool_, SHAPE))
def test_flow_errs_by_half_a_count(flow, seen):
    flow[0, 0], flow[0, 1] = np.nan, 900.0
    back, told = decode_flow(encode_flow(flow, seen))
    assert np.isnan(back[0, :2]).all()
    assert not told[0, :2].any()
    assert np.abs(back - flow)[1:].max() <= 0.5 * FLOW_UNIT + 1e-4
    assert np.array_equal(told[1:], seen[1:])


def test_what_is_no_image_is_refused():
    with pytest.raises(DatasetError, match="4 bytes is not a PNG"):
        decode_png(b"none")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two short annotated episodes of drawn worlds, committed; return the folder and the episodes."""
    if not probe_renderer("gl").available:
        pytest.skip("the gl renderer does not work here")
    return write(tmp_path_factory.mktemp("annotated") / "d")


def test_an_episodes_truth_comes_back(written):
    path, parts = written
    reader = DatasetReader(path)
    assert set(reader.side_tables) == {f"annotations/{name}" for name in annotations.TABLES}
    for index in (0, 1):
        front = reader.annotations(index, "front")
        assert front.depth.shape == front.instance.shape == front.semantic.shape == (4, 48, 64)
        assert front.normals.shape == (4, 48, 64, 3)
        flow, seen = front.flow
        assert (flow.shape, seen.shape) == ((3, 48, 64, 2), (3, 48, 64))
        assert {front.names[int(i)] for i in np.unique(front.instance) if i} >= {"cube", "table", "floor", "base"}
        assert front.class_of[int(front.instance[0][front.semantic[0] == 2][0])] == "object"
        assert front.classes[2] == "object"
        for name in ("contacts", "joints"):
            table = parts[f"annotations/{name}"][index]
            assert front.rows(name).drop_columns(["episode_index"]).equals(table)


def test_what_is_stored_reprojects(written):
    """Centres of visible objects, projected with the stored camera, match the stored images."""
    front = DatasetReader(written[0]).annotations(0, "front")
    cube = front.objects.filter(pc.equal(front.objects["name"], "cube"))
    for frame, (pinhole, pose, box) in enumerate(
        zip(front.intrinsics, front.world_from_camera, vectors(cube["full_box"]), strict=True)
    ):
        centre = np.linalg.inv(pose) @ poses(cube, "world")[frame]
        column, row = pinhole.project(centre[:3, 3])
        assert front.names[int(front.instance[frame, int(row), int(column)])] == "cube"
        mask = np.argwhere(front.instance[frame] == 2)
        assert np.abs(np.array([*mask.min(axis=0)[::-1], *mask.max(axis=0)[::-1] + 1]) - box).max() < 1.0
        ray = pinhole.unproject(np.array([column, row]), front.depth[frame, int(row), int(column)])
        assert 0.0 < np.linalg.norm(ray - centre[:3, 3]) < 0.03  # the surface is in front of the centre


def test_the_document_says_what_every_column_is(written):
    path, _ = written
    document = json.loads((path / annotations.DOCUMENT).read_text())
    assert document["annotations"] == list(AnnotationSettings().wanted)
    for name in DatasetReader(path).side_tables:
        schema = DatasetReader(path).side_table(name).schema
        assert schema.names[1:] == list(document["tables"][name])
        assert all(column["meaning"] for column in document["tables"][name].values())


def test_rows_are_queried_over_all_episodes(written):
    contacts = DatasetReader(written[0]).side_table("annotations/contacts")
    found = contacts.to_table(filter=pc.field("body2") == "cube", columns=["episode_index", "force"])
    assert set(found["episode_index"].to_pylist()) == {0, 1}
    pattern = f"{written[0]}/twinloop/annotations/contacts/*/*.parquet"
    ((count,),) = duckdb.sql(f"SELECT count(*) FROM '{pattern}' WHERE body2 = 'cube'").fetchall()
    assert count == len(found)


def test_the_same_run_writes_the_same_bytes(written, tmp_path):
    again, _ = write(tmp_path / "again")
    assert sha256_tree(again) == sha256_tree(written[0])


def test_what_is_not_there_is_said(written, tmp_path):
    reader = DatasetReader(written[0])
    with pytest.raises(UnknownNameError, match="camera 'fronts'.*front, wrist|camera 'fronts'.*front"):
        reader.annotations(0, "fronts")
    with pytest.raises(UnknownNameError, match="side table 'annotations/things'"):
        reader.annotations(0, "front").rows("things")
    (tmp_path / "meta").mkdir()
    document = written[0] / annotations.DOCUMENT
    moved = document.rename(tmp_path / "gone.json")
    try:
        with pytest.raises(DatasetError, match="has no annotations. Render the dataset with annotations"):
            reader.annotations(0, "front")
    finally:
        moved.rename(document)
