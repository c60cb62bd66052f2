"""A twin's lidar scans an episode: bodies and device are placed at the time of each beam."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import yaml

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import SeedPath
from twinloop.core.records import Provenance, SimEpisode
from twinloop.rollout.depth import sensor_settings
from twinloop.rollout.episodes import INITIAL_COMMAND, STEP_PARAMS
from twinloop.rollout.lidar import COLUMNS, lidar_model, lidar_scans, reflectivity
from twinloop.rollout.substeps import PhysicsStepper
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.twin import Twin, load_twin

HALF = 2.0  # m, of the room
DEVICES = """
ideal:
  kind: lidar
  description: one ring without a flaw
  settings:
    pattern: {value: spinning, source: test}
    scan_rate: {value: 10.0, source: test}
    cycle: {value: 2.5e-4, source: test}
    elevations: {value: [0.0], source: test}
real:
  base: ideal
  description: the same, noisy and with wide beams
  settings:
    subrays: {value: 5, source: test}
    pulse_length: {value: 1.0, source: test}
  values:
    range_noise: {value: 0.02, source: test}
    angle_noise: {value: 0.001, source: test}
    divergence: {value: 0.01, source: test}
    drop_rate: {value: 0.05, source: test}
"""
ROOM = """
<mujoco>
  <option gravity="0 0 0" timestep="0.002" integrator="implicitfast"/>
  <asset><material name="grey" rgba=".5 .5 .5 1"/></asset>
  <worldbody>
    <geom name="east" type="box" size=".1 2.2 1" pos="2.1 0 0" rgba="1 1 1 1"/>
    <geom name="west" type="box" size=".1 2.2 1" pos="-2.1 0 0" material="grey"/>
    <geom name="north" type="box" size="2.2 .1 1" pos="0 2.1 0" rgba="1 1 1 1"/>
    <geom name="south" type="box" size="2.2 .1 1" pos="0 -2.1 0" rgba="1 1 1 1"/>
    <site name="ceiling" pos="0 0 .5" euler="0 90 0"/>
    <body name="head"><joint name="turn" axis="0 0 1"/><geom name="housing" size=".1" mass="1"/>
      <site name="scanner" pos="0.05 0 0" euler="0 0 90"/></body>
    <body name="cart" pos="1 -1 0"><joint name="slide" type="slide" axis="0 1 0"/>
      <geom name="cart" type="box" size=".1 .1 .3" mass="1"/></body>
  </worldbody>
</mujoco>
"""


@pytest.fixture(scope="module")
def twin(tmp_path_factory) -> Twin:
    folder = tmp_path_factory.mktemp("room")
    (folder / "devices.yaml").write_text(DEVICES)
    (folder / "room.xml").write_text(ROOM)
    spec = {
        "schema": 1,
        "name": "room",
        "model": "room.xml",
        "control_hz": 50,
        "substeps": 10,
        "robot": {"type": "head", "joints": ["turn"], "units": ["rad"], "servo": "sts3215_7v4"},
        "sensors": {
            "scanner": {"device": "devices.yaml:ideal"},
            "noisy": {"device": "devices.yaml:real", "site": "scanner"},
            "hanging": {"device": "devices.yaml:ideal", "site": "ceiling"},
        },
    }
    (folder / "room.yaml").write_text(yaml.safe_dump(spec))
    return load_twin(folder / "room.yaml")


def recorded(twin: Twin, *, turn: float = 0.0, slide: float = 0.0, number: int = 0, steps: int = 10) -> SimEpisode:
    """An episode in which head and cart move at nearly constant speeds."""
    table = twin.table().with_seeds(SeedPath.of(5, [number]))
    initial = InitialState.home(twin, 1)
    qvel = np.zeros((1, twin.model.nv))
    qvel[0, twin.model.joint("turn").dofadr] = turn
    qvel[0, twin.model.joint("slide").dofadr] = slide
    commands = np.zeros((1, steps, twin.model.nu))
    initial = dataclasses.replace(initial, qvel=qvel)
    ran = rollout(open_backend("reference"), twin, table, initial, commands, steps)
    provenance = Provenance(
        source="sim",
        twin=twin.name,
        twin_hash=twin.hash,
        config_hash="",
        params=table.row(0),
        seed_path=(5, number, 0),
        versions={},
        actor="",
        task="",
        units={},
        extra={INITIAL_COMMAND: np.zeros(twin.model.nu).tolist()},
    )
    empty = np.zeros((steps, 1))
    return SimEpisode(
        number=number,
        commands=commands[0],
        states=ran.states[0],
        action=empty,
        observation=empty,
        next_success=np.zeros(steps, bool),
        provenance=provenance,
    )


def columns(table) -> dict[str, np.ndarray]:
    return {name: table[name].to_numpy() for name in table.column_names}


def to_walls(points: np.ndarray) -> np.ndarray:
    """How far points ``(n, 2)`` in the room's axes are off the nearest wall."""
    return np.abs(np.abs(points).max(axis=1) - HALF)


@pytest.fixture(scope="module", params=["mujoco", "embree"])
def engine(request) -> str:
    if request.param == "embree":
        pytest.importorskip("embreex")
    return request.param


def test_a_still_lidar_draws_the_room(twin, engine) -> None:
    table = lidar_scans(twin, recorded(twin), "scanner", caster=engine)
    assert table.column_names == list(COLUMNS)
    got = columns(table)
    # The site is 5 cm forward and looks along y: its x axis is the room's y.
    room = np.stack([0.05 - got["y"], got["x"]], axis=1)
    wall = got["body"] == 0
    assert to_walls(room[wall]).max() < 1e-5
    cart = got["body"] == twin.model.body("cart").id
    assert cart.sum() > 20
    assert np.abs(np.abs(room[cart] - [1, -1]).max(axis=1) - 0.1).max() < 1e-5
    assert set(got["scan"]) == {0, 1}
    assert len(table) == 0.2 / 2.5e-4, "every beam comes back in a closed room"
    np.testing.assert_allclose(np.diff(got["time"]), 2.5e-4, atol=1e-9)
    np.testing.assert_allclose(np.hypot(got["x"], got["y"]), got["range"], rtol=1e-5)
    told = json.loads(table.schema.metadata[b"twinloop"])
    assert told["table"] == "sensors/scanner"
    assert told["device"] == "ideal"


def test_a_lidar_that_hangs_in_the_room_sees_the_room(twin, engine) -> None:
    # Its x axis points down and it turns about the room's x axis: it sees two walls and, below it, the head.
    got = columns(lidar_scans(twin, recorded(twin), "hanging", caster=engine))
    assert set(got["body"]) == {0, twin.model.body("head").id}
    head = got["body"] == twin.model.body("head").id
    assert got["range"][head].min() == pytest.approx(0.4, abs=2e-4)
    np.testing.assert_allclose(np.abs(got["y"][~head]), HALF, atol=1e-5)


def test_a_turning_lidar_sees_the_room_skewed_by_its_rate_times_time(twin, engine) -> None:
    episode = recorded(twin, turn=2.0)
    got = columns(lidar_scans(twin, episode, "scanner", caster=engine))
    angle = PhysicsStepper.of_episode(twin, episode).poses_at(got["time"]).qpos[:, twin.model.joint("turn").qposadr[0]]
    assert angle.max() > 0.05, "the head turned"
    here = np.stack([0.05 - got["y"], got["x"]], axis=1)  # as if the head had stood at 0
    cosine, sine = np.cos(angle), np.sin(angle)
    room = np.stack([cosine * here[:, 0] - sine * here[:, 1], sine * here[:, 0] + cosine * here[:, 1]], axis=1)
    wall = got["body"] == 0
    assert to_walls(here[wall]).max() > 0.03, "taken for one moment, the walls are bent"
    assert to_walls(room[wall]).max() < 1e-5, "each from its own moment, they are straight"


def test_a_moving_thing_is_where_it_was_when_its_beam_was_fired(twin, engine) -> None:
    episode = recorded(twin, slide=1.5)
    got = columns(lidar_scans(twin, episode, "scanner", caster=engine))
    cart = got["body"] == twin.model.body("cart").id
    place = np.interp(got["time"], episode.states[:, 0], episode.states[:, 1 + twin.model.joint("slide").qposadr[0]])
    room = np.stack([0.05 - got["y"], got["x"]], axis=1)[cart]
    middle = np.stack([np.ones(cart.sum()), -1 + place[cart]], axis=1)
    assert np.ptp(place[cart]) > 0.1
    tolerance = 1.5 * 0.002 / 16 + 1e-4 if engine == "mujoco" else 1e-4  # what that engine rounds moments to
    assert np.abs(np.abs(room - middle).max(axis=1) - 0.1).max() < tolerance


def test_intensity_is_reflectivity_times_cosine_over_the_square(twin) -> None:
    got = columns(lidar_scans(twin, recorded(twin), "scanner", caster="mujoco"))
    room = np.stack([0.05 - got["y"], got["x"]], axis=1)
    east = (got["body"] == 0) & (np.abs(room[:, 0] - HALF) < 1e-4)
    west = (got["body"] == 0) & (np.abs(room[:, 0] + HALF) < 1e-4)
    grey = ((0.5 + 0.055) / 1.055) ** 2.4  # linear light of display value 0.5
    for rows, bright, off in ((east, 1.0, 1.95), (west, grey, 2.05)):
        expected = bright * off / got["range"][rows] ** 3  # the cosine is the wall's distance over the ray's
        np.testing.assert_allclose(got["intensity"][rows], expected, rtol=1e-4)
    values = reflectivity(twin.model, {"geom_rgba": np.zeros_like(twin.model.geom_rgba)})
    assert values[twin.model.geom("east").id] == 0.0
    assert values[twin.model.geom("west").id] == pytest.approx(grey), "a material's colour goes before a geom's own"


def test_noise_of_a_twins_lidar_is_what_its_parameters_say(twin) -> None:
    got = columns(lidar_scans(twin, recorded(twin, steps=40), "noisy", caster="mujoco"))
    room = np.stack([0.05 - got["y"], got["x"]], axis=1)
    ahead = (got["body"] == 0) & (np.abs(room[:, 0]) < 0.5) & (room[:, 1] > 1.5)
    cosine = np.cos(np.arctan2(room[ahead, 0] - 0.05, room[ahead, 1]))
    error = got["range"][ahead] - HALF / cosine
    assert ahead.sum() > 200
    assert error.std() == pytest.approx(0.02, rel=0.15)
    assert 1 - len(got["time"]) / (0.8 / 2.5e-4) == pytest.approx(0.05, abs=0.015)


def test_scans_are_the_same_again_and_others_in_another_episode(twin) -> None:
    first, again = (lidar_scans(twin, recorded(twin), "noisy", caster="mujoco") for _ in range(2))
    assert first.equals(again)
    other = lidar_scans(twin, recorded(twin, number=1), "noisy", caster="mujoco")
    assert set(columns(other)["number"]) == {1}
    assert len(other) != len(first) or not np.array_equal(columns(other)["range"], columns(first)["range"])


def test_what_changes_at_every_step_is_read_when_a_scan_begins(twin) -> None:
    episode = recorded(twin)
    bias = np.repeat([0.0, 0.25], 5)[None]  # of ten control steps in two scans
    extra = {**episode.provenance.extra, STEP_PARAMS: {"sensor/scanner/range_bias": bias[0].tolist()}}
    changing = dataclasses.replace(episode, provenance=dataclasses.replace(episode.provenance, extra=extra))
    got, plain = (columns(lidar_scans(twin, one, "scanner", caster="mujoco")) for one in (changing, episode))
    np.testing.assert_allclose(got["range"] - plain["range"], np.where(got["scan"] == 0, 0.0, 0.25), atol=1e-6)


def test_an_episode_of_nothing_has_no_points_but_all_columns(twin) -> None:
    table = lidar_scans(twin, recorded(twin, steps=0), "scanner", caster="mujoco")
    assert len(table) == 0
    assert table.schema.equals(
        lidar_scans(twin, recorded(twin, steps=1), "scanner", caster="mujoco").schema, check_metadata=True
    )


def test_parameters_reach_the_model(twin) -> None:
    table = twin.table(1, {"sensor/noisy/range_bias": 0.125})
    lidar, pattern = lidar_model(twin, table, "noisy")
    assert lidar.range_bias == 0.125
    assert lidar.divergence == 0.01
    assert lidar.spec.subrays == 5
    assert pattern.scan_rate == 10.0


def test_what_is_no_lidar_is_refused(twin) -> None:
    with pytest.raises(UnknownNameError, match="Unknown sensor 'scaner' in twin room. Nearest existing: scanner"):
        lidar_model(twin, twin.table(), "scaner")
    with pytest.raises(InputError, match=r"The sensor noisy of room is of the kind lidar \(real\), and not depth"):
        sensor_settings(twin, "noisy", "depth")
