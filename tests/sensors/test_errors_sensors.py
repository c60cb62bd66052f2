"""Errors in a twin's sensors and their devices are refused by key, before any computation."""

from __future__ import annotations

import pytest
import yaml

from twinloop.core.errors import InputError
from twinloop.rollout.depth import depth_model
from twinloop.twin import load_twin
from twinloop.twin.devices import device_presets

MINE = "my: {kind: camera, description: mine}\n"
PLACES = {"camera": {"camera": "front"}, "depth": {"camera": "front"}, "servo": {}}


def sensor(name="eye", **changes):
    return {"sensors": {name: {"device": "uvc_webcam", "camera": "front", **changes}}}


def settings(**values):
    return sensor(settings=values)


def load(tmp_path, twin):
    file = tmp_path / "twin.yaml"
    file.write_text(yaml.safe_dump({"base": "so101_tabletop", "name": "x", **twin}))
    return load_twin(file)


@pytest.mark.parametrize(
    ("twin", "message"),
    [
        (sensor(""), "'' is not a valid name, because parameters are named sensor/NAME/"),
        (sensor("a/b"), "sensors: 'a/b' is not a valid name"),
        (sensor("elbow_flex"), "sensors.elbow_flex has the name of a joint"),
        (sensor(device="webcam"), "Unknown device 'webcam' in .*sensors.eye. Nearest existing: uvc_webcam"),
        (sensor(camera="frnt"), "Unknown camera 'frnt' in .*sensors.eye. Nearest existing: front"),
        (sensor(site="tcp"), "sensors.eye.site: a device of kind camera is attached to a camera. Remove site"),
        (
            sensor(device="bmi055"),
            "sensors.eye.camera: a device of kind imu is attached to a site. Remove camera, and give `site",
        ),
        (
            sensor(device="sts3215_feedback"),
            "kind servo belongs to the robot and is attached to no element. Remove camera.$",
        ),
        (settings(lens="fish"), "Unknown setting 'lens' in .*sensors.eye. Existing: .*codec"),
        (
            settings(bits="ten"),
            r"sensors.eye.settings.bits must be a whole number, as in the device \(10\); given 'ten'",
        ),
        (settings(bits=9.5), r"settings.bits must be a whole number, as in the device \(10\); given 9.5"),
        (settings(bits=True), r"settings.bits must be a whole number, .*; given True"),
        (
            settings(mains_hz=float("nan")),
            r"settings.mains_hz must be a whole number, as in the device \(50\); given nan",
        ),
        (settings(codec=3), r"settings.codec must be a text, as in the device \('mjpeg'\); given 3"),
        (settings(tone_curve="gamma"), "settings.tone_curve must be a list of numbers, .*; given 'gamma'"),
        (
            {"params": [{"name": "sensor/front/gain", "source": "x", "nominal": -1}]},
            r"sensor/front/gain = -1 .* outside its physical bounds \[1, 256\]",
        ),
    ],
)
def test_a_wrong_sensor_is_named_with_what_would_be_right(tmp_path, twin, message):
    with pytest.raises(InputError, match=message):
        load(tmp_path, twin)


@pytest.mark.parametrize("device", device_presets())
def test_no_setting_of_any_device_takes_a_value_of_another_kind(tmp_path, device):
    preset = device_presets()[device]
    place = PLACES.get(preset.kind, {"site": "tcp"})
    for key, setting in preset.settings.items():
        wrong = 3 if isinstance(setting.value, str) else "rubbish"
        with pytest.raises(InputError, match=rf"sensors.eye.settings.{key} must be (a|true)"):
            load(tmp_path, {"sensors": {"eye": {"device": device, **place, "settings": {key: wrong}}}})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("- a", "holds no devices. Write one mapping per device"),
        (MINE + "eye: {base: my, values: [1]}", r"eye.values is a mapping, `NAME: {value: …, source: …}`; given \[1\]"),
        (MINE + "eye: {base: mine}", "Unknown device 'mine' in .*base of eye. Existing: my"),
        (MINE.replace("}", ", values: {gainn: {value: 1, source: x}}}"), "Unknown camera quantity 'gainn'"),
        (MINE.replace("}", ", values: {gain: {value: 1}}}"), "values.gain.source: This key is required, but missing"),
        (
            MINE.replace("}", ", values: {gain: {value: 1, source: x, range: [2, 1]}}}"),
            r"values.gain: the range must be \[low, high\], given \[2.0, 1.0\]",
        ),
    ],
)
def test_a_wrong_file_of_devices_is_named_with_its_key(tmp_path, rows, message):
    (tmp_path / "mine.yaml").write_text(rows)
    with pytest.raises(InputError, match=message):
        load(tmp_path, sensor(device="mine.yaml:eye"))


@pytest.mark.parametrize("wrong", [{"baseline": -0.05}, {"unit": 0.0}, {"max_depth": 0.0}, {"subpixel": -1}])
def test_a_depth_camera_with_too_small_a_setting_is_refused(tmp_path, wrong):
    twin = load(tmp_path, {"sensors": {"eye": {"device": "d435", "camera": "front", "settings": wrong}}})
    with pytest.raises(InputError, match=f"The device of eye: {next(iter(wrong))} = .* Give a larger value"):
        depth_model(twin, twin.table(), "eye")
