"""The examples of the page on ranging are read unchanged, and name existing parameters."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from support.docs_sections import section
from twinloop.render import probe_renderer
from twinloop.twin import load_twin
from twinloop.twin.devices import device_presets

PAGE = section("guides/sensors.md", "Depth cameras, lidars and rays")
BUILTIN = Path(load_twin.__code__.co_filename).parent / "builtin" / "so101_tabletop.yaml"


def test_the_table_names_every_ranging_device_and_its_model() -> None:
    rows = re.findall(r"^\| (`.+?`) \| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    shown = {name: model for names, model in rows for name in re.findall(r"`(\w+)`", names)}
    devices = {device.name: device for device in device_presets().values() if device.kind in ("depth", "lidar")}
    own = {
        name: device.settings["model" if device.kind == "depth" else "pattern"].value
        for name, device in devices.items()
    }
    assert shown == own


def test_every_quantity_of_the_page_is_one() -> None:
    known = {name for device in device_presets().values() for name in (*device.values, *device.settings)}
    for name in ("edge_noise", "fattening", "disparity_noise", "amplitude_limit", "edge_limit", "pulse_length"):
        assert f"`{name}`" in PAGE
        assert name in known


def test_a_depth_camera_of_the_page_reads(tmp_path) -> None:
    if not probe_renderer("gl").available:
        pytest.skip("the gl renderer does not work here")
    section = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)[1])["sensors"]
    spec = yaml.safe_load(BUILTIN.read_text())
    spec["model"] = str(BUILTIN.parent / spec["model"])
    spec["sensors"] = {"depth": section["depth"], "near": section["near"]}
    (tmp_path / "twin.yaml").write_text(yaml.safe_dump(spec))
    assert set(load_twin(tmp_path / "twin.yaml").devices) == {"depth", "near"}
    block = next(text for text in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "depth_reading" in text)
    names = {}
    exec(block, names)
    reading, true = names["reading"], names["seen"]["depth"]
    assert reading.counts.shape == (1, 480, 848)
    known = np.isfinite(reading.metres)
    assert known.mean() > 0.6
    assert np.median(np.abs(reading.metres - true)[known] / true[known] ** 2) < 0.005
