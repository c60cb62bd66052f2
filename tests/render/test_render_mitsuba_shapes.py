"""Surfaces and textures for the path tracer, and the choice of its variant, without the path tracer itself."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

import twinloop.render.mitsuba.variants as variants
from twinloop.core.errors import MissingDependencyError
from twinloop.render.mitsuba.shapes import TriangleMesh, make_surface
from twinloop.render.mitsuba.textures import TextureMapping, cube_coordinates, look_up_cube, look_up_sky, make_mapping

SHAPES = """
<mujoco>
  <asset>
    <texture name="cube" type="cube" builtin="checker" width="8" height="48"/>
    <material name="cube" texture="cube" texuniform="true"/>
    <mesh name="tent" vertex="-.1 -.1 0 .1 -.1 0 .1 .1 0 -.1 .1 0 0 0 .15"/>
    <hfield name="hill" nrow="3" ncol="4" elevation="0 0 0 0 0 1 2 0 0 0 0 0" size=".15 .2 .1 .02"/>
  </asset>
  <worldbody>
    <geom name="sphere" size=".2"/>
    <geom name="ellipsoid" type="ellipsoid" size=".1 .2 .3"/>
    <geom name="capsule" type="capsule" size=".1 .2"/>
    <geom name="cylinder" type="cylinder" size=".1 .2"/>
    <geom name="box" type="box" size=".1 .2 .3"/>
    <geom name="mesh" type="mesh" mesh="tent"/>
    <geom name="hfield" type="hfield" hfield="hill"/>
  </worldbody>
</mujoco>
"""
VOLUMES = {
    "sphere": 4 / 3 * np.pi * 0.2**3,
    "ellipsoid": 4 / 3 * np.pi * 0.1 * 0.2 * 0.3,
    "capsule": np.pi * 0.1**2 * 0.4 + 4 / 3 * np.pi * 0.1**3,
    "cylinder": np.pi * 0.1**2 * 0.4,
    "box": 8 * 0.1 * 0.2 * 0.3,
    "mesh": 0.2 * 0.2 * 0.15 / 3,
}


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SHAPES)


def volume(made: TriangleMesh) -> float:
    a, b, c = made.positions.reshape(-1, 3, 3).transpose(1, 0, 2)
    return float(np.einsum("mi,mi->m", a, np.cross(b, c)).sum() / 6.0)


@pytest.mark.parametrize("name", [*VOLUMES, "hfield"])
@pytest.mark.parametrize("cube", [False, True])
def test_surfaces_are_closed_face_outwards_and_hold_the_shapes_volume(
    model: mujoco.MjModel, name: str, cube: bool
) -> None:
    mapping = TextureMapping(cube=True, uniform=True, side=8, faces=6) if cube else None
    made = make_surface(model, model.geom(name).id, mapping, reach=1.0)
    a, b, c = made.positions.reshape(-1, 3, 3).transpose(1, 0, 2)
    outward = np.cross(b - a, c - a)
    np.testing.assert_allclose(outward.sum(axis=0), 0.0, atol=1e-7, err_msg="the surface is closed")
    np.testing.assert_allclose(np.linalg.norm(made.normals, axis=-1), 1.0, atol=1e-5)
    corners = made.normals.reshape(-1, 3, 3)
    along = np.einsum("mki,mi->mk", corners, outward / np.linalg.norm(outward, axis=-1, keepdims=True))
    assert along.min() > 0.2
    if name in VOLUMES:
        assert volume(made) == pytest.approx(VOLUMES[name], rel=0.01)


def test_a_plane_without_end_is_cut_far_away(model: mujoco.MjModel) -> None:
    floor = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom type='plane' size='0 2 1'/></worldbody></mujoco>")
    made = make_surface(floor, 0, None, reach=77.0)
    np.testing.assert_allclose(made.positions.max(axis=0), [77.0, 2.0, 0.0])
    np.testing.assert_allclose(made.normals, [[0, 0, 1]] * 6)


def test_a_cubes_faces_are_found_where_directions_point(model: mujoco.MjModel) -> None:
    image = np.repeat(np.arange(6, dtype=np.float32), 4)[:, None, None] * np.ones((1, 4, 3), dtype=np.float32)
    axes = np.concatenate([np.eye(3), -np.eye(3)])[[0, 3, 1, 4, 2, 5]]
    np.testing.assert_array_equal(look_up_cube(image, axes)[:, 0], np.arange(6))
    mapping = make_mapping(model, model.material("cube").id)
    assert mapping == TextureMapping(cube=True, uniform=True, side=8, faces=6)
    triangles = axes[:, None] + 0.1 * np.roll(axes, 2, axis=0)[:, None] * np.array([0, 1, 0.5])[None, :, None]
    rows = cube_coordinates(triangles, mapping)[..., 1] * 6
    np.testing.assert_array_equal(rows.astype(int), np.arange(6)[:, None] * np.ones((1, 3), dtype=int))


def test_the_upper_face_of_the_sky_is_above() -> None:
    faces = np.zeros((6 * 4, 4, 3), dtype=np.float32)
    faces[8:12] = [0.0, 0.0, 1.0]
    np.testing.assert_allclose(look_up_sky(faces, np.array([[0.0, 0, 1], [0, 1, 0], [0, 0, -1]]))[:, 2], [1, 0, 0])
    assert not look_up_sky(None, np.array([[0.0, 0, 1]])).any()


@pytest.fixture
def nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DRJIT_LIBLLVM_PATH", raising=False)
    monkeypatch.setattr(variants, "_version", lambda: "3.9.1")
    variants._probe.cache_clear()
    yield
    variants._probe.cache_clear()


def libraries(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    for name in names:
        (folder / name).touch()
    monkeypatch.setattr(variants, "_FOLDERS", (str(folder),))
    return [path for path in variants._list_libraries() if path.startswith(str(folder))]


def test_libraries_are_tried_in_the_order_of_trust(
    nothing_known: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = libraries(tmp_path, monkeypatch, "libLLVM-15.so.1", "libLLVM.so.19.1", "libLLVM-14.so.1", "libLLVM.so.18.1")
    assert [Path(path).name for path in found] == [
        "libLLVM.so.19.1",
        "libLLVM.so.18.1",
        "libLLVM-15.so.1",
        "libLLVM-14.so.1",
    ]
    monkeypatch.setenv("DRJIT_LIBLLVM_PATH", "/own/libLLVM.so")
    assert variants._list_libraries() == ["/own/libLLVM.so"]


def test_what_works_is_remembered_and_what_does_not_falls_back(
    nothing_known: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "_list_libraries", lambda: ["/bad/libLLVM.so", "/good/libLLVM.so"])
    tried: list[variants.MitsubaVariant] = []

    def attempt(variant: variants.MitsubaVariant) -> str:
        tried.append(variant)
        return "" if variant.library == "/good/libLLVM.so" else "the process was ended by signal 6"

    monkeypatch.setattr(variants, "_run_trial", attempt)
    monkeypatch.setattr(variants, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert variants.choose_variant() == variants.MitsubaVariant(name="llvm", library="/good/libLLVM.so")
    variants._probe.cache_clear()
    assert variants.choose_variant("llvm").library == "/good/libLLVM.so"
    assert len(tried) == 2
    monkeypatch.setattr(variants, "_run_trial", lambda variant: "" if variant.name == "scalar" else "it broke")
    monkeypatch.setattr(variants, "_list_libraries", lambda: ["/other/libLLVM.so"])
    variants._probe.cache_clear()
    assert variants.choose_variant().name == "scalar"
    assert variants.working_variants() == "variants scalar"
    with pytest.raises(MissingDependencyError, match=r"works here \(llvm: it broke\)\. To add it: .* libllvm19"):
        variants.choose_variant("llvm")
    with pytest.raises(MissingDependencyError, match="cuda: there is no NVIDIA GPU"):
        variants.choose_variant("cuda")


def test_without_mitsuba_the_command_is_named(nothing_known: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "_version", lambda: None)
    with pytest.raises(MissingDependencyError, match=r"mitsuba is not installed.*pip install 'twinloop\[path\]'"):
        variants.choose_variant()
