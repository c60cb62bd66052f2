"""A twin's camera before a world whose motion is known in closed form: where and when each row sees what."""

from __future__ import annotations

import gc
import itertools

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import SeedPath
from twinloop.render import SceneStates, open_renderer, probe_renderer
from twinloop.render.cameras import intrinsics
from twinloop.rollout.actor import EpisodeStart
from twinloop.rollout.camera import TwinCamera, camera_sensors
from twinloop.rollout.camera_captures import CameraCaptures, ImageMotion, MovingWorld, count_subframes
from twinloop.rollout.world_camera import WorldCamera
from twinloop.simulate.protocol import STATE_SPEC, state_columns
from twinloop.twin import load_twin
from twinloop.twin.places import Scenery
from twinloop.twin.spec import SensorSpec
from twinloop.twin.variant import add_twin_sensors

pytestmark = pytest.mark.skipif(not probe_renderer("gl").available, reason="renderer gl is not available")
HEIGHT, WIDTH = 240, 320
STEP = 1 / 30
TWIN = """
schema: 1
name: rail
model: rail.xml
control_hz: 30
substeps: 2
cameras: [front]
sensors:
  front: {device: devices.yaml:plain}
  lidar: {device: mid360}
"""
MODEL = """
<mujoco>
  <option gravity="0 0 0"/>
  <visual><headlight ambient="0.9 0.9 0.9" diffuse="0 0 0" specular="0 0 0"/></visual>
  <worldbody>
    <camera name="front" pos="0 -1 0" xyaxes="1 0 0 0 0 1" fovy="60"/>
    <site name="lidar"/>
    <geom type="plane" pos="0 1 0" zaxis="0 -1 0" size="9 9 1" rgba="0.1 0.1 0.1 1"/>
    <body><joint name="slide" type="slide" axis="1 0 0"/>
      <geom name="bar" type="box" size="0.04 0.001 2" rgba="1 1 1 1"/></body>
  </worldbody>
</mujoco>
"""
PLAIN = "plain: {kind: camera, description: nothing but what is said, values: {%s}}"


@pytest.fixture(scope="module")
def rail(tmp_path_factory):
    """A twin whose camera is a device of these values."""
    folder = tmp_path_factory.mktemp("rail")
    (folder / "rail.xml").write_text(MODEL)

    def make(**values: float):
        rows = ", ".join(f"{name}: {{value: {value}, source: test}}" for name, value in values.items())
        (folder / "devices.yaml").write_text(PLAIN % rows)
        (folder / "rail.yaml").write_text(TWIN)
        return load_twin(folder / "rail.yaml")

    return make


@pytest.fixture(scope="module")
def draw():
    """Light of any view by gl; renderers are kept by size."""
    opened = {}

    def drawing(twin, camera):
        size = (camera.view.height, camera.view.width)
        if size not in opened:
            opened[size] = open_renderer("gl", twin.model, height=size[0], width=size[1])
        return lambda states, fields: opened[size].observe(states, fields, channels=("linear",))["front"]["linear"]

    yield drawing
    for renderer in opened.values():
        renderer.close()


def sliding(twin, speed: float, steps: int = 20) -> MovingWorld:
    """The bar passes the middle at time 1/3 s with a speed in m/s."""
    return MovingWorld(
        model=twin.model,
        time=np.arange(steps) * STEP,
        poses=lambda times: SceneStates(qpos=speed * (times - 1 / 3)[:, None]),
        fields=lambda steps: {},
    )


def seen(rail, draw, speed=0.0, *, most=16, **values):
    twin = rail(**values)
    table = twin.table(1).with_seeds(SeedPath.of(7, [3]))
    camera = TwinCamera.of(twin, table, "front", height=HEIGHT, width=WIDTH)
    return CameraCaptures(camera, sliding(twin, speed), draw(twin, camera), most=most)


def focal() -> float:
    return HEIGHT / 2 / np.tan(np.radians(30))


def centres(light) -> np.ndarray:
    """Position of the bar in each row, in pixels."""
    grey = light[..., 1] - light[..., 1].min()
    return (grey * (np.arange(WIDTH) + 0.5)).sum(axis=1) / grey.sum(axis=1)


def test_an_ideal_camera_shows_what_is_rendered_to_the_bit(rail, draw):
    shots = seen(rail, draw, 0.5)
    twin = shots.camera
    assert twin.view == twin.target
    with open_renderer("gl", shots.world.model, height=HEIGHT, width=WIDTH) as renderer:
        clean = renderer.render(shots.world.poses(shots.world.time))["front"]
    np.testing.assert_array_equal(shots.take_images(range(20)), clean)


def test_a_image_is_as_old_as_its_latency(rail, draw):
    fresh, late = seen(rail, draw, 0.5), seen(rail, draw, 0.5, latency=3 * STEP)
    shown = late.take_images(range(12))
    np.testing.assert_array_equal(shown[3:], fresh.take_images(range(12))[:9])
    np.testing.assert_array_equal(shown[:3], shown[[3, 3, 3]], "before, the first picture stands")


def test_a_camera_of_its_own_rate_shows_each_image_as_often_as_it_stands(rail, draw):
    shots = seen(rail, draw, 0.5, frame_rate=10.0)
    images = shots.take_images(range(12))
    same = [bool((one == next_).all()) for one, next_ in itertools.pairwise(images)]
    assert same == [one == next_ for one, next_ in itertools.pairwise(shots.captures.number[0, :12])]
    assert 7 <= sum(same) <= 9


@pytest.mark.parametrize("speed", [3.0, -5.0])
def test_a_rolling_shutter_skews_a_bar_by_speed_times_readout(rail, draw, speed):
    readout = 0.03
    light = seen(rail, draw, speed, readout=readout).render_light(1 / 3)
    slope, offset = np.polyfit(np.arange(HEIGHT) + 0.0, centres(light), 1)
    assert slope * HEIGHT == pytest.approx(speed * readout * focal() / 0.999, rel=0.05)
    assert slope * HEIGHT / 2 + offset == pytest.approx(WIDTH / 2, abs=0.2), "the middle row's time is the picture's"


def test_a_global_shutter_smears_a_bar_over_speed_times_exposure(rail, draw):
    """The mean square width of a bar w smeared over s is (w² + s²) / 12."""
    still = seen(rail, draw, 0.0).render_light(1 / 3)
    moved = seen(rail, draw, 4.0, exposure_time=0.04).render_light(1 / 3)

    def spread(light):
        grey = light[HEIGHT // 2, :, 1] - light[..., 1].min()
        place = np.arange(WIDTH) + 0.5
        middle = (grey * place).sum() / grey.sum()
        return (grey * (place - middle) ** 2).sum() / grey.sum()

    smear = 4.0 * 0.04 * focal() / 0.999
    assert 12 * (spread(moved) - spread(still)) == pytest.approx(smear**2, rel=0.1)
    bright = moved[..., 1] - moved[..., 1].min()
    white = still[..., 1].max() - still[..., 1].min()
    width = 0.08 * focal() / 0.999
    assert bright.sum() / HEIGHT == pytest.approx(width * white, rel=0.01), "no light is lost or won"


def test_one_look_shows_neither(rail, draw):
    sharp = seen(rail, draw, 0.9).render_light(1 / 3)
    single = seen(rail, draw, 0.9, most=1, exposure_time=0.04, readout=0.03).render_light(1 / 3)
    np.testing.assert_array_equal(sharp, single)


def test_a_lens_bends_the_bar_as_its_formula_says_and_leaves_no_corner_empty(rail, draw):
    bend = {"lens_k1": -0.28, "lens_k2": 0.08, "lens_p1": 0.003}
    shots = seen(rail, draw, 0.9, most=1, **bend)
    assert shots.camera.view.width > WIDTH
    light = shots.render_light(1 / 3 + 0.2)  # 0.18 m to the right
    assert light.min() > 0.0
    edges = shots.camera.lens
    for row in (8, HEIGHT // 2, HEIGHT - 8):
        (bright,) = np.nonzero(light[row, :, 1] > 0.3)
        middle = 0.5 * (bright[0] + bright[-1] + 1)
        height = np.linspace(-1, 1, 2001)
        ideal = np.stack([np.full(2001, 0.18 / 0.999), height], axis=-1)
        landed = edges.distort(ideal) * focal() + [WIDTH / 2, HEIGHT / 2]
        expected = np.interp(row + 0.5, landed[:, 1], landed[:, 0])
        assert middle == pytest.approx(expected, abs=0.75)


def test_what_happens_by_chance_depends_on_world_and_capture_alone(rail, draw):
    values = {"noise_scale": 1.0, "read_noise": 30.0, "drop_rate": 0.3, "exposure_time": 0.01}
    one, other = seen(rail, draw, 0.5, **values), seen(rail, draw, 0.5, **values)
    whole = one.take_images(range(12))
    parts = np.concatenate([other.take_images(range(k, k + 4)) for k in (0, 4, 8)])
    np.testing.assert_array_equal(whole, parts)
    assert (one.captures.number[0, 1:] == one.captures.number[0, :-1]).any(), "some were dropped"
    with pytest.raises(InputError, match="has no seed path"):
        twin = rail(**values)
        CameraCaptures(TwinCamera.of(twin, twin.table(1), "front", height=32, width=32), one.world, lambda s, f: None)


def test_motion_in_images_is_that_of_the_pinhole(rail):
    twin = rail()
    pinhole = intrinsics(twin.model, "front", height=HEIGHT, width=WIDTH)
    motion = ImageMotion(twin.model, "front")
    states = SceneStates(qpos=np.array([[0.0], [0.1]]))
    assert motion.measure_motion(states, {}, pinhole) == pytest.approx(0.1 * focal() / 0.999)
    fast = SceneStates(qpos=np.array([[-0.3], [0.3]]))  # at its ends the bar is out of view
    assert motion.measure_motion(fast, {}, pinhole) == pytest.approx(0.6 * focal() / 0.999)
    assert motion.measure_motion(states.take([0, 0]), {}, pinhole) < 1e-9
    assert [count_subframes(p, 16) for p in (0.0, 0.2, 0.5, 3.0, 99.0)] == [1, 1, 2, 4, 16]
    assert count_subframes(99.0, 1) == 1


def test_another_device_before_a_camera_keeps_what_was_simulated(rail):
    twin = rail(latency=0.02)
    webcam = add_twin_sensors(twin, {"front": SensorSpec(device="uvc_webcam", camera="front")})
    assert (webcam.hash, webcam.model) == (twin.hash, twin.model)
    assert webcam.devices["front"].name == "uvc_webcam"
    assert webcam.sensor_values(webcam.table(1), "front")["readout"] == 0.03
    assert twin.sensor_values(twin.table(1), "front")["latency"] == 0.02
    others = {name for name in twin.params if not name.startswith("sensor/front/")}
    assert others <= set(webcam.params)
    with pytest.raises(UnknownNameError, match="Nearest existing: uvc_webcam"):
        add_twin_sensors(twin, {"front": SensorSpec(device="uvc_webcm", camera="front")})


def test_sensors_are_found_by_their_cameras_and_refused_by_kind(rail):
    twin = rail()
    assert camera_sensors(twin) == {"front": "front"}
    with pytest.raises(InputError, match=r"The sensor lidar of rail is of the kind lidar \(mid360\)"):
        TwinCamera.of(twin, twin.table(1), "lidar", height=32, width=32)
    twice = add_twin_sensors(twin, {"second": SensorSpec(device="ideal", camera="front")})
    with pytest.raises(InputError, match="front and second of rail use the same camera front"):
        camera_sensors(twice)


def test_images_say_which_lens_bent_them(rail, draw):
    said = seen(rail, draw, lens_k1=-0.1, lens_p2=0.002, lens_k3=0.01).camera.to_json()
    assert said["distortion"] == [-0.1, 0.0, 0.0, 0.002, 0.01, 0.0, 0.0, 0.0]
    assert said["intrinsics"]["fx"] == pytest.approx(focal())


LATE_AND_NOISY = {
    "latency": 0.05, "latency_jitter": 0.01, "frame_rate": 17.0, "read_noise": 30.0, "full_well": 4000.0
}  # fmt: skip


@pytest.mark.parametrize("values", [{}, LATE_AND_NOISY])
def test_images_of_running_worlds_are_those_of_the_whole_episode(rail, draw, values):
    twin = rail(**values)
    whole = seen(rail, draw, 0.5, most=1, **values).take_images(range(12))
    camera = WorldCamera(twin, ["front"], height=HEIGHT, width=WIDTH, renderer="gl", sensors=True)
    start = EpisodeStart(numbers=np.array([5, 3]), params=twin.table(2), initial=None, run_seed=7)
    camera.begin_worlds(start, 20)
    states = np.zeros((2, mujoco.mj_stateSize(twin.model, STATE_SPEC)))
    for step in range(12):
        states[:, state_columns(twin.model, int(mujoco.mjtState.mjSTATE_QPOS))] = 0.5 * (step * STEP - 1 / 3)
        camera.watch(states)
        if step % 3 == 2:  # images that are not asked for change nothing
            np.testing.assert_array_equal(camera.take([1], step)["front"][0], whole[step])
    camera.close()
    with pytest.raises(InputError, match="No worlds are running"):
        camera.take([0], 0)


def test_worlds_without_a_camera_model_have_clean_images_only(rail):
    bare = add_twin_sensors(rail(), {"front": SensorSpec(device="mid360", site="lidar")})
    with pytest.raises(InputError, match="no camera sensor for front"):
        WorldCamera(bare, ["front"], height=8, width=8, sensors=True)


def test_cameras_in_threads_of_their_own_take_the_same_images():
    from twinloop.randomize.section import section_plan
    from twinloop.simulate import InitialState, open_backend

    twin = load_twin("so101_tabletop")
    plan = section_plan({"default": True, "visual": {"rooms": 3}}, twin, run_seed=1, episodes=8, where="test")
    params, states = plan.draw(range(3)), []
    start = EpisodeStart(numbers=np.arange(3), params=params, initial=InitialState.home(twin, 3), run_seed=1)
    running = open_backend("threads", nthread=1).start(twin, params, start.initial, 4)
    for _ in range(3):
        states.append(running.state.copy())
        running.advance(start.initial.command)
    taken = []
    for parallel in (False, True):
        size = {"height": 24, "width": 32, "renderer": "gl"}
        camera = WorldCamera(
            twin, ["front", "wrist"], **size, scenery=Scenery(rooms=True), sensors=True, parallel=parallel
        )
        camera.begin_worlds(start, 4)
        frames = []
        for step, state in enumerate(states):
            camera.watch(state)
            frames.append(camera.take([0, 2], step))
        camera.close()
        camera.close()
        taken.append(frames)
    for one, other in zip(*taken, strict=True):
        for name in ("front", "wrist"):
            np.testing.assert_array_equal(one[name], other[name])
    assert not np.array_equal(taken[0][0]["front"][0], taken[0][0]["front"][1])
    camera = WorldCamera(twin, ["front", "wrist"], **size, scenery=Scenery(rooms=True), sensors=True, parallel=True)
    camera.begin_worlds(start, 4)
    camera.watch(states[0])
    camera.take([0], 0)
    del camera  # without close: what is left belongs to no thread
    gc.collect()
