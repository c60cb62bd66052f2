"""Sensing devices of a twin: presets, a user's file, parameters, and refusals."""

import numpy as np
import pytest

from twinloop.core.errors import InputError, TwinloopError
from twinloop.twin import load_twin
from twinloop.twin.devices import device_presets, read_devices
from twinloop.twin.quantities import QUANTITIES
from twinloop.twin.quantities.sensing import SENSING

OWN = """
base_camera:
  kind: camera
  description: a camera of one's own
  settings: {codec: {value: mjpeg, source: mine}}
  values: {latency: {value: 0.05, source: "measured with an LED", range: [0.04, 0.06]}}
slow_camera:
  base: base_camera
  values: {latency: {value: 0.2, source: "measured with an LED"}}
"""


def twin_with(folder, sensors, more=""):
    file = folder / "twin.yaml"
    file.write_text(f"base: so101_tabletop\nname: sensing\nsensors: {sensors}\n{more}")
    return load_twin(file)


def test_every_number_of_every_device_has_a_source_and_lies_in_its_bounds():
    bounds = {(kind.device, kind.quantity): kind for kind in SENSING}
    assert device_presets()
    for device in device_presets().values():
        assert device.description
        assert all(len(setting.source) > 8 for setting in device.settings.values()), device.name
        for name, rated in device.values.items():
            kind = bounds[device.kind, name]
            assert len(rated.source) > 8, f"{device.name}.{name}"
            assert kind.low <= rated.value <= kind.high, f"{device.name}.{name}"


def test_no_quantity_of_a_device_is_named_as_one_of_the_joint_encoders_is():
    encoders = {kind.quantity for kind in QUANTITIES if kind.family == "sensor" and not kind.device}
    assert not encoders & {kind.quantity for kind in SENSING}


def test_a_device_of_ones_own_gives_nominals_ranges_and_sources(tmp_path):
    (tmp_path / "mine.yaml").write_text(OWN)
    twin = twin_with(tmp_path, "{front: {device: mine.yaml}, wrist: {device: 'mine.yaml:slow_camera'}}")
    param = twin.params["sensor/front/latency"]
    assert (param.nominal, param.default_range) == (0.05, (0.04, 0.06))
    assert param.source == "measured with an LED"
    assert twin.params["sensor/wrist/latency"].nominal == 0.2
    assert twin.devices["wrist"].settings["codec"].value == "mjpeg"
    values = twin.sensor_values(twin.table(3, {"sensor/front/latency": [0.0, 0.1, 0.2]}), "front")
    assert values["latency"].tolist() == [0.0, 0.1, 0.2]
    assert set(values) == {kind.quantity for kind in SENSING if kind.device == "camera"}


def test_the_twins_yaml_has_the_last_word_on_a_sensors_parameters(tmp_path):
    (tmp_path / "mine.yaml").write_text(OWN)
    line = 'params: [{name: sensor/front/latency, nominal: 0.11, range: [0.1, 0.12], source: "our lab"}]'
    twin = twin_with(tmp_path, "{front: {device: mine.yaml}}", line)
    assert twin.params["sensor/front/latency"].nominal == 0.11
    assert np.all(twin.table(2)["sensor/front/latency"] == 0.11)


def test_a_twins_sensors_are_added_to_those_of_its_base_and_null_takes_one_away(tmp_path):
    first = tmp_path / "first.yaml"
    first.write_text(
        "base: so101_tabletop\nname: a\nsensors: {felt: {device: bmi055, site: tcp}, front: null, wrist: null}\n"
    )
    second = tmp_path / "second.yaml"
    second.write_text("base: first.yaml\nname: b\nsensors: {servos: {device: sts3215_feedback}}\n")
    assert list(load_twin(first).devices) == ["felt"]
    assert list(load_twin(second).devices) == ["felt", "servos"]
    second.write_text("base: first.yaml\nname: b\nsensors: {felt: {device: adis16448, site: tcp}}\n")
    assert load_twin(second).devices["felt"].name == "adis16448"


def test_what_a_device_says_is_part_of_the_twins_hash_and_none_leaves_it_as_it_was(tmp_path):
    (tmp_path / "mine.yaml").write_text(OWN)
    first = twin_with(tmp_path, "{front: {device: mine.yaml}}").hash
    (tmp_path / "mine.yaml").write_text(OWN.replace("0.05", "0.06"))
    assert twin_with(tmp_path, "{front: {device: mine.yaml}}").hash != first
    plain = tmp_path / "plain.yaml"
    plain.write_text("base: double_pendulum\n")
    assert load_twin(plain).hash == load_twin("double_pendulum").hash


@pytest.mark.parametrize(
    ("sensors", "message"),
    [
        ("{front: {device: uvc_webcan}}", "Unknown device 'uvc_webcan'"),
        ("{front: {device: nowhere.yaml}}", "Unknown device 'nowhere.yaml'"),
        ("{front: {device: mine.yaml:base}}", "Unknown device 'base'"),
        ("{frnt: {device: mine.yaml}}", "Unknown camera 'frnt'"),
        ("{eye: {device: mine.yaml, camera: frnt}}", "Unknown camera 'frnt'"),
        ("{gripper: {device: mine.yaml}}", "has the name of a joint"),
        ("{front: {device: mine.yaml, settings: {codek: h264}}}", "Unknown setting 'codek'"),
        ("{front: {devise: mine.yaml}}", "Nearest existing: device"),
    ],
)
def test_a_sensor_that_cannot_be_is_refused(tmp_path, sensors, message):
    (tmp_path / "mine.yaml").write_text(OWN)
    with pytest.raises(TwinloopError, match=message):
        twin_with(tmp_path, sensors)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "holds no devices"),
        ("x: {kind: camera}", "description"),
        ("x: {kind: radar, description: y}", "radar"),
        ("x: {kind: camera, description: y, values: {latensy: {value: 1, source: mine}}}", "Unknown camera quantity"),
        ("x: {base: y}", "Unknown device 'y'"),
        ("x: {base: y}\ny: {base: x}", "Unknown device 'x'"),
    ],
)
def test_a_device_file_that_is_wrong_is_refused_by_name(tmp_path, text, message):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_devices(file)
