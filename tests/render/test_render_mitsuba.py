"""The path tracer agrees with the rasterizer, is repeatable, and refuses unsupported scenes."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from support.scenes import clutter, table_twin
from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.render import SceneStates, decode_srgb, encode_srgb, open_renderer, probe_renderer
from twinloop.render.mitsuba import MitsubaQuality, MitsubaRenderer
from twinloop.render.mitsuba.variants import choose_variant
from twinloop.simulate import InitialState
from twinloop.twin import load_twin
from twinloop.twin.load import builtin_names

pytest.importorskip("mitsuba")
SURFACES = ("geom", "depth", "normal")
QUICK = MitsubaQuality(samples=1, denoise=False)
KINDS = """
<mujoco>
  <visual><headlight ambient=".6 .6 .6" diffuse="0 0 0" specular="0 0 0"/></visual>
  <statistic center="0 0 .3" extent="2"/>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1=".4 .6 .9" rgb2=".1 .1 .2" width="64" height="384"/>
    <texture name="sheet" type="2d" builtin="checker" width="64" height="64"/>
    <texture name="cube" type="cube" builtin="checker" rgb1=".9 .2 .2" rgb2=".2 .2 .9" width="32" height="192"/>
    <material name="plain" rgba=".5 .5 .5 1"/>
    <material name="sheet" texture="sheet" texrepeat="2 1" specular="0"/>
    <material name="uniform" texture="sheet" texrepeat="3 3" texuniform="true" specular="0"/>
    <material name="cube" texture="cube" specular="0"/>
    <mesh name="tent" vertex="-.2 -.2 0 .2 -.2 0 .2 .2 0 -.2 .2 0 0 0 .2"/>
    <mesh name="leaf" vertex="-.2 -.2 0 .2 -.2 0 .2 .2 0 -.2 .2 0 0 0 .1" texcoord="0 0 1 0 1 1 0 1 .5 .5"
          face="0 1 4 1 2 4 2 3 4 3 0 4 1 0 2 0 3 2"/>
    <hfield name="hill" nrow="4" ncol="5" size=".3 .2 .15 .05" elevation="0 0 0 0 0 0 2 1 0 0 0 0 1 3 0 0 0 0 0 0"/>
  </asset>
  <worldbody>
    <light name="key" type="directional" pos="1 -1 2" dir="-.4 .5 -1" diffuse=".6 .6 .6"/>
    <camera name="front" pos="0 -2.4 1.9" xyaxes="1 0 0 0 .6 .8" fovy="50"/>
    <camera name="back" pos="1.4 2.2 1.8" xyaxes="-.84 .54 0 -.35 -.54 .8" fovy="50"/>
    <geom name="floor" type="plane" size="0 0 .1" material="uniform"/>
    <geom name="sheet" type="plane" size=".4 .2 .1" pos="-1 .6 .3" euler="40 0 0" material="sheet"/>
    <geom name="box" type="box" size=".15 .1 .2" pos="-.9 0 .2" material="cube" euler="0 0 20"/>
    <geom name="box2" type="box" size=".15 .15 .2" pos="-.4 0 .2" material="sheet"/>
    <geom name="ball" type="sphere" size=".15" pos=".1 0 .15" material="cube"/>
    <geom name="ball2" type="sphere" size=".15" pos=".6 0 .15" material="sheet"/>
    <geom name="egg" type="ellipsoid" size=".2 .1 .15" pos="1.1 0 .15" material="cube"/>
    <geom name="can" type="cylinder" size=".12 .2" pos="-.9 -.7 .25" material="sheet" euler="30 0 0"/>
    <geom name="pill" type="capsule" size=".1 .15" pos="-.4 -.7 .25" material="sheet" euler="30 20 0"/>
    <geom name="tent" type="mesh" mesh="tent" pos=".1 -.7 .1" material="cube"/>
    <geom name="leaf" type="mesh" mesh="leaf" pos=".7 -.7 .1" material="sheet" euler="20 0 0"/>
    <geom name="hill" type="hfield" hfield="hill" pos=".4 .8 .1" material="plain"/>
    <geom name="glass" type="box" size=".1 .01 .2" pos="1.2 -.6 .2" rgba=".3 .6 .9 .4"/>
    <geom name="hidden" type="box" size=".3 .3 .3" pos="0 -1 .3" group="3"/>
    <geom name="none" type="box" size=".3 .3 .3" pos="0 -1 .3" rgba="1 0 0 0"/>
    <body name="loose" pos="0 .4 .5"><freejoint/><geom name="loose" size=".06" rgba=".9 .9 .9 1"/></body>
  </worldbody>
</mujoco>
"""
QUARTERS = np.array([[[220, 30, 30], [30, 200, 30]], [[30, 30, 220], [230, 220, 30]]], dtype=np.uint8)


@pytest.fixture(scope="module")
def kinds() -> mujoco.MjModel:
    model = mujoco.MjModel.from_xml_string(KINDS)
    start = model.tex_adr[model.texture("sheet").id]
    model.tex_data[start : start + 64 * 64 * 3] = np.kron(QUARTERS, np.ones((32, 32, 1), dtype=np.uint8)).ravel()
    return model


def needs_gl() -> None:
    found = probe_renderer("gl")
    if not found.available:
        pytest.skip(f"renderer gl is not available: {found.detail}; {found.remedy}")


def both(model: mujoco.MjModel, states: SceneStates, channels: tuple[str, ...], height: int = 96, width: int = 128):
    needs_gl()
    with open_renderer("gl", model, height=height, width=width) as rasterizer:
        drawn = rasterizer.observe(states, channels=channels)
    with MitsubaRenderer(model, height=height, width=width, quality=QUICK) as tracer:
        return drawn, tracer.observe(states, channels=channels)


def overlap(one: np.ndarray, other: np.ndarray, least: int = 30) -> float:
    """Mean intersection over union of the ids that have some pixels."""
    counted = [i for i in np.unique(one) if (one == i).sum() >= least]
    return float(np.mean([((one == i) & (other == i)).sum() / ((one == i) | (other == i)).sum() for i in counted]))


@pytest.mark.slow
@pytest.mark.parametrize("name", builtin_names())
def test_it_sees_the_surfaces_that_the_rasterizer_sees(name: str) -> None:
    twin = load_twin(name)
    home = InitialState.home(twin, 1)
    mocap = {"mocap_pos": home.mocap_pos, "mocap_quat": home.mocap_quat} if twin.model.nmocap else {}
    drawn, traced = both(twin.model, SceneStates(qpos=home.qpos, **mocap), SURFACES, 240, 320)
    ious = [overlap(drawn[camera]["geom"], seen["geom"]) for camera, seen in traced.items()]
    assert np.mean(ious) >= 0.97
    for camera, seen in traced.items():
        same = (drawn[camera]["geom"] == seen["geom"]) & (seen["geom"] >= 0)
        assert np.mean(drawn[camera]["geom"] == seen["geom"]) > 0.995
        error = np.abs(drawn[camera]["depth"][same] - seen["depth"][same]) / seen["depth"][same]
        assert np.median(error) < 1e-4
        cosine = np.einsum("pi,pi->p", drawn[camera]["normal"][same], seen["normal"][same])
        assert np.median(cosine) > np.cos(np.radians(1.0))


def test_every_kind_of_geom_is_where_the_rasterizer_has_it(kinds: mujoco.MjModel) -> None:
    drawn, traced = both(kinds, SceneStates(qpos=kinds.qpos0), SURFACES, 180, 240)
    for camera, seen in traced.items():
        ids = seen["geom"]
        assert np.mean(drawn[camera]["geom"] == ids) > 0.99
        assert overlap(drawn[camera]["geom"], ids) > 0.95
        same = (drawn[camera]["geom"] == ids) & (ids >= 0)
        assert np.median(np.abs(drawn[camera]["depth"][same] - seen["depth"][same])) < 1e-4
        assert np.isinf(seen["depth"][ids < 0]).all()
        np.testing.assert_allclose(np.linalg.norm(seen["normal"], axis=-1), ids >= 0, atol=1e-5)
    shown = set(np.unique(np.concatenate([seen["geom"].ravel() for seen in traced.values()])).tolist())
    missing = {kinds.geom(i).name for i in range(kinds.ngeom)} - {kinds.geom(i).name for i in shown if i >= 0}
    assert missing == {"hidden", "none"}


@pytest.mark.slow
def test_textures_lie_as_the_rasterizer_lays_them(kinds: mujoco.MjModel) -> None:
    needs_gl()
    states, images = SceneStates(qpos=kinds.qpos0), []
    with open_renderer("gl", kinds, height=240, width=320) as rasterizer:
        images.append(rasterizer.observe(states, channels=("rgb", "geom")))
    quality = MitsubaQuality(samples=16, denoise=False, max_depth=2)
    with MitsubaRenderer(kinds, height=240, width=320, quality=quality) as tracer:
        images.append(tracer.observe(states, channels=("rgb", "geom")))
    for camera in images[0]:
        ids = images[0][camera]["geom"]
        hues = [np.argmin(seen[camera]["rgb"].astype(int), axis=-1) for seen in images]
        brightest = [np.argmax(seen[camera]["rgb"].astype(int), axis=-1) for seen in images]
        alike = (hues[0] == hues[1]) | (brightest[0] == brightest[1])
        for name in ("sheet", "box", "box2", "ball", "ball2", "egg", "can", "pill", "tent", "leaf"):
            pixels = (ids == kinds.geom(name).id) & (images[1][camera]["geom"] == ids)
            assert pixels.sum() < 150 or np.mean(alike[pixels]) > 0.9, (camera, name)


def test_the_background_is_the_rasterizers(kinds: mujoco.MjModel) -> None:
    needs_gl()
    tilt = np.radians(135.0)  # the classic renderer adds haze just above the horizon
    up = {"cam_quat": np.tile([np.cos(tilt / 2), np.sin(tilt / 2), 0.0, 0.0], (2, 1))}
    states = SceneStates(qpos=kinds.qpos0)
    with open_renderer("gl", kinds, height=48, width=64) as rasterizer:
        drawn = rasterizer.observe(states, up, channels=("rgb", "geom"))["front"]
    with MitsubaRenderer(kinds, height=48, width=64, quality=QUICK) as tracer:
        seen = tracer.observe(states, up, channels=("rgb", "geom"))["front"]
    sky = (seen["geom"] < 0) & (drawn["geom"] < 0)
    assert sky.mean() > 0.3
    assert np.abs(drawn["rgb"].astype(int) - seen["rgb"])[sky].max() <= 2


def test_the_same_again_is_the_same_image_and_a_seed_is_another_noise(kinds: mujoco.MjModel) -> None:
    states = SceneStates(qpos=kinds.qpos0)
    quality = {"samples": 2, "denoise": False}
    images = []
    for seed in (0, 0, 1):
        with MitsubaRenderer(kinds, height=36, width=48, quality=MitsubaQuality(seed=seed, **quality)) as tracer:
            images.append(tracer.observe(states, channels=("linear", "rgb"))["front"])
    np.testing.assert_array_equal(images[0]["linear"], images[1]["linear"])
    assert not np.array_equal(images[0]["linear"], images[2]["linear"])
    np.testing.assert_array_equal(images[0]["rgb"], encode_srgb(images[0]["linear"]))


def test_what_moved_shrank_or_changed_colour_looks_as_if_it_had_always_been_so(kinds: mujoco.MjModel) -> None:
    moved = kinds.qpos0 + np.array([0.3, -0.4, 0.2, 0, 0, 0, 0])
    size = kinds.geom_size * np.where(np.arange(kinds.ngeom) == kinds.geom("ball").id, 1.3, 1.0)[:, None]
    fields = {
        "geom_size": size,
        "mat_rgba": kinds.mat_rgba * [0.5, 0.8, 0.2, 1],
        "light_dir": np.array([[0.3, 0.2, -1]]) / np.linalg.norm([0.3, 0.2, -1]),
        "light_diffuse": np.array([[0.9, 0.2, 0.2]]),
        "mat_roughness": np.full(kinds.nmat, 0.3),
        "cam_fovy": np.array([40.0, 60.0]),
    }
    with MitsubaRenderer(kinds, height=36, width=48, quality=QUICK) as tracer:
        tracer.observe(SceneStates(qpos=kinds.qpos0), channels=("linear", *SURFACES))
        after = tracer.observe(SceneStates(qpos=moved), fields, channels=("linear", *SURFACES))
    with MitsubaRenderer(kinds, height=36, width=48, quality=QUICK) as tracer:
        alone = tracer.observe(SceneStates(qpos=moved), fields, channels=("linear", *SURFACES))
    for camera, seen in alone.items():
        for channel, values in seen.items():
            np.testing.assert_array_equal(after[camera][channel], values, err_msg=f"{camera} {channel}")


def test_things_of_a_scene_come_go_and_change_their_shape(tmp_path: Path) -> None:
    needs_gl()
    twin = table_twin(tmp_path, clutter(3))
    values = {f"scene/stuff_{i}/shape": np.array([i, 2.0 + i, 5.0 - i]) for i in range(3)}
    fields = twin.fields(twin.table(3, {"scene/stuff/count": np.array([0.0, 3.0, 2.0]), **values})).arrays
    home = InitialState.home(twin, 1).qpos[0].copy()
    for i, place in enumerate(twin.scene.qpos):
        home[place : place + 3] = [0.0, 0.15 * (i - 1), 0.08]
    states = SceneStates(qpos=np.tile(home, (3, 1)))
    with open_renderer("gl", twin.model, height=120, width=160) as rasterizer:
        drawn = rasterizer.observe(states, fields, channels=("geom",))["eye"]["geom"]
    with MitsubaRenderer(twin.model, height=120, width=160, quality=QUICK) as tracer:
        traced = tracer.observe(states, fields, channels=("geom",))["eye"]["geom"]
    assert [len(np.unique(ids)) for ids in traced] == [len(np.unique(ids)) for ids in drawn]
    assert np.mean(drawn == traced) > 0.98


@pytest.mark.parametrize("variant", ["scalar", "llvm"])
def test_variants_see_the_same_surfaces(kinds: mujoco.MjModel, variant: str) -> None:
    try:
        choose_variant(variant)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    states = SceneStates(qpos=kinds.qpos0)
    seen = []
    for one in (variant, "scalar"):
        quality = MitsubaQuality(samples=1, denoise=False, variant=one)
        with MitsubaRenderer(kinds, height=36, width=48, cameras=["front"], quality=quality) as tracer:
            assert tracer.variant == one
            seen.append(tracer.observe(states, channels=SURFACES)["front"])
    assert np.mean(seen[0]["geom"] == seen[1]["geom"]) > 0.999
    same = (seen[0]["geom"] == seen[1]["geom"]) & (seen[0]["geom"] >= 0)
    np.testing.assert_allclose(seen[0]["depth"][same], seen[1]["depth"][same], atol=1e-4)


@pytest.mark.slow
def test_denoising_brings_few_samples_near_to_many() -> None:
    pytest.importorskip("pyoidn")
    model, images = load_twin("so101_tabletop").model, {}
    for samples, denoise in ((256, False), (8, False), (8, True)):
        quality = MitsubaQuality(samples=samples, denoise=denoise)
        with MitsubaRenderer(model, height=120, width=160, cameras=["front"], quality=quality) as tracer:
            light = tracer.observe(SceneStates(qpos=model.key_qpos[0]), channels=("rgb",))["front"]["rgb"]
            images[samples, denoise] = light.astype(float)
    many = images[256, False]
    noisy, cleaned = (10 * np.log10(255**2 / np.mean((images[8, denoise] - many) ** 2)) for denoise in (False, True))
    assert cleaned > noisy + 3.0
    assert cleaned > 30.0


def test_what_cannot_be_done_is_said(kinds: mujoco.MjModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="An image of 0 samples per pixel is impossible. Use at least 1"):
        MitsubaQuality(samples=0)
    with pytest.raises(InputError, match="Paths of at most 0 segments carry no light"):
        MitsubaQuality(max_depth=0)
    with pytest.raises(
        UnknownNameError, match=r"Unknown variant 'lvm' in the mitsuba renderer\. Nearest existing: llvm"
    ):
        MitsubaRenderer(kinds, quality=MitsubaQuality(variant="lvm"))
    with pytest.raises(InputError, match="An image of 0×320 pixels is impossible"):
        MitsubaRenderer(kinds, height=0)
    closed = MitsubaRenderer(kinds, height=8, width=8, quality=QUICK)
    closed.close()
    closed.close()
    with pytest.raises(InputError, match="This renderer was closed"):
        closed.render(SceneStates(qpos=kinds.qpos0))
    monkeypatch.setattr("twinloop.render.mitsuba.renderer.can_denoise", lambda: False)
    assert not MitsubaRenderer(kinds, height=8, width=8)._denoises
    with pytest.raises(MissingDependencyError, match=r"Denoising needs pyoidn\. .*pip install 'twinloop\[path\]'"):
        MitsubaRenderer(kinds, quality=MitsubaQuality(denoise=True))


def test_a_texture_that_is_no_image_and_a_lens_of_two_scales_are_refused() -> None:
    spec = mujoco.MjSpec.from_string(
        """<mujoco><worldbody>
             <camera name="wide" resolution="64 64" sensorsize=".004 .003" focal=".003 .003"/>
             <geom name="ball" size="1" pos="0 0 -3"/>
           </worldbody></mujoco>"""
    )
    model = spec.compile()
    with (
        MitsubaRenderer(model, height=64, width=64, quality=QUICK) as tracer,
        pytest.raises(InputError, match="square pixels only; this camera's focal lengths are 48 and 64 pixels"),
    ):
        tracer.render(SceneStates(qpos=model.qpos0))
    texture = spec.add_texture(name="flow", type=mujoco.mjtTexture.mjTEXTURE_2D, width=4, height=4, nchannel=2)
    texture.data = bytes(32)
    material = spec.add_material(name="flow")
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = texture.name
    spec.geom("ball").material = "flow"
    model = spec.compile()
    with (
        MitsubaRenderer(model, height=48, width=64, quality=QUICK) as tracer,
        pytest.raises(InputError, match="The texture flow is not an image: 4×4 pixels of 2 channels"),
    ):
        tracer.render(SceneStates(qpos=model.qpos0))


def test_without_the_package_the_command_is_named(kinds: mujoco.MjModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mitsuba", None)
    with pytest.raises(MissingDependencyError, match=r"needs mitsuba .*To add it: pip install 'twinloop\[path\]'"):
        open_renderer("mitsuba", kinds)


def test_a_colour_decodes_and_encodes() -> None:
    values = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(encode_srgb(decode_srgb(values)), values)
