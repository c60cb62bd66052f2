"""Shapes agree with closed forms of volume, inertia and extents; seeds, and refusals."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.twin import devices, load_twin
from twinloop.twin.load import list_twin_files
from twinloop.twin.scene_build import add_geoms, expand_shapes
from twinloop.twin.scene_spec import ShapeSpec
from twinloop.twin.shapes import (
    PRIMITIVES,
    PROCEDURAL,
    ObjectShape,
    bounding_box,
    make_primitive,
    make_procedural,
    read_piece,
)

EXTENTS = np.array([0.04, 0.03, 0.05])


def compiled(shape: ObjectShape) -> mujoco.MjModel:
    spec = mujoco.MjSpec()
    body = spec.worldbody.add_body(name="thing")
    body.add_freejoint()
    add_geoms(body, spec, shape, 0, "test")
    return spec.compile()


def of(kind, tmp_path=None, **values):
    return expand_shapes(ShapeSpec.model_validate({"shape": kind, **values}), tmp_path, where="t")


def full_inertia(model):
    """Inertia about the body's origin, world axes."""
    turn = np.empty(9)
    mujoco.mju_quat2Mat(turn, model.body_iquat[1])
    turn = turn.reshape(3, 3)
    offset = model.body_ipos[1]
    shift = model.body_mass[1] * (offset @ offset * np.eye(3) - np.outer(offset, offset))
    return turn @ np.diag(model.body_inertia[1]) @ turn.T + shift


@pytest.mark.parametrize("kind", PROCEDURAL)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_procedural_shape_fills_its_box_and_weighs_what_it_should(kind, seed):
    pieces = make_procedural(kind, EXTENTS, seed=seed)
    low, high = bounding_box(pieces)
    np.testing.assert_allclose(high, EXTENTS / 2, atol=1e-12)
    np.testing.assert_allclose(low, -EXTENTS / 2, atol=1e-12)
    (shape,) = of(kind, size=EXTENTS.tolist(), seed=seed, density=800.0)
    model = compiled(shape)
    assert model.body_mass[1] == pytest.approx(800.0 * shape.volume, rel=1e-6)
    moments = np.sort(model.body_inertia[1])
    assert moments[0] > 0
    assert moments[0] + moments[1] >= moments[2]


@pytest.mark.parametrize("kind", [*PROCEDURAL, "box", "cylinder"])
def test_inertia_is_that_of_points_spread_through_the_volume(kind):
    size = EXTENTS.tolist() if kind != "cylinder" else [0.03, 0.03, 0.05]
    (shape,) = of(kind, size=size, mass=0.2, seed=3)
    rng = np.random.default_rng(0)
    points = rng.uniform(-0.5, 0.5, size=(60_000, 3)) * shape.extents
    inside = np.zeros(len(points), dtype=bool)
    for piece in shape.pieces:
        local = points - piece.position
        if piece.vertices is not None:
            from scipy.spatial import ConvexHull

            planes = ConvexHull(piece.vertices).equations
            inside |= (points @ planes[:, :3].T + planes[:, 3] <= 0).all(axis=1)
        elif piece.kind == "box":
            inside |= (np.abs(local) <= piece.size).all(axis=1)
        else:
            inside |= (np.hypot(local[:, 0], local[:, 1]) <= piece.size[0]) & (np.abs(local[:, 2]) <= piece.size[1])
    assert inside.mean() * np.prod(shape.extents) == pytest.approx(shape.volume, rel=0.02)
    cloud = points[inside]
    second = 0.2 * cloud.T @ cloud / len(cloud)
    expected = np.trace(second) * np.eye(3) - second
    np.testing.assert_allclose(full_inertia(compiled(shape)), expected, atol=0.03 * np.trace(expected))


def test_primitives_have_the_volumes_of_school():
    d, h = 0.02, 0.05
    volumes = {
        "box": (d * d * h, (d, d, h)),
        "cylinder": (math.pi / 4 * d * d * h, (d, d, h)),
        "sphere": (math.pi / 6 * d**3, (d, d, d)),
        "capsule": (math.pi / 6 * d**3 + math.pi / 4 * d * d * (h - d), (d, d, h)),
        "ellipsoid": (math.pi / 6 * d * d * h, (d, d, h)),
    }
    assert set(volumes) == set(PRIMITIVES)
    for kind, (volume, extents) in volumes.items():
        (piece,) = make_primitive(kind, extents)
        assert piece.volume == pytest.approx(volume), kind
        np.testing.assert_allclose(np.ptp(bounding_box((piece,)), axis=0), extents)


def test_members_of_a_family_differ_and_are_the_same_each_time():
    first, again = (of("polyhedron", size=0.03, count=4, seed=2, scale=[0.5, 1.0]) for _ in range(2))
    assert [shape.name for shape in first] == [f"polyhedron_{i}" for i in range(4)]
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.pieces[0].vertices, other.pieces[0].vertices)
        assert one.rgba == other.rgba
    assert len({shape.extents[0] for shape in first}) == 4
    longer = of("polyhedron", size=0.03, count=6, seed=2, scale=[0.5, 1.0])
    np.testing.assert_array_equal(longer[3].pieces[0].vertices, first[3].pieces[0].vertices)


def test_what_cannot_be_is_refused_by_name():
    with pytest.raises(InputError, match=r"t \(sphere\): A sphere needs equal extents, given 0.01, 0.02, 0.03 m"):
        of("sphere", size=[0.01, 0.02, 0.03])
    with pytest.raises(InputError, match="A capsule is upright: its height of 0.02 m must exceed"):
        of("capsule", size=[0.02, 0.02, 0.02])
    for values, text in (
        ({"shape": "box", "size": 0.0}, "greater than or equal to 0.001"),
        ({"shape": "box"}, "a box needs a size"),
        ({"shape": "box", "size": 0.1, "sides": 5}, "a box has no sides"),
        ({"shape": "mesh"}, "a mesh has files"),
        ({"shape": "box", "size": 0.1, "mass": 0}, "greater than 0"),
    ):
        with pytest.raises(ValueError, match=text):
            ShapeSpec.model_validate(values)


def write_stl(path, triangles):
    with path.open("wb") as file:
        file.write(b"\0" * 80 + struct.pack("<I", len(triangles)))
        for triangle in np.asarray(triangles, dtype="<f4"):
            file.write(np.zeros(3, "<f4").tobytes() + triangle.tobytes() + b"\0\0")


def box_triangles(low, high):
    corner = np.array([[(low, high)[i >> axis & 1][axis] for axis in range(3)] for i in range(8)])
    faces = [(0, 2, 3, 1), (4, 5, 7, 6), (0, 1, 5, 4), (2, 6, 7, 3), (0, 4, 6, 2), (1, 3, 7, 5)]
    return [corner[[a, b, c]] for face in faces for a, b, c in (face[:3], (face[0], *face[2:]))]


def test_a_mesh_is_taken_where_it_is_a_solid_convex_body(tmp_path):
    path = tmp_path / "brick.stl"
    write_stl(path, box_triangles((0.0, 0.0, 0.0), (0.04, 0.02, 0.01)))
    (shape,) = of("mesh", tmp_path, files=["brick.stl"], mass=0.3)
    np.testing.assert_allclose(shape.extents, [0.04, 0.02, 0.01], atol=1e-8)
    expected = 0.3 / 12 * np.array([0.02**2 + 0.01**2, 0.04**2 + 0.01**2, 0.04**2 + 0.02**2])
    np.testing.assert_allclose(np.diag(full_inertia(compiled(shape))), expected, rtol=1e-5)


def test_a_mesh_with_a_hole_dents_or_inside_out_is_refused(tmp_path):
    def refused(name, triangles, message):
        write_stl(tmp_path / name, triangles)
        with pytest.raises(InputError, match=message):
            read_piece(tmp_path / name, accept_hull=False, where="t")

    solid = box_triangles((0.0, 0.0, 0.0), (0.04, 0.02, 0.01))
    two = solid + box_triangles((0.08, 0.0, 0.0), (0.12, 0.02, 0.01))
    refused("hole.stl", solid[:-1], "hole.stl is not watertight: 3 of its")
    refused("turned.stl", [triangle[::-1] for triangle in solid], "its faces point inwards. Flip its normals")
    refused("two.stl", two, r"two.stl is not convex: its hull.* is 50 % larger\. Give its convex parts")
    whole = read_piece(tmp_path / "two.stl", accept_hull=True, where="t")
    assert whole.volume == pytest.approx(0.12 * 0.02 * 0.01, rel=1e-5)
    with pytest.raises(InputError, match="none.stl does not exist. Mesh files are searched in"):
        read_piece(tmp_path / "none.stl", accept_hull=False, where="t")
    (tmp_path / "text.stl").write_text("no mesh")
    with pytest.raises(InputError, match="is not a mesh that MuJoCo reads"):
        read_piece(tmp_path / "text.stl", accept_hull=False, where="t")


def test_all_files_of_a_twin_are_listed(tmp_path):
    folder = tmp_path / "robot"
    (folder / "meshes").mkdir(parents=True)
    for name in ("meshes/link.stl", "part.stl"):
        write_stl(folder / name, box_triangles((0.0, 0.0, 0.0), (0.04, 0.02, 0.01)))
    for name, text in {
        "arm.xml": '<mujoco><compiler meshdir="meshes"/><include file="inner.xml"/></mujoco>',
        "inner.xml": '<mujoco><asset><mesh name="link" file="link.stl"/></asset><worldbody>'
        '<geom name="floor" type="plane" size="1 1 1"/><camera name="front"/>'
        '<body><freejoint/><geom type="mesh" mesh="link"/></body></worldbody></mujoco>',
        "eye.yaml": (Path(devices.__file__).parent / "cameras.yaml").read_text(),
        "twin.yaml": "{name: t, model: arm.xml, control_hz: 20, substeps: 10, params: [],"
        " sensors: {front: {device: 'eye.yaml:imx477'}}, scene: {support: floor, objects:"
        " [{name: part, shape: mesh, files: [part.stl], mass: 0.1, position: [0, 0]}]}}",
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    load_twin(folder / "twin.yaml")
    names = [path.relative_to(folder).as_posix() for path in list_twin_files(folder / "twin.yaml")]
    assert names[0] == "twin.yaml"
    assert sorted(names) == ["arm.xml", "eye.yaml", "inner.xml", "meshes/link.stl", "part.stl", "twin.yaml"]
