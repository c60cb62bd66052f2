"""Simplified meshes: distances, borders, seams, normals, the drawn images, and the cache."""

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree

from twinloop.core.errors import InputError
from twinloop.render import light_meshes, open_renderer
from twinloop.render.catalog import renderer_entry
from twinloop.render.light_meshes import average_normals, count_triangles, simplify_meshes
from twinloop.render.protocol import SceneStates
from twinloop.render.simplify import face_normals, simplify
from twinloop.render.triangles import _make_ellipsoid


def weld(vertices, faces):
    vertices, place = np.unique(vertices, axis=0, return_inverse=True)
    faces = place.reshape(-1)[faces]
    return vertices, faces[(faces != np.roll(faces, 1, axis=1)).all(axis=1)]


def ball(radius=0.1, chord=1e-4):
    vertices, faces = _make_ellipsoid(np.full(3, radius), 0.0, chord)
    return weld(vertices, faces.astype(np.int64))


def sample_triangles(vertices, faces, count=14):
    a, b = (each.ravel() for each in np.meshgrid(*[np.linspace(0, 1, count)] * 2))
    weights = np.stack([a, b, 1 - a - b], axis=1)[a + b <= 1 + 1e-9]
    return np.einsum("kc,mcd->mkd", weights, vertices[faces]).reshape(-1, 3)


@settings(max_examples=5, deadline=None)
@given(st.sampled_from([3e-4, 5e-4, 2e-3]), st.floats(0.5, 2.0), st.floats(-1, 1))
def test_every_vertex_of_a_ball_is_within_the_tolerance(tolerance, stretch, shift):
    vertices, faces = ball(chord=5e-4)
    vertices = vertices * [1.0, stretch, 1.0] + shift
    found = simplify(vertices, faces, tolerance)
    assert len(found) < len(faces)
    samples = sample_triangles(vertices, found)
    distance, _ = cKDTree(samples).query(vertices)
    assert distance.max() <= np.hypot(tolerance, 0.006 * max(1.0, stretch))  # half the distance of samples
    volume = np.einsum("ij,ij->i", face_normals(vertices, found), vertices[found[:, 0]] - shift).sum() / 6
    assert volume == pytest.approx(4 / 3 * np.pi * stretch * 1e-3, rel=0.08)


def test_fewer_triangles_with_a_larger_tolerance_and_none_lost_with_none():
    vertices, faces = ball()
    counts = [len(simplify(vertices, faces, tolerance)) for tolerance in (1e-9, 1e-4, 1e-3, 1e-2)]
    assert counts[0] == len(faces)
    assert counts[0] > counts[1] > 4 * counts[2] > 16 * counts[3] > 0


def test_a_flat_sheet_keeps_its_area_its_border_and_its_locked_vertices():
    side = np.linspace(0, 1, 21)
    vertices = np.stack([*(each.ravel() for each in np.meshgrid(side, side)), np.zeros(441)], axis=1)
    grid = np.arange(441).reshape(21, 21)
    here, right, up, across = (each.ravel() for each in (grid[:-1, :-1], grid[:-1, 1:], grid[1:, :-1], grid[1:, 1:]))
    faces = np.concatenate([np.stack([here, right, across], 1), np.stack([here, across, up], 1)])
    found = simplify(vertices, faces, 1e-6)
    assert len(found) <= 6
    assert face_normals(vertices, found)[:, 2].sum() == pytest.approx(2.0)
    locked = np.zeros(441, dtype=bool)
    locked[[217, 225]] = True
    kept = simplify(vertices, faces, 1e-6, locked=locked)
    assert {217, 225} <= set(kept.ravel().tolist())
    assert face_normals(vertices, kept)[:, 2].sum() == pytest.approx(2.0)


def test_normals_are_those_of_the_mesh_and_edges_stay_sharp():
    vertices, faces = ball()
    flat = face_normals(vertices, faces)
    flat = np.repeat((flat / np.linalg.norm(flat, axis=1)[:, None])[:, None], 3, axis=1)
    found = simplify(vertices, faces, 5e-4)
    normals = average_normals(vertices, faces, flat, found)
    radial = vertices[found] / np.linalg.norm(vertices[found], axis=-1, keepdims=True)
    assert np.einsum("ijk,ijk->ij", normals, radial).min() > np.cos(np.radians(4))
    corner = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1.0]])
    sides = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2]])
    flat = face_normals(corner, sides)
    sharp = average_normals(corner, sides, np.repeat(flat[:, None], 3, axis=1), sides)
    np.testing.assert_allclose(sharp, np.repeat(flat[:, None], 3, axis=1), atol=1e-12)


@pytest.fixture
def heavy(monkeypatch, tmp_path):
    monkeypatch.setattr(light_meshes, "LIGHT", 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = mujoco.MjSpec()
    vertices, faces = ball()
    spec.add_mesh(name="ball", uservert=vertices.ravel(), userface=faces.ravel())
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="ball", pos=[0, 0, 0.5], rgba=[0.7, 0.6, 0.5, 1])
    spec.worldbody.add_light(pos=[1, 1, 3], dir=[-1, -1, -3])
    spec.worldbody.add_camera(name="front", pos=[0, 0, 1.0])
    return spec.compile()


def test_images_of_a_simplified_mesh_agree_with_those_of_the_mesh(heavy):
    before = heavy.mesh_vert.copy(), heavy.mesh_face.copy(), heavy.mesh_facenum.copy()
    states = SceneStates(qpos=np.zeros((1, 0)))
    images = {}
    for tolerance in (0.0, 3e-4):
        with open_renderer("gl", heavy, height=120, width=160, quality={"mesh_tolerance": tolerance}) as renderer:
            images[tolerance] = renderer.observe(states, channels=("rgb", "depth", "geom"))["front"]
    full, light = images[0.0], images[3e-4]
    both = (full["geom"] == 0) & (light["geom"] == 0)
    assert both.sum() > 1000
    assert (full["geom"] != light["geom"]).sum() <= 0.02 * both.sum()
    front = both & (full["depth"] < 0.43)  # where depth is nearly the distance from the surface
    assert np.abs(full["depth"][front] - light["depth"][front]).max() < 5e-4
    assert np.abs(full["rgb"].astype(int) - light["rgb"])[both].mean() < 1.0
    for was, now in zip(before, (heavy.mesh_vert, heavy.mesh_face, heavy.mesh_facenum), strict=True):
        np.testing.assert_array_equal(was, now)


def test_a_simplification_is_described_and_light_or_hidden_meshes_are_not_simplified(heavy, monkeypatch):
    entry, total = renderer_entry("gl"), count_triangles(heavy)
    described = entry.describe_changes(heavy, {})
    assert described["tolerance_m"] == 5e-4
    assert described["original_triangles"] == total == heavy.mesh_facenum[0]
    assert described["triangles"] < total / 2
    assert entry.describe_changes(heavy, {"mesh_tolerance": 0.0}) == {}
    monkeypatch.setattr(light_meshes, "LIGHT", total)
    assert entry.describe_changes(heavy, {}) == {}
    with pytest.raises(InputError, match="mesh_tolerance"):
        entry.describe_changes(heavy, {"mesh_tolerance": -1.0})
    heavy.geom_group[:] = 3
    assert count_triangles(heavy) == 0


def test_a_stored_simplification_is_used_again_and_a_damaged_file_is_not(heavy, monkeypatch, tmp_path):
    described = renderer_entry("gl").describe_changes(heavy, {})
    (stored,) = (tmp_path / "twinloop" / "meshes").glob("*.npz")
    calls = []
    monkeypatch.setattr(light_meshes, "simplify", lambda *given, **more: calls.append(1) or simplify(*given, **more))
    assert renderer_entry("gl").describe_changes(heavy, {}) == described
    assert not calls
    stored.write_bytes(stored.read_bytes()[:100])
    assert renderer_entry("gl").describe_changes(heavy, {}) == described
    assert calls == [1]


def test_texture_coordinates_stay_with_their_vertices(monkeypatch, tmp_path):
    monkeypatch.setattr(light_meshes, "LIGHT", 100)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = mujoco.MjSpec()
    vertices, faces = ball(chord=3e-4)
    texture = np.stack([np.arctan2(vertices[:, 1], vertices[:, 0]), vertices[:, 2]], axis=1)
    spec.add_mesh(name="ball", uservert=vertices.ravel(), userface=faces.ravel(), usertexcoord=texture.ravel())
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="ball")
    model = spec.compile()
    assert simplify_meshes(model, 1e-3)["triangles"] < 0.7 * len(faces)
    rows = slice(0, model.mesh_facenum[0])
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, model.mesh_quat[0])
    position = model.mesh_vert[model.mesh_face[rows]] @ turn.reshape(3, 3).T + model.mesh_pos[0]
    drawn = model.mesh_texcoord[model.mesh_facetexcoord[rows]]
    _, nearest = cKDTree(vertices).query(position.reshape(-1, 3))
    np.testing.assert_allclose(drawn.reshape(-1, 2), texture[nearest], atol=1e-6)
