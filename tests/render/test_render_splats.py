"""Splats among bodies: projection, occlusion, and their files."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.core.imaging import Intrinsics
from twinloop.render import SceneStates, probe_renderer
from twinloop.render.splats import Splats, read_splats

SIZE, FOVY = 96, 45.0
WORLD = f"""
<mujoco><visual><headlight ambient="1 1 1" diffuse="0 0 0" specular="0 0 0"/></visual><worldbody>
  <camera name="front" pos="0 -1 0" xyaxes="1 0 0 0 0 1" fovy="{FOVY}"/>
  <geom name="wall" type="box" size=".06 .01 .5" pos=".1 0 0" rgba="0 0 1 1"/>
</worldbody></mujoco>
"""
LENS = Intrinsics.from_fovy(np.radians(FOVY), width=SIZE, height=SIZE)
STILL = SceneStates(qpos=np.zeros((1, 0)))


def splat(position: tuple[float, float, float], *, scale: object = 0.02, opacity: float = 0.99) -> Splats:
    return Splats(
        position=np.array([position]),
        rotation=np.array([[1.0, 0.0, 0.0, 0.0]]),
        scale=np.broadcast_to(np.asarray(scale, dtype=float), (1, 3)),
        rgba=np.array([[1.0, 0.0, 0.0, opacity]]),
    )


def seen(splats: Splats | None, channels: tuple[str, ...] = ("rgb",)) -> dict[str, np.ndarray]:
    from twinloop.render.warp import WarpRenderer

    if not probe_renderer("warp").available:
        pytest.skip("renderer warp is not available")
    model = mujoco.MjModel.from_xml_string(WORLD)
    with WarpRenderer(model, height=SIZE, width=SIZE, splats=splats) as renderer:
        return {name: values[0] for name, values in renderer.observe(STILL, channels=channels)["front"].items()}


def pixel(position: tuple[float, float, float]) -> np.ndarray:
    """Where the camera at y = -1 that looks along y sees a point."""
    x, y, z = position
    return LENS.project([x, -z, y + 1.0])


def at(position: tuple[float, float, float], image: np.ndarray) -> np.ndarray:
    return image[tuple(pixel(position).astype(int)[::-1])]


def centre(red: np.ndarray) -> np.ndarray:
    weight = red.astype(float)
    return np.array([(LENS.pixel_centres()[..., axis] * weight).sum() for axis in (0, 1)]) / weight.sum()


@pytest.mark.parametrize("position", [(0.0, 0.0, 0.0), (-0.2, 0.3, 0.15), (-0.1, -0.4, -0.12)])
def test_a_splat_is_seen_where_its_centre_projects(position: tuple[float, float, float]) -> None:
    red = seen(splat(position))["rgb"][..., 0]
    np.testing.assert_allclose(centre(red), pixel(position), atol=0.2)
    assert at(position, red) > 235


def test_its_profile_is_the_gaussian_of_its_standard_deviation() -> None:
    position, scale = (-0.15, 0.0, 0.0), (0.05, 0.01, 0.02)
    red = seen(splat(position, scale=scale))["rgb"][..., 0].astype(float) / 255
    row, column = int(pixel(position)[1]), int(pixel(position)[0])
    for axis, line, at in ((0, red[row], column), (2, red[:, column], row)):
        away = (np.arange(SIZE) + 0.5 - pixel(position)[0 if axis == 0 else 1]) / LENS.fx
        expected = 0.99 * np.exp(-0.5 * (away / scale[axis]) ** 2)
        near = np.abs(np.arange(SIZE) - at) < 2.0 * scale[axis] * LENS.fx
        np.testing.assert_allclose(line[near], expected[near], atol=0.04)


def test_bodies_hide_what_is_behind_them_and_are_hidden_by_what_is_before() -> None:
    behind, before = (0.1, 0.2, 0.0), (0.1, -0.2, 0.0)
    np.testing.assert_allclose(at(behind, seen(splat(behind))["rgb"]), [0, 0, 255], atol=2)
    assert at(before, seen(splat(before))["rgb"])[0] > 240
    half = at(before, seen(splat(before, opacity=0.5))["rgb"]).astype(int)
    np.testing.assert_allclose(half, [127, 0, 127], atol=6)


def test_depth_is_that_of_an_opaque_splat_and_ids_are_those_of_bodies() -> None:
    place = (0.1, -0.3, 0.0)
    out = seen(splat(place, scale=0.1, opacity=0.9999), channels=("depth", "geom", "normal"))
    assert at(place, out["depth"]) == pytest.approx(0.7, abs=2e-3)
    assert at(place, out["geom"]) == 0
    np.testing.assert_allclose(at(place, out["normal"]), [0, 0, -1], atol=1e-6)


def test_a_turned_splat_is_long_along_its_turned_axis() -> None:
    upright = splat((-0.15, 0.0, 0.0), scale=(0.06, 0.01, 0.01))
    turned = upright.transform_splats((-0.15, 0, 0.15), np.array([[0.0, 0, 1], [0, 1, 0], [-1, 0, 0]]))  # x becomes -z
    red = seen(turned)["rgb"][..., 0] > 60
    np.testing.assert_allclose(turned.position, [[-0.15, 0, 0.3]], atol=1e-12)
    assert red.any(axis=1).sum() > 3 * red.any(axis=0).sum()


def test_a_capture_is_scaled_turned_and_moved() -> None:
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    turn *= np.sign(np.linalg.det(turn))
    given = Splats(
        position=rng.normal(size=(5, 3)),
        rotation=rng.normal(size=(5, 4)),
        scale=rng.uniform(0.1, 1, (5, 3)),
        rgba=rng.uniform(0, 1, (5, 4)),
    )
    moved = given.transform_splats([1.0, 2.0, 3.0], turn, scale=0.5)
    np.testing.assert_allclose(moved.position, 0.5 * given.position @ turn.T + [1, 2, 3], atol=1e-12)
    before, after = covariance(given), covariance(moved)
    np.testing.assert_allclose(after, 0.25 * turn @ before @ turn.T, atol=1e-12)


def covariance(splats: Splats) -> np.ndarray:
    matrices = np.empty((len(splats), 9))
    for matrix, quat in zip(matrices, splats.rotation, strict=True):
        mujoco.mju_quat2Mat(matrix, quat)
    matrices = matrices.reshape(-1, 3, 3) * splats.scale[:, None]
    return matrices @ matrices.swapaxes(1, 2)


def write_ply(path: Path, columns: dict[str, np.ndarray], *, head: str = "binary_little_endian 1.0") -> Path:
    table = np.zeros(len(next(iter(columns.values()))), dtype=[(name, "<f4") for name in columns])
    for name, values in columns.items():
        table[name] = values
    lines = ["ply", f"format {head}", "comment by hand", f"element vertex {len(table)}"]
    lines += [*(f"property float {name}" for name in columns), "end_header\n"]
    path.write_bytes("\n".join(lines).encode() + table.tobytes())
    return path


def columns_of(splats: Splats) -> dict[str, np.ndarray]:
    return {
        **{axis: splats.position[:, i] for i, axis in enumerate("xyz")},
        **{f"f_dc_{i}": (splats.rgba[:, i] - 0.5) / 0.28209479 for i in range(3)},
        **{f"f_rest_{i}": np.full(len(splats), 0.3) for i in range(9)},
        "opacity": np.log(splats.rgba[:, 3] / (1 - splats.rgba[:, 3])),
        **{f"scale_{i}": np.log(splats.scale[:, i]) for i in range(3)},
        **{f"rot_{i}": 3.0 * splats.rotation[:, i] for i in range(4)},
    }


def test_a_file_gives_back_what_was_written_in_its_conventions(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    written = Splats(
        position=rng.normal(size=(7, 3)),
        rotation=rng.normal(size=(7, 4)),
        scale=rng.uniform(0.01, 0.1, (7, 3)),
        rgba=rng.uniform(0.05, 0.95, (7, 4)),
    )
    read = read_splats(write_ply(tmp_path / "scene.ply", columns_of(written)))
    for name in ("position", "rotation", "scale", "rgba"):
        np.testing.assert_allclose(getattr(read, name), getattr(written, name), rtol=1e-5, atol=1e-6)


def test_files_that_hold_no_splats_are_refused(tmp_path: Path) -> None:
    columns = columns_of(splat((0, 0, 0)))
    with pytest.raises(InputError, match="is not a PLY file"):
        read_splats(write_text(tmp_path / "a.ply", "solid stl\n"))
    with pytest.raises(InputError, match="not in the PLY format binary_little_endian"):
        read_splats(write_ply(tmp_path / "b.ply", columns, head="ascii 1.0"))
    some = {name: values for name, values in columns.items() if name not in {"opacity", "rot_3"}}
    with pytest.raises(InputError, match=r"has no Gaussian splats, because its vertices have no opacity, rot_3\."):
        read_splats(write_ply(tmp_path / "c.ply", some))
    whole = write_ply(tmp_path / "d.ply", columns).read_bytes()
    (tmp_path / "d.ply").write_bytes(whole[:-4])
    with pytest.raises(InputError, match="is incomplete"):
        read_splats(tmp_path / "d.ply")
    with pytest.raises(InputError, match=r"e\.ply does not exist\. Check the path"):
        read_splats(tmp_path / "e.ply")


def write_text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_splats_that_cannot_be_are_refused() -> None:
    widths = {"position": 3, "rotation": 4, "scale": 3, "rgba": 4}
    good = {name: np.ones((2, width)) for name, width in widths.items()}
    for name, value, message in (
        ("rotation", np.ones((2, 3)), r"rotation of splats has shape \(2, 3\)"),
        ("scale", np.zeros((2, 3)), "must be positive"),
        ("rotation", np.zeros((2, 4)), "must not be zero"),
        ("rgba", np.full((2, 4), np.nan), "not finite"),
    ):
        with pytest.raises(InputError, match=message):
            Splats(**{**good, name: value})
