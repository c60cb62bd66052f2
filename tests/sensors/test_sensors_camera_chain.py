"""The whole pipeline from light to images: its order, its two implementations, and its inputs."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cameras import CAMERAS, camera_seeds, preset, scene
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.render import decode_srgb
from twinloop.sensors.camera import CameraModel, CameraPipeline, develop, develop_steps, list_stages
from twinloop.sensors.camera.codec import open_codec
from twinloop.sensors.camera.model import OPTICS_QUANTITIES, QUANTITY_FIELDS
from twinloop.sensors.camera.stages import list_processing_stages, list_sensing_stages
from twinloop.twin import load_twin
from twinloop.twin.devices import device_presets
from twinloop.twin.quantities.sensing import SENSING

EVERYTHING = {"dust_count": 5.0, "ghost": 0.01, "row_noise": 1.0, "codec": "none"}


def seen(model, light, *, numbers=None, compiled=None, seeds=None):
    numbers = np.arange(len(light)) if numbers is None else np.asarray(numbers)
    return CameraPipeline(model, seeds or camera_seeds(), compiled=compiled).develop(
        light, time=numbers / 30.0, numbers=numbers
    )


def test_a_camera_has_the_quantities_that_twins_have_of_it_with_the_same_defaults():
    quantities = {kind.quantity: kind.default for kind in SENSING if kind.device == "camera"}
    assert set(QUANTITY_FIELDS) | set(OPTICS_QUANTITIES) == set(quantities)
    assert {name: getattr(CameraModel(), name) for name in QUANTITY_FIELDS} == {
        name: quantities[name] for name in QUANTITY_FIELDS
    }


def test_an_ideal_camera_is_the_srgb_of_light_to_the_bit():
    levels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, axis=-1)
    assert np.array_equal(seen(CameraModel(), decode_srgb(levels)), levels)
    light = np.random.default_rng(0).uniform(-0.1, 1.3, (1, 200, 200, 3)).astype(np.float32)
    linear = np.clip(light.astype(np.float64), 0, 1)
    display = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    for compiled in (False, None):
        assert np.array_equal(seen(CameraModel(), light, compiled=compiled), np.rint(255 * display).astype(np.uint8))
    assert [stage.name for stage in list_stages(CameraModel())] == ["tone"]


def test_stages_stand_in_the_order_of_light():
    assert [stage.name for stage in list_stages(preset("uvc_webcam", **EVERYTHING))] == [
        *("glare", "vignetting", "dust", "filters", "electrons", "noise", "fixed_pattern", "converter"),
        *("white_balance", "demosaic", "colour", "tone", "sharpening"),
    ]


@settings(deadline=None, max_examples=25)
@given(
    height=st.integers(5, 40),
    width=st.integers(5, 40),
    mosaic=st.sampled_from(["none", "rggb", "bggr", "grbg", "gbrg"]),
    demosaic=st.sampled_from(["bilinear", "malvar"]),
    bits=st.sampled_from([0, 8, 12]),
    base=st.sampled_from(["uvc_webcam", "imx477"]),
    well=st.sampled_from([60.0, 5e3]),
    noise=st.sampled_from([0.0, 1.0]),
    steep=st.floats(0.5, 2.0),
)
def test_machine_code_makes_the_same_image_to_the_bit(height, width, mosaic, demosaic, bits, base, well, noise, steep):
    pytest.importorskip("numba")
    model = preset(base, **EVERYTHING, mosaic=mosaic, demosaic=demosaic, bits=bits, black_level=9.0 if bits else 0.0)
    model = dataclasses.replace(model, full_well=well, noise_scale=noise, contrast=steep, gamma=2.0 - steep / 2.0)
    light = scene(height, width, count=2)
    assert np.array_equal(seen(model, light, compiled=True), seen(model, light, compiled=False))


def test_machine_code_in_bands_of_rows_is_the_same_as_in_one(monkeypatch):
    pytest.importorskip("numba")
    light, model = scene(70, 33), preset("uvc_webcam", **EVERYTHING)
    images = []
    for threads in ("1", "4"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        images.append(seen(model, light, compiled=True))
    assert np.array_equal(*images)


@pytest.mark.parametrize("name", CAMERAS)
def test_every_preset_makes_a_image_of_the_scene(name):
    light, model = scene(120, 160, count=2), preset(name)
    images = seen(model, light)
    assert images.shape == light.shape
    assert images.dtype == np.uint8
    clean = seen(CameraModel(), light)
    for colour in range(3):
        assert np.corrcoef(images[1, ..., colour].ravel(), clean[1, ..., colour].ravel())[0, 1] > 0.93


def test_developing_is_the_stages_one_after_another():
    model, light = preset("uvc_webcam", dust_count=5.0), scene(count=2)
    camera = CameraPipeline(model, camera_seeds(), compiled=False)
    whole = camera.develop(light, time=[0.0, 0.1], numbers=[4, 7])
    by_stage = CameraPipeline(model, camera_seeds())
    shown = list(by_stage.iterate_stages(light, time=[0.0, 0.1], numbers=[4, 7]))
    for image, steps in zip(whole, shown, strict=True):
        assert [name for name, _ in steps] == ["light", *(stage.name for stage in list_stages(model)), "mjpeg"]
        assert all(view.shape == image.shape and view.dtype == np.uint8 for _, view in steps)
        assert np.array_equal(steps[-1][1], image)
    last = develop_steps(light, model, time=[0.0, 0.1], numbers=[4, 7], seeds=camera_seeds())
    assert np.array_equal(dict(last)["mjpeg"], whole[1])
    assert open_codec(model) is not None
    assert [*list_sensing_stages(model), *list_processing_stages(model)] != []


def test_chance_is_a_function_of_the_capture_and_not_of_its_company():
    model = preset("uvc_webcam", exposure="manual", gain=2.0)
    light = scene(count=3)
    together = seen(model, light, numbers=[3, 4, 9])
    alone = seen(model, light[:1], numbers=[9])
    assert np.array_equal(alone[0], together[2])
    assert not np.array_equal(together[0], together[1])


@pytest.mark.parametrize(
    "other", [camera_seeds(4), camera_seeds(run=1), camera_seeds(sensor="wrist")], ids=["episode", "run", "sensor"]
)
def test_every_episode_run_and_sensor_has_chance_of_its_own(other):
    model, light = preset("uvc_webcam", exposure="manual"), scene()
    first, second = seen(model, light).astype(int), seen(model, light, seeds=other).astype(int)
    assert np.mean(first != second) > 0.5
    assert np.array_equal(seen(model, light, seeds=other), second)


def test_a_camera_with_a_serial_number_has_the_same_dust_in_every_run():
    model = CameraModel(dust_count=6.0, dust_radius=0.05, serial="0417")
    first, second = (seen(model, scene(), seeds=camera_seeds(e, run=r)) for e, r in [(0, 0), (4, 9)])
    assert np.array_equal(first, second)
    assert not np.array_equal(first, seen(dataclasses.replace(model, serial="0418"), scene()))


def test_light_stays_as_it_is():
    light = scene(count=2)
    before = light.copy()
    for compiled in (False, None):
        seen(preset("uvc_webcam", **EVERYTHING), light, compiled=compiled)
    assert np.array_equal(light, before)


def test_a_twins_values_become_its_camera(tmp_path):
    (tmp_path / "twin.yaml").write_text(
        "base: so101_tabletop\nname: seeing\n"
        "sensors: {front: {device: uvc_webcam, camera: front, settings: {bits: 8}}}\n"
    )
    twin = load_twin(tmp_path / "twin.yaml")
    values = twin.sensor_values(twin.table(2, {"sensor/front/gain_max": [3.0, 5.0]}), "front")
    cameras = [CameraModel.from_values(values, twin.devices["front"].settings, world=world) for world in (0, 1)]
    assert [camera.gain_max for camera in cameras] == [3.0, 5.0]
    assert cameras[0].bits == 8
    assert cameras[0].full_well == device_presets()["uvc_webcam"].values["full_well"].value
    assert dataclasses.replace(cameras[0], gain_max=5.0) == cameras[1]


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: CameraPipeline(preset("uvc_webcam")), InputError, "but no seeds. Give it CameraSeeds"),
        (lambda: CameraModel(mosaic="rgbg"), UnknownNameError, "Unknown mosaic 'rgbg' in a camera's settings"),
        (lambda: CameraModel(bits=3), InputError, "cannot have 3 bits and a black level of 0. Bits are 4 to 16"),
        (lambda: CameraModel(bits=10, black_level=1023), InputError, "the black level must be below"),
        (lambda: CameraModel(colour_matrix=(1.0,) * 9), InputError, "It must be an invertible 3x3 matrix"),
        (lambda: CameraModel(tone_curve=(0, 0, 1, 0.9)), InputError, "that increase from 0, 0 to 1, 1"),
        (lambda: CameraModel.from_values({"gains": 1.0}, {}), UnknownNameError, "Nearest existing: gain"),
        (lambda: CameraModel.from_values({}, {"mosiac": "rggb"}), UnknownNameError, "Nearest existing: mosaic"),
    ],
)
def test_what_cannot_be_is_refused_with_the_next_step(make, kind, message):
    with pytest.raises(kind) as raised:
        make()
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("model", "light", "message"),
    [
        (CameraModel(), scene()[0], "Light of shape (61, 75, 3) is not an array of images."),
        (CameraModel(mosaic="rggb"), scene()[:, :2], "A mosaic of 75x2 pixels cannot be developed. Both sides"),
        (CameraModel(codec="h264"), scene(), "H.264 cannot encode images of 75x61"),
    ],
)
def test_images_that_a_camera_cannot_deliver_are_refused(model, light, message):
    with pytest.raises(InputError) as raised:
        seen(model, light)
    assert message in str(raised.value)


def test_develop_is_a_camera_used_once():
    light = scene(count=2)
    images = develop(light, preset("imx477"), time=[0, 0.03], numbers=[0, 1], seeds=camera_seeds())
    camera = CameraPipeline(preset("imx477"), camera_seeds())
    assert np.array_equal(images, camera.develop(light, time=[0, 0.03], numbers=[0, 1]))
