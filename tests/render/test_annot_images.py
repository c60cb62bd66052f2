"""Images and annotations agree: by reprojection, by rays, by drawing each object alone."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import settings as law
from hypothesis import strategies as st

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.imaging import Intrinsics
from twinloop.dataset.annotations import poses, vectors
from twinloop.dataset.media.png_coding import decode_depth, decode_flow, decode_normals, decode_png
from twinloop.render import SceneStates, open_renderer, probe_renderer
from twinloop.render.annotate import AnnotationSettings, InstanceTable, annotate_episode, annotations_document
from twinloop.render.annotate.boxes import ObjectBlobs
from twinloop.render.scene import PosedScene
from twinloop.twin import load_twin

pytestmark = pytest.mark.skipif(not probe_renderer("gl").available, reason="the gl renderer does not work here")
SIZE, FINE = (120, 160), 4
KINDS = ("box", "ball", "egg", "can", "pill", "rock")
CORNERS = [[-1, -1, -1], [1, -1, -1], [0, 1.2, -1], [0, 0, 1.3]]
WORLD = """<mujoco><visual><map znear="0.01" zfar="50"/></visual><statistic extent="1" center="0 0 0"/>
<asset><mesh name="rock" vertex="{rock}"/></asset>
<worldbody>
  <light pos="0 0 3" dir="0 0 -1"/>
  <geom name="floor" type="plane" size="3 3 0.1" rgba="0.6 0.6 0.6 1"/>
  <geom name="wall" type="box" size="0.02 0.25 0.15" pos="0.25 -0.25 0.15"/>
  <camera name="still" pos="1.2 0 0.8" xyaxes="0 1 0 -0.55 0 0.835" fovy="45"/>
  <body name="cart" pos="0 0.9 0.9"><joint name="cart" type="slide" axis="0 -1 0"/><joint name="turn" axis="0 0 1"/>
    <geom name="cart" type="sphere" size="0.02" mass="1" group="3"/>
    <camera name="moving" pos="0 0 0" xyaxes="-1 0 0 0 -0.7 0.7" fovy="60"/></body>
  <body name="box" pos="0 0 0.1"><freejoint/><geom type="box" size="0.06 0.04 0.05" pos="0.01 0 0.02"/>
    <site name="box_top" pos="0.01 0 0.07"/></body>
  <body name="ball" pos="0.05 -0.3 0.1"><freejoint/><geom type="sphere" size="0.06"/><site name="ball"/></body>
  <body name="egg" pos="0.1 0.3 0.1"><freejoint/><geom type="ellipsoid" size="0.08 0.04 0.05" euler="20 30 0"/></body>
  <body name="can" pos="0.3 0.12 0.1"><freejoint/><geom type="cylinder" size="0.04 0.06" euler="40 10 0"/></body>
  <body name="pill" pos="-0.2 0.1 0.1"><freejoint/><geom type="capsule" size="0.03 0.06" euler="60 0 20"/></body>
  <body name="rock" pos="-0.1 -0.15 0.1"><freejoint/><geom type="mesh" mesh="rock" euler="0 0 30"/></body>
</worldbody></mujoco>"""


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    rock = " ".join(str(0.05 * x) for corner in CORNERS for x in corner)
    (folder / "world.xml").write_text(WORLD.format(rock=rock))
    spec = {
        "name": "world",
        "model": "world.xml",
        "control_hz": 10,
        "substeps": 1,
        "objects": ["box", "ball"],
        "classes": {"egg": "food", "wall": "fixture", "can": "target"},
    }
    (folder / "world.yaml").write_text(yaml.safe_dump(spec))
    return load_twin(folder / "world.yaml")


@pytest.fixture(scope="module")
def states(twin):
    """Four frames in which everything, and one of the cameras, moves and turns."""
    rng, frames = np.random.default_rng(4), 4
    qpos = np.tile(twin.model.qpos0, (frames, 1))
    speed = rng.normal(size=twin.model.nv)
    speed[4::6] = np.abs(speed[4::6])  # nothing sinks into the floor
    for frame in range(frames):
        mujoco.mj_integratePos(twin.model, qpos[frame], speed, 0.02 * frame)
    return SceneStates(qpos=qpos)


@pytest.fixture(scope="module")
def told(twin, states):
    with open_renderer("gl", twin.model, height=SIZE[0], width=SIZE[1], cameras=["still", "moving"]) as renderer:
        return annotate_episode(renderer, twin, states, number=7, settings=AnnotationSettings())


def of(told, name, camera, frame):
    """Rows of a table of one image."""
    table = told[f"annotations/{name}"]
    camera_here = np.array(table["camera"].to_pylist()) == camera
    return table.take(np.flatnonzero(camera_here & (table["frame_index"].to_numpy() == frame)))


def rows(told, name, camera, frame):
    return of(told, name, camera, frame).to_pylist()


def image(told, column, camera, frame):
    return decode_png(rows(told, "frames", camera, frame)[0][column])


def view(told, camera, frame):
    """Pinhole matrix ``(3, 3)`` and camera from world ``(4, 4)`` as they are stored."""
    row = of(told, "cameras", camera, frame)
    fx, fy, cx, cy = (row[name][0].as_py() for name in ("fx", "fy", "cx", "cy"))
    return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]]), np.linalg.inv(poses(row, "world")[0])


def project(told, camera, frame, points):
    matrix, camera_from_world = view(told, camera, frame)
    local = points @ camera_from_world[:3, :3].T + camera_from_world[:3, 3]
    pixels = local @ matrix.T
    return pixels[:, :2] / pixels[:, 2:]


def posed(twin, states, frame):
    data = mujoco.MjData(twin.model)
    data.qpos[:] = states.qpos[frame]
    mujoco.mj_forward(twin.model, data)
    return data


def alone(twin, states, name, camera, frame, scale=1):
    """The mask of a thing drawn alone, ``scale`` times as fine."""
    from twinloop.render.gl import GlQuality, GlRenderer

    model, rgba = twin.model, twin.model.geom_rgba.copy()
    body = model.body(name).id if name in KINDS else 0
    keep = model.geom_bodyid == body if body else np.arange(model.ngeom) == model.geom(name).id
    rgba[~keep, 3] = 0.0
    size, quality = {"height": scale * SIZE[0], "width": scale * SIZE[1]}, GlQuality(slices=96, stacks=96)
    with GlRenderer(model, **size, cameras=[camera], quality=quality) as renderer:
        seen = renderer.observe(states.take([frame]), {"geom_rgba": rgba}, channels=("geom",))
    return seen[camera]["geom"][0] >= 0


IMAGES = [(camera, frame) for camera in ("still", "moving") for frame in (0, 3)]


@pytest.mark.parametrize(("camera", "frame"), IMAGES)
def test_keypoints_lie_where_they_are_seen(twin, states, told, camera, frame):
    data, points = posed(twin, states, frame), {row["name"]: row for row in rows(told, "keypoints", camera, frame)}
    assert points["ball"]["pixel"] == pytest.approx(
        project(told, camera, frame, data.site("ball").xpos[None])[0], abs=1e-9
    )
    mask = alone(twin, states, "ball", camera, frame, FINE)
    row, column = (index.mean() + 0.5 for index in np.nonzero(mask))
    assert np.hypot(*(np.array(points["ball"]["pixel"]) - [column / FINE, row / FINE])) < 0.5
    mask = alone(twin, states, "box", camera, frame, FINE)
    seen = (np.stack(np.nonzero(mask)[::-1], axis=-1) + 0.5) / FINE
    corners = np.array([points[f"box/corner_{i}"]["pixel"] for i in range(8)])
    for angle in np.linspace(0.0, 2.0 * np.pi, 32, endpoint=False):
        direction = np.array([np.cos(angle), np.sin(angle)])
        assert (seen @ direction).max() == pytest.approx((corners @ direction).max(), abs=0.5)
    camera_from_world = view(told, camera, frame)[1]
    for point in points.values():
        assert point["camera_point"] == pytest.approx(camera_from_world[:3] @ [*point["world"], 1.0], abs=1e-12)


def test_hidden_corners_are_told_from_seen_ones(told):
    """Where all pixels around a keypoint show something nearer it is hidden, where all show something farther, seen."""
    found = []
    for camera, frame in IMAGES:
        depth = decode_depth(image(told, "depth", camera, frame), AnnotationSettings().depth_unit)
        for point in rows(told, "keypoints", camera, frame):
            column, row = np.array(point["pixel"])
            assert point["inside"] == (0 <= column < SIZE[1] and 0 <= row < SIZE[0])
            if point["inside"]:
                near = depth[max(int(row) - 1, 0) : int(row) + 2, max(int(column) - 1, 0) : int(column) + 2]
                if near.max() < point["camera_point"][2] - 2e-3:
                    found.append(False)
                    assert not point["visible"], point
                elif near.min() > point["camera_point"][2] - 1e-3:
                    found.append(True)
                    assert point["visible"], point
    assert found.count(True) > 10
    assert found.count(False) > 10


@pytest.mark.parametrize("name", KINDS)
def test_boxes_hold_what_is_drawn(twin, states, told, name):
    for camera, frame in IMAGES:
        (row,) = [item for item in rows(told, "objects", camera, frame) if item["name"] == name]
        mask = alone(twin, states, name, camera, frame, FINE)
        found = np.nonzero(mask)
        low, high = [(index.min() / FINE, (index.max() + 1) / FINE) for index in found[::-1]]
        drawn = np.array([low[0], high[0], low[1], high[1]])
        inside = np.clip(row["full_box"], 0, [SIZE[1], SIZE[0]] * 2)
        assert np.abs(drawn - inside).max() < 0.5, (camera, frame)
        if row["box"]:
            assert (np.array(row["box"])[:2] >= np.floor(inside[:2])).all()
            assert (np.array(row["box"])[2:] <= np.ceil(inside[2:])).all()


@law(max_examples=15)
@given(seed=st.integers(0, 2**31))
def test_outlines_are_those_of_many_points(seed):
    """The box of an ellipsoid's or disc's image holds the images of its points, and touches them."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(3, 3)))[0] * rng.uniform(0.0, 0.3, 3) * [1.0, 1.0, rng.integers(0, 2)]
    centre = rng.uniform([-1.0, -1.0, 0.8], [1.0, 1.0, 4.0])
    pinhole = Intrinsics(fx=300.0, fy=280.0, cx=150.0, cy=130.0, width=320, height=240)
    blobs = ObjectBlobs(centre=centre[None], axes=axes[None], instance=np.array([1]))
    (box,), (farthest,) = blobs.compute_image_boxes(np.eye(4)[None], pinhole)
    angle = np.stack(np.meshgrid(np.linspace(0, np.pi, 200), np.linspace(0, 2 * np.pi, 400))).reshape(2, -1)
    ball = np.stack([np.sin(angle[0]) * np.cos(angle[1]), np.sin(angle[0]) * np.sin(angle[1]), np.cos(angle[0])])
    points = centre + (axes @ ball).T
    pixels = pinhole.project(points)
    assert np.allclose([*pixels.min(axis=0), *pixels.max(axis=0)], box, atol=0.2)
    assert points[:, 2].max() == pytest.approx(farthest, abs=1e-3)
    _, (middle,), (size,) = blobs.compute_oriented_boxes()
    assert np.allclose(points.max(axis=0) - points.min(axis=0), size, atol=1e-3)
    assert np.allclose(middle, centre)
    behind = ObjectBlobs(centre=centre[None] * [1, 1, 0], axes=np.eye(3)[None] * 0.1, instance=np.array([1]))
    assert np.isnan(behind.compute_image_boxes(np.eye(4)[None], pinhole)[0]).all()


def test_boxes_in_space_touch_the_shapes(twin, states, told):
    """Points on the surfaces are in the boxes, and reach all six sides."""
    found = {row["name"]: row for row in rows(told, "objects", "still", 0)}
    rng = np.random.default_rng(0)
    for name in KINDS:
        geom = twin.model.geom(twin.model.body(name).geomadr[0])
        on = surface(twin.model, geom.id, rng)
        turn = np.empty(9)
        mujoco.mju_quat2Mat(turn, geom.quat)
        on = on @ turn.reshape(3, 3).T + geom.pos
        centre, half = np.array(found[name]["box_centre"]), np.array(found[name]["box_size"]) / 2
        assert (np.abs(on - centre) <= half + 1e-6).all()
        assert np.allclose(on.max(axis=0), centre + half, atol=1.5e-3)
        assert np.allclose(on.min(axis=0), centre - half, atol=1.5e-3)
    world = poses(of(told, "objects", "still", 0), "world")
    camera = poses(of(told, "objects", "still", 0), "camera")
    assert np.allclose(view(told, "still", 0)[1] @ world, camera, atol=1e-12)
    moved = np.einsum(
        "nij,nj->ni", camera, np.c_[vectors(of(told, "objects", "still", 0)["box_centre"]), np.ones(len(camera))]
    )
    assert np.allclose(moved[:, :3], vectors(of(told, "objects", "still", 0)["box_camera"]), atol=1e-12, equal_nan=True)
    assert found["floor"]["box_size"] is None


def surface(model, geom, rng, count=40_000):
    """Points on a geom in its own axes."""
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    ball = rng.normal(size=(count, 3))
    ball /= np.linalg.norm(ball, axis=1, keepdims=True)
    if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        return size[0] * ball
    if kind == mujoco.mjtGeom.mjGEOM_ELLIPSOID:
        return size * ball
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        return size[0] * ball + [0, 0, size[1]] * np.sign(ball[:, 2:])
    if kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
        ring = ball[:, :2] / np.linalg.norm(ball[:, :2], axis=1, keepdims=True)
        return np.c_[size[0] * ring, size[1] * np.sign(ball[:, 2])]
    if kind == mujoco.mjtGeom.mjGEOM_BOX:
        return size * ball / np.abs(ball).max(axis=1, keepdims=True)
    first = model.mesh_vertadr[model.geom_dataid[geom]]
    vertices = model.mesh_vert[first : first + 4].astype(np.float64)
    return np.concatenate([vertices, rng.dirichlet(np.ones(3), count) @ vertices[:3]])


def off_surface(model, data, geom, points):
    """Distances of points ``(n, 3)`` in the world from the surface of a geom, in m."""
    local = (points - data.geom_xpos[geom]) @ data.geom_xmat[geom].reshape(3, 3)
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    if kind == mujoco.mjtGeom.mjGEOM_PLANE:
        return np.abs(local[:, 2])
    if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        return np.abs(np.linalg.norm(local, axis=1) - size[0])
    if kind == mujoco.mjtGeom.mjGEOM_ELLIPSOID:
        return np.abs(np.linalg.norm(local / size, axis=1) - 1.0) * size.min()
    if kind == mujoco.mjtGeom.mjGEOM_BOX:
        return np.abs((np.abs(local) - size).max(axis=1))
    radius = np.linalg.norm(local[:, :2], axis=1)
    if kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
        return np.abs(np.maximum(radius - size[0], np.abs(local[:, 2]) - size[1]))
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        along = local[:, 2] - np.clip(local[:, 2], -size[1], size[1])
        return np.abs(np.hypot(radius, along) - size[0])
    first = model.mesh_vertadr[model.geom_dataid[geom]]
    vertices = model.mesh_vert[first : first + 4].astype(np.float64)
    sides = []
    for corner in range(4):
        a, b, c = np.delete(vertices, corner, axis=0)
        normal = np.cross(b - a, c - a)
        normal *= -np.sign(normal @ (vertices[corner] - a)) / np.linalg.norm(normal)
        sides.append((local - a) @ normal)
    return np.abs(np.max(sides, axis=0))


@pytest.mark.parametrize(("camera", "frame"), IMAGES)
def test_depth_lies_on_the_surfaces(twin, states, told, camera, frame):
    data, settings = posed(twin, states, frame), AnnotationSettings()
    depth = decode_depth(image(told, "depth", camera, frame), settings.depth_unit)
    instance = image(told, "instance", camera, frame)
    table, (matrix, camera_from_world) = InstanceTable.of(twin), view(told, camera, frame)
    world_from_camera = np.linalg.inv(camera_from_world)
    for thing in table.instances:
        mask = (instance == thing.id) & np.isfinite(depth)
        if not mask.any():
            continue
        row, column = np.nonzero(mask)
        rays = np.linalg.solve(matrix, np.stack([column + 0.5, row + 0.5, np.ones(len(row))]))
        points = (rays * depth[mask]).T @ world_from_camera[:3, :3].T + world_from_camera[:3, 3]
        assert off_surface(twin.model, data, thing.geoms[0], points).max() < 1e-3, thing.name


@pytest.mark.parametrize("camera", ["still", "moving"])
def test_flow_leads_to_where_rays_say(twin, states, told, camera):
    """Rays find body points in one frame, and whether they are met in the next: without depth, ids or flow's code."""
    now, then = posed(twin, states, 1), posed(twin, states, 2)
    flow, seen = decode_flow(image(told, "flow", camera, 1))
    instance, table = image(told, "instance", camera, 1), InstanceTable.of(twin)
    matrix, camera_from_world = view(told, camera, 1)
    world_from_camera = np.linalg.inv(camera_from_world)
    rng, groups = np.random.default_rng(1), np.array([1, 1, 1, 0, 0, 0], np.uint8)
    eye, later, checked, agree = now.camera(camera).xpos.copy(), then.camera(camera).xpos.copy(), 0, 0
    for row, column in zip(rng.integers(0, SIZE[0], 1500), rng.integers(0, SIZE[1], 1500), strict=True):
        ray = world_from_camera[:3, :3] @ np.linalg.solve(matrix, [column + 0.5, row + 0.5, 1.0])
        geom = np.zeros(1, np.int32)
        far = mujoco.mj_ray(twin.model, now, eye, ray, groups, 1, -1, geom, None)
        if far < 0.0:
            assert np.isnan(flow[row, column]).all()
            continue
        local = (eye + far * ray - now.geom_xpos[geom[0]]) @ now.geom_xmat[geom[0]].reshape(3, 3)
        point = then.geom_xmat[geom[0]].reshape(3, 3) @ local + then.geom_xpos[geom[0]]
        pixel = project(told, camera, 2, point[None])[0]
        error = np.abs(flow[row, column] - (pixel - [column + 0.5, row + 0.5])).max()
        if table.instances[int(instance[row, column]) - 1].geoms[0] != geom[0]:
            continue  # an edge, where a drawing of flat faces shows another geom than the ray meets
        assert error < 0.05, (row, column, error)
        inside = (pixel >= 0).all() and (pixel < [SIZE[1], SIZE[0]]).all()
        met = mujoco.mj_ray(twin.model, then, later, point - later, groups, 1, -1, geom, None)
        checked, agree = checked + 1, agree + (seen[row, column] == (inside and met > 0.995))
    assert checked > 1000
    assert agree / checked > 0.99


def test_there_is_no_flow_after_the_last_frame(told):
    assert rows(told, "frames", "still", 3)[0]["flow"] is None


@pytest.mark.parametrize(("camera", "frame"), IMAGES)
def test_visibility_is_the_seen_part_of_what_is_drawn_alone(twin, states, told, camera, frame):
    instance, hidden = image(told, "instance", camera, frame), 0
    for row in rows(told, "objects", camera, frame):
        if row["name"] == "floor":
            assert row["visibility"] is None
            continue
        whole = np.count_nonzero(alone(twin, states, row["name"], camera, frame))
        visible = np.count_nonzero(instance == row["instance"])
        assert row["pixels"] == visible
        if whole < 30:
            continue
        assert row["visibility"] == pytest.approx(min(1.0, visible / whole), abs=0.03 + 1.0 / whole), row
        hidden += row["visibility"] < 0.9
    assert hidden or camera == "moving"


@pytest.mark.parametrize("camera", ["front", "wrist"])
def test_links_of_a_robot_hide_one_another_as_they_are_drawn(camera):
    arm = load_twin("so101_tabletop")
    states, model = SceneStates(qpos=arm.home()[0]), arm.model
    with open_renderer("gl", model, height=120, width=160, cameras=[camera]) as renderer:
        settings = AnnotationSettings(wanted=("boxes",))
        found = annotate_episode(renderer, arm, states, number=0, settings=settings)["annotations/objects"].to_pylist()
        compared = 0
        for thing, row in ((InstanceTable.of(arm).instances[row["instance"] - 1], row) for row in found):
            rgba, material = model.geom_rgba.copy(), model.geom_matid.copy()
            others = ~np.isin(np.arange(model.ngeom), thing.geoms)
            rgba[others, 3], material[others] = 0.0, -1
            fields = {"geom_rgba": rgba, "geom_matid": material}
            whole = np.count_nonzero(renderer.observe(states, fields, channels=("geom",))[camera]["geom"] >= 0)
            if whole > 30 and row["visibility"] is not None:
                compared += 1
                assert row["visibility"] == pytest.approx(row["pixels"] / whole, abs=0.02 + 2.0 / whole), row
    assert compared >= 5


def test_rays_meet_what_is_only_seen_and_what_took_another_shape():
    """``mj_multiRay`` misses shapes outside the body's compiled colliding geoms; ``mj_ray`` does not."""
    model = mujoco.MjModel.from_xml_string("""<mujoco><worldbody><body><freejoint/><geom size="0.05"/>
      <geom type="sphere" size="0.1" pos="0.5 0 0" contype="0" conaffinity="0"/></body></worldbody></mujoco>""")
    grown = model.geom_size.copy()
    grown[0] = 0.3
    for size, targets in ((model.geom_size, ([0, 0, 0], [0.5, 0, 0])), (grown, ([0, 0.2, 0.1], [0.5, 0, 0]))):
        fields = {"geom_size": size, "geom_rbound": size[:, 0], "geom_aabb": np.c_[0 * size, size[:, [0, 0, 0]]]}
        posed = PosedScene(model)
        posed.set_fields(fields)
        posed.pose(SceneStates(qpos=model.qpos0), 0)
        eye, met, far = np.array([0.02, -2.0, 0.01]), np.zeros(2, np.int32), np.zeros(2)
        ways = np.array(targets) - eye
        ways /= np.linalg.norm(ways, axis=1, keepdims=True)
        each = [mujoco.mj_ray(posed.model, posed.data, eye, way, None, 1, -1, None, None) for way in ways]
        mujoco.mj_multiRay(posed.model, posed.data, eye, ways.ravel(), None, 1, -1, met, far, None, 2, 100.0)
        assert min(each) > 0.0
        assert far == pytest.approx(each)


def test_normals_are_those_of_the_planes(twin, states, told):
    for camera, frame in IMAGES:
        normals = decode_normals(image(told, "normals", camera, frame))
        instance = image(told, "instance", camera, frame)
        floor = InstanceTable.of(twin).of_geom[twin.model.geom("floor").id]
        up = view(told, camera, frame)[1][:3, :3] @ [0, 0, 1]
        assert np.allclose(normals[instance == floor], up, atol=0.01)
        length = np.linalg.norm(normals, axis=-1)
        assert np.allclose(length[instance > 0], 1.0, atol=1e-5)


def test_names_and_classes_are_those_of_the_twin(twin, told):
    table = InstanceTable.of(twin)
    assert [item.name for item in table.instances] == ["cart", *KINDS, "floor", "wall"]
    assert [item.id for item in table.instances[:-2]] == [twin.model.body(n).id for n in ("cart", *KINDS)]
    classes = {item.name: item.class_name for item in table.instances}
    assert classes == {
        "cart": "other", "box": "object", "ball": "object", "egg": "food", "can": "target", "pill": "other",
        "rock": "other", "floor": "floor", "wall": "fixture",
    }  # fmt: skip
    semantic, instance = image(told, "semantic", "still", 0), image(told, "instance", "still", 0)
    assert (semantic[instance == table.instances[3].id] == table.classes.index("food")).all()
    assert "cart" not in {row["name"] for row in rows(told, "objects", "still", 0)}  # of a group that is not drawn
    document = annotations_document(twin, AnnotationSettings(wanted=("depth", "contacts")))
    assert document["instances"]["4"] == {"name": "egg", "class": "food"}
    assert list(document["tables"]) == [f"annotations/{n}" for n in ("cameras", "frames", "contacts", "forces")]


def test_settings_that_make_no_sense_are_refused(twin, states):
    with pytest.raises(UnknownNameError, match="annotation 'dept'.*depth"):
        AnnotationSettings(wanted=("dept",))
    with pytest.raises(InputError, match="The depth unit is 0 m"):
        AnnotationSettings(depth_unit=0.0)
    assert AnnotationSettings(wanted=("boxes", "depth", "boxes")).wanted == ("depth", "boxes")
    assert AnnotationSettings(wanted=("joints",)).per_frame == ()
    with open_renderer("gl", twin.model, height=12, width=16, cameras=["still"]) as renderer:
        assert annotate_episode(renderer, twin, states, number=0, settings=AnnotationSettings(wanted=("joints",))) == {}
        only = annotate_episode(renderer, twin, states, number=0, settings=AnnotationSettings(wanted=("boxes",)))
    assert set(only) == {"annotations/cameras", "annotations/objects"}
