"""Check the statements of the page on proprioception."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import yaml

from support.docs_sections import section
from twinloop.generate import read_config
from twinloop.rollout import reading_columns, select_sensors
from twinloop.stats import allan_curve, allan_noise
from twinloop.twin import load_twin
from twinloop.twin.devices import device_presets
from twinloop.twin.quantities.sensing import SENSING

ROOT = Path(__file__).parents[2]
PAGE = section("guides/sensors.md", "Encoders, inertial units and force sensors")
KINDS = {"imu", "force_torque", "servo"}


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_every_device_that_reports_stands_in_the_table():
    known = {name for name, device in device_presets().items() if device.kind in KINDS}
    table = PAGE.split("| device |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == known


def test_every_quantity_that_is_named_exists():
    known = {quantity.quantity for quantity in SENSING if quantity.device in KINDS}
    named = set(
        re.findall(r"`((?:gyro|accel|velocity|current|force|torque)_\w+|crosstalk|hysteresis|room_temperature)`", PAGE)
    )
    assert len(named) > 10
    assert {name.removesuffix("_imu") for name in named} <= known


def test_the_examples_twin_is_the_pages_and_its_columns_are_those_of_the_table(tmp_path):
    written = yaml.safe_load(blocks("yaml")[0])
    example = yaml.safe_load((ROOT / "examples/so101_felt.yaml").read_text())
    assert {key: written[key] for key in ("base", "sensors")} == {key: example[key] for key in ("base", "sensors")}
    twin = load_twin(ROOT / "examples/so101_felt.yaml")
    assert read_config(ROOT / "examples/felt.yaml").file.rollout.sensors == "all"
    names = select_sensors(twin, "all")
    assert set(written["sensors"]) == set(names)
    columns = PAGE.split("| kind | columns |")[1].split("\n\n")[0]
    for name in names:
        row = next(line for line in columns.splitlines() if line.startswith(f"| {twin.devices[name].kind} "))
        said = reading_columns(twin, name)
        for column in re.findall(r"`([\w.]+)`", row):
            assert any(known.endswith(column.removeprefix("JOINT")) for known in said), column
        for unit in said.values():
            assert unit in row


def test_the_allan_example_returns_the_noise_that_was_put_in():
    record = 2e-4 * np.sqrt(200) * np.random.default_rng(0).standard_normal(24_000)
    scope = {"record": record, "allan_curve": allan_curve, "allan_noise": allan_noise}
    code = next(block for block in blocks("python") if "allan_noise" in block)
    exec(code, scope)  # the page's own code
    assert scope["noise"].white.covers(2e-4)
