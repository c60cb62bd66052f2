"""A twin's depth camera reads the renderer's depth with the errors of its device and parameters."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import yaml

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.imaging import Intrinsics
from twinloop.core.params import SeedPath
from twinloop.render import protocol as light
from twinloop.rollout.depth import DEPTH_CHANNELS, depth_model, depth_reading
from twinloop.sensors.depth import StereoDepth, StructuredLightDepth, TimeOfFlightDepth
from twinloop.twin import Twin, load_twin
from twinloop.twin.devices import DeviceSetting

PINHOLE = Intrinsics(fx=400.0, fy=400.0, cx=80.0, cy=30.0, width=160, height=60)
SCENE = """
<mujoco>
  <asset><material name="mirror" reflectance="1"/><material name="matt" reflectance="0"/></asset>
  <worldbody>
    <camera name="eye" pos="0 0 1"/>
    <geom name="mirror" type="box" size=".1 .1 .1" material="mirror"/>
    <geom name="matt" type="box" size=".1 .1 .1" pos="1 0 0" material="matt"/>
    <geom name="bare" type="box" size=".1 .1 .1" pos="2 0 0"/>
  </worldbody>
</mujoco>
"""
KINDS = {"d435": StereoDepth, "kinect_v1": StructuredLightDepth, "azure_kinect": TimeOfFlightDepth}


@pytest.fixture(scope="module")
def twin(tmp_path_factory) -> Twin:
    folder: Path = tmp_path_factory.mktemp("eyes")
    (folder / "eyes.xml").write_text(SCENE)
    sensors = {name: {"device": name, "camera": "eye"} for name in KINDS}
    sensors["wide"] = {"device": "d435", "camera": "eye", "settings": {"baseline": 0.1, "correlation": 0.0}}
    spec = {"schema": 1, "name": "eyes", "model": "eyes.xml", "control_hz": 10, "substeps": 1, "sensors": sensors}
    (folder / "eyes.yaml").write_text(yaml.safe_dump(spec))
    return load_twin(folder / "eyes.yaml")


def seeded(twin: Twin, episodes, values=None):
    return twin.table(len(episodes), values).with_seeds(SeedPath.of(3, episodes))


def view(count: int = 1, depth: float = 1.0, geom: int = 2) -> dict[str, np.ndarray]:
    """What a renderer sees of a white wall."""
    shape = (count, PINHOLE.height, PINHOLE.width)
    return {
        "depth": np.full(shape, depth, dtype=np.float32),
        "normal": np.broadcast_to(np.float32([0, 0, -1]), (*shape, 3)),
        "linear": np.ones((*shape, 3), dtype=np.float32),
        "geom": np.full(shape, geom, dtype=np.int32),
    }


@pytest.mark.parametrize(("device", "kind"), KINDS.items())
def test_devices_become_the_models_that_they_name(twin, device, kind) -> None:
    assert isinstance(depth_model(twin, twin.table(), device), kind)
    reading = depth_reading(twin, seeded(twin, [0]), device, view(), PINHOLE, frames=[0])
    assert reading.counts.shape == (1, 60, 160)
    assert reading.unit == 0.001
    middle = reading.metres[:, 20:40, 80:150]
    assert np.nanmean(middle) == pytest.approx(1.0, abs=0.003)
    assert np.isfinite(middle).mean() > 0.95
    assert set(view()) == set(DEPTH_CHANNELS)


@pytest.mark.parametrize("distance", [1.0, 2.0, 3.0])
def test_a_kinect_errs_as_it_was_measured_to(twin, distance) -> None:
    # Khoshelham and Elberink (Sensors 2012): 1.425 mm z² on planes, rounding included.
    pinhole = dataclasses.replace(PINHOLE, fx=585.6, fy=585.6)
    seen = view(8)
    seen["depth"] = np.broadcast_to(np.linspace(0.98, 1.02, 160) * distance, seen["depth"].shape)
    table = seeded(twin, [0], {"sensor/kinect_v1/edge_noise": 0.0})
    reading = depth_reading(twin, table, "kinect_v1", seen, pinhole, frames=range(8))
    assert np.nanstd(reading.metres - seen["depth"]) == pytest.approx(1.425e-3 * distance**2, rel=0.07)


def test_settings_and_parameters_of_a_twin_go_before_the_devices(twin) -> None:
    assert depth_model(twin, twin.table(), "wide").spec.baseline == 0.1
    assert depth_model(twin, twin.table(), "d435").spec.baseline == 0.05
    table = seeded(twin, [4], {"sensor/wide/disparity_noise": 0.2, "sensor/wide/edge_noise": 0.0})
    settings = twin.devices["wide"].settings | {"subpixel": DeviceSetting(value=0, source="test")}
    smooth = dataclasses.replace(
        twin, devices={**twin.devices, "wide": twin.devices["wide"].model_copy(update={"settings": settings})}
    )
    reading = depth_reading(smooth, table, "wide", view(depth=2.0), PINHOLE, frames=[0])
    assert np.nanstd(reading.metres) == pytest.approx(4.0 * 0.2 / (PINHOLE.fx * 0.1), rel=0.05)


def test_a_reading_is_a_function_of_run_episode_sensor_and_frame(twin) -> None:
    table = seeded(twin, [7, 7, 8])
    together = depth_reading(twin, table, "d435", view(3), PINHOLE, frames=[0, 1, 1]).counts
    assert not np.array_equal(together[0], together[1])
    assert not np.array_equal(together[1], together[2])
    for row, (episode, frame) in enumerate([(7, 0), (7, 1), (8, 1)]):
        alone = depth_reading(twin, seeded(twin, [episode]), "d435", view(), PINHOLE, frames=[frame])
        np.testing.assert_array_equal(alone.counts[0], together[row])
    one_row = depth_reading(twin, seeded(twin, [7]), "d435", view(2), PINHOLE, frames=[0, 1]).counts
    np.testing.assert_array_equal(one_row, together[:2])
    again = SeedPath.of(3, [7], attempts=1)
    assert not np.array_equal(
        depth_reading(twin, twin.table().with_seeds(again), "d435", view(), PINHOLE, frames=[0]).counts[0], together[0]
    )


def test_rows_of_many_worlds_have_each_their_own_device(twin) -> None:
    table = seeded(twin, [0, 1], {"sensor/azure_kinect/range_bias": [0.0, 0.1]})
    reading = depth_reading(twin, table, "azure_kinect", view(2), PINHOLE, frames=[0, 0])
    assert np.diff(np.nanmean(reading.metres, axis=(1, 2)))[0] == pytest.approx(0.1, abs=0.002)


def test_what_changes_at_every_step_is_read_at_the_frames_step(twin) -> None:
    name = "sensor/azure_kinect/range_bias"
    table = seeded(twin, [0]).with_steps({name: np.array([[0.0, 0.1, 0.2]])})
    reading = depth_reading(twin, table, "azure_kinect", view(3), PINHOLE, frames=[0, 2, 1])
    levels = np.nanmean(reading.metres, axis=(1, 2))
    np.testing.assert_allclose(levels - levels[0], [0.0, 0.2, 0.1], atol=0.002)


def test_mirrors_and_the_dark_are_lost(twin) -> None:
    names = ("mirror", "matt", "bare")
    table = seeded(twin, [0], {"sensor/d435/specular_dropout": 1.0})
    lost = {}
    for name in names:
        seen = view(geom=twin.model.geom(name).id)
        lost[name] = (depth_reading(twin, table, "d435", seen, PINHOLE, frames=[0]).counts[..., 40:] == 0).mean()
    assert lost["mirror"] == 1.0
    assert lost["matt"] == lost["bare"] < 0.05
    dark = view()
    dark["rgb"] = light.encode_srgb(dark.pop("linear") * 0.002)
    assert (depth_reading(twin, table, "d435", dark, PINHOLE, frames=[0]).counts[..., 40:] == 0).mean() > 0.6
    depth_only = {"depth": view()["depth"]}
    told_nothing = depth_reading(twin, table, "d435", depth_only, PINHOLE, frames=[0]).counts[..., 40:]
    assert told_nothing.all(), "what is not known is not lost"


def test_what_cannot_be_read_is_refused(twin) -> None:
    table = seeded(twin, [0])
    with pytest.raises(UnknownNameError, match="Unknown sensor 'd345' in twin eyes. Nearest existing: d435"):
        depth_reading(twin, table, "d345", view(), PINHOLE, frames=[0])
    with pytest.raises(InputError, match="needs the channel depth, but was given geom"):
        depth_reading(twin, table, "d435", {"geom": view()["geom"]}, PINHOLE, frames=[0])
    with pytest.raises(InputError, match="1 frame numbers and 2 rows of parameters for 3 images"):
        depth_reading(twin, seeded(twin, [0, 1]), "d435", view(3), PINHOLE, frames=[0])
    with pytest.raises(InputError, match="Noise and losses of d435 happen by chance"):
        depth_reading(twin, twin.table(), "d435", view(), PINHOLE, frames=[0])
