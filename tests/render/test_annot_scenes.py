"""Annotations of worlds that differ: scenes whose slots change shape, fields of single frames, other renderers."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from support.scenes import clutter, placed, table_twin
from twinloop.core.errors import InputError
from twinloop.dataset.annotations import build_document
from twinloop.dataset.media.png_coding import decode_depth, decode_png
from twinloop.render import SceneStates, open_renderer, probe_renderer
from twinloop.render.annotate import (
    AnnotationSettings,
    InstanceTable,
    annotate_episode,
    depth_image,
    draw_annotations,
    flow_image,
    instance_image,
    normals_image,
)

needs_gl = pytest.mark.skipif(not probe_renderer("gl").available, reason="the gl renderer does not work here")


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """A table with four, and one with two things on it, of unlike shapes, in one call."""
    twin = table_twin(tmp_path_factory.mktemp("scene"), clutter(4), objects=["thing"])
    shapes = {f"scene/stuff_{i}/shape": [i + 0.5, 6.5 - i] for i in range(4)}
    params, initial = placed(twin, {"scene/stuff/count": [4.5, 2.5], **shapes}, nworld=2)
    fields = twin.fields(params, visual=True).arrays
    return twin, params, SceneStates(qpos=initial.qpos), fields


@pytest.fixture(scope="module")
def told(worlds):
    twin, _, states, fields = worlds
    down, turned = np.array([np.cos(0.31), -np.sin(0.31), 0.0, 0.0]), np.empty(4)  # 0.62 rad about its own x
    mujoco.mju_mulQuat(turned, twin.model.cam_quat[0], down)
    fields = {**fields, "cam_pos": np.tile([0.7, 0.0, 0.5], (2, 1, 1)), "cam_quat": np.tile(turned, (2, 1, 1))}
    with open_renderer("gl", twin.model, height=60, width=80, cameras=["eye"]) as renderer:
        return annotate_episode(renderer, twin, states, fields, number=0, settings=AnnotationSettings()), fields


def rows(tables, name, frame):
    return [row for row in tables[f"annotations/{name}"].to_pylist() if row["frame_index"] == frame]


@needs_gl
def test_things_are_named_alike_in_worlds_that_hold_others(worlds, told):
    twin, params, _, _ = worlds
    there = twin.scene.occupied_mask(params)
    for frame in (0, 1):
        found = {row["name"]: row for row in rows(told[0], "objects", frame)}
        stuff = {f"stuff_{i}" for i in range(4) if there[frame, i]}
        assert set(found) == {"thing", "floor", "table", *stuff}
        assert {found[name]["class_name"] for name in stuff} == {"distractor"}
        assert found["thing"]["class_name"] == "object"
        for name in stuff:
            slot = int(name[-1])
            extents = twin.scene.shape_attribute(params, "extents")[frame, slot]
            assert found[name]["box_size"] == pytest.approx(extents, abs=2e-3), name
            assert found[name]["instance"] == twin.model.body(name).id
        ids = decode_png(rows(told[0], "frames", frame)[0]["instance"])
        assert set(np.unique(ids).tolist()) - {0} == {row["instance"] for row in found.values() if row["pixels"]}
        assert sum(found[name]["pixels"] > 0 for name in stuff) >= 1


@needs_gl
def test_a_camera_that_is_drawn_anew_in_every_world_is_told_so(worlds):
    twin, _, states, fields = worlds
    moved = np.stack([twin.model.cam_pos, twin.model.cam_pos + np.array([0.1, 0.0, 0.0])])
    wide = np.stack([twin.model.cam_fovy, twin.model.cam_fovy + 10.0])
    each = {**fields, "cam_pos": moved, "cam_fovy": wide}
    settings = AnnotationSettings(wanted=("depth", "boxes"))
    with open_renderer("gl", twin.model, height=60, width=80, cameras=["eye"]) as renderer:
        both = annotate_episode(renderer, twin, states, each, number=0, settings=settings)
        for frame in (0, 1):
            alone = {name: value[frame] for name, value in each.items()}
            one = annotate_episode(renderer, twin, states.take([frame]), alone, number=0, settings=settings)
            for name, table in one.items():
                again = [{**row, "frame_index": 0} for row in rows(both, name.split("/")[1], frame)]
                assert again == table.to_pylist()
    assert rows(both, "cameras", 0)[0]["fy"] > rows(both, "cameras", 1)[0]["fy"]


@pytest.mark.slow
@needs_gl
@pytest.mark.parametrize("name", ["warp", "mitsuba", "filament"])
def test_other_renderers_tell_the_same(worlds, told, name):
    if not probe_renderer(name).available:
        pytest.skip(f"the renderer {name} does not work here")
    twin, _, states, _ = worlds
    settings = AnnotationSettings()
    with open_renderer(name, twin.model, height=60, width=80, cameras=["eye"]) as renderer:
        other = annotate_episode(renderer, twin, states, told[1], number=0, settings=settings)
    for frame in (0, 1):
        mine, theirs = (rows(tables, "objects", frame) for tables in (told[0], other))
        assert [row["name"] for row in mine] == [row["name"] for row in theirs]
        for one, two in zip(mine, theirs, strict=True):
            assert one["full_box"] == two["full_box"]
            if one["pixels"] > 30:
                assert two["pixels"] == pytest.approx(one["pixels"], rel=0.1, abs=4)
                assert two["visibility"] is None or two["visibility"] == pytest.approx(one["visibility"], abs=0.08)
        images = [rows(tables, "frames", frame)[0] for tables in (told[0], other)]
        ids = [decode_png(image["instance"]) for image in images]
        depth = [decode_depth(decode_png(image["depth"]), settings.depth_unit) for image in images]
        same = (ids[0] == ids[1]) & np.isfinite(depth[0]) & np.isfinite(depth[1])
        assert same.mean() > 0.4
        assert (ids[0] == ids[1]).mean() > 0.97
        assert np.median(np.abs(depth[0][same] - depth[1][same])) < 2e-3


def test_every_table_is_said_in_the_document():
    text = build_document(["objects"], {})
    assert text["tables"]["annotations/objects"]["visibility"]["type"] == "double"
    assert "OpenCV" in text["conventions"]["camera_axes"]


def test_the_table_of_a_twin_is_the_same_again(worlds):
    first, again = (InstanceTable.of(worlds[0]).to_json() for _ in range(2))
    assert first == again


def test_images_for_people_show_what_is_there():
    instance = np.array([[0, 1], [2, 2]], dtype=np.uint16)
    shown = instance_image(instance)
    assert shown[0, 0].tolist() == [0, 0, 0]
    assert shown[1, 0].tolist() == shown[1, 1].tolist() != shown[0, 1].tolist()
    depth = depth_image(np.array([[0.5, 1.0, np.inf]], dtype=np.float32), near=0.5, far=1.0)
    assert depth[0, 0].sum() > depth[0, 1].sum() > depth[0, 2].sum()
    normals = normals_image(np.array([[[0, 0, -1], [1, 0, 0], [0, 0, 0]]], dtype=np.float32))
    assert normals[0, 0].argmax() == 2
    assert normals[0, 1].argmax() == 0
    flow = flow_image(np.array([[[3.0, 0.0], [0.0, 0.0], [np.nan, np.nan]]], dtype=np.float32))
    assert flow[0, 0].tolist() == [255, 0, 0]
    assert flow[0, 1].tolist() == [255, 255, 255]
    assert flow[0, 2].max() < 40


@needs_gl
def test_a_image_with_its_annotations(tmp_path):
    from support.annot_dataset import write
    from twinloop.dataset.lerobot.reader import DatasetReader

    path, _ = write(tmp_path / "d")
    front = DatasetReader(path).annotations(0, "front")
    grey = np.full((48, 64, 3), 128, dtype=np.uint8)
    shown = draw_annotations(grey, front, 0, scale=4)
    assert shown.shape == (192, 256, 3)
    cube = front.instance[0] == 2
    rows_, columns = np.nonzero(cube)
    middle = shown[int(4 * rows_.mean()) + 2, int(4 * columns.mean()) + 2]
    assert middle.tolist() != [128, 128, 128]
    plain = draw_annotations(grey, front, 0, masks=0.0, boxes=False, names=False, axes=0.0, keypoints=False)
    assert (plain[~cube] == 128).mean() > 0.9  # the remaining pixels are the boxes in space
    with pytest.raises(InputError, match="The image has 24×32 pixels, its annotations have 48×64"):
        draw_annotations(grey[::2, ::2], front, 0)
