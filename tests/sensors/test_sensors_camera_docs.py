"""Check the statements of the page on cameras."""

import re

import numpy as np
import yaml

from support.cameras import CAMERAS, preset
from support.docs_sections import section
from twinloop.sensors.camera import list_stages
from twinloop.sensors.camera.model import CHOICES, QUANTITY_FIELDS, SETTING_FIELDS
from twinloop.twin import load_twin

PAGE = section("guides/sensors.md", "Cameras")


def rows(heading):
    return [line.split("|")[1:-1] for line in PAGE.split(heading)[1].split("\n\n")[0].splitlines()[2:]]


def named(cell):
    return re.findall(r"`([\w:]+)`", cell)


def test_every_camera_stands_in_the_table():
    assert {named(row[0])[0] for row in rows("| device | description |")} == set(CAMERAS)


def test_the_stages_are_those_of_the_page_in_its_order_and_so_is_what_they_take():
    table = rows("| stage | effect | parameters |")
    model = preset("uvc_webcam", dust_count=1.0)
    assert [named(row[0])[0] for row in table[:-1]] == [stage.name for stage in list_stages(model)]
    assert set(named(table[-1][1])) | {"none"} == set(CHOICES["codec"])
    taken = {name for row in table for name in named(row[2])}
    assert taken <= {*QUANTITY_FIELDS, *SETTING_FIELDS}
    elsewhere = {name for name in QUANTITY_FIELDS if name not in taken}
    assert all(f"`{name}`" in PAGE or name == "exposure_time_min" for name in elsewhere), elsewhere


def test_the_pages_twin_can_be_loaded(tmp_path):
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    sensors = yaml.safe_load(block)["sensors"]
    (tmp_path / "my_cameras.yaml").write_text("mine: {kind: camera, description: my own}")
    written = {
        "base": "so101_tabletop",
        "name": "seeing",
        "sensors": {**sensors, "top": {**sensors["top"], "camera": "front"}},
    }
    (tmp_path / "twin.yaml").write_text(yaml.safe_dump(written))
    twin = load_twin(tmp_path / "twin.yaml")
    assert twin.devices["wrist"].settings["mains_hz"].value == 60


def test_the_pages_example_runs():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    scope = {}
    exec(block.replace("480, 640", "48, 64").replace("print", "str"), scope)  # smaller, and silent
    assert scope["images"].shape == (2, 48, 64, 3)
    assert scope["images"].dtype == np.uint8
