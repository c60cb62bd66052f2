"""Long calls equal single control steps bit for bit; windows in a batch equal windows alone."""

from dataclasses import replace

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.records import Episode, LoggedSignal
from twinloop.core.seeds import generator
from twinloop.core.units import UnitMap
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.command import CommandPath
from twinloop.simulate.open_loop import ReplayedFrames, compute_control_series, open_loop
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay
from twinloop.simulate.replay_start import integrate_positions
from twinloop.twin import load_twin

ARM = """
<mujoco>
  <option integrator="implicitfast" timestep="0.005"/>
  <worldbody>
    <body>
      <joint name="turn" axis="0 0 1" damping="0.4" frictionloss="0.05" armature="0.02"/>
      <geom type="capsule" fromto="0 0 0 0.2 0 0" size="0.02" mass="0.3"/>
      <body pos="0.2 0 0">
        <joint name="tilt" axis="0 1 0" damping="0.3" armature="0.02"/>
        <geom type="capsule" fromto="0 0 0 0.2 0 0" size="0.02" mass="0.2"/>
        <site name="imu" pos="0.1 0 0"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="turn" joint="turn" kp="8"/>
    <position name="tilt" joint="tilt" kp="8"/>
  </actuator>
  <sensor><gyro site="imu"/></sensor>
</mujoco>
"""
SPEC = """
name: arm
model: arm.xml
control_hz: 50
substeps: {substeps}
robot: {{type: arm, joints: [turn, tilt], units: [rad, rad], control: {control}}}
params:
  - {{name: "joint/*/damping", low: 0.0, high: 10.0, source: test}}
  - {{name: "actuator/*/delay", low: 0.0, high: 0.5, source: test}}
  - {{name: "actuator/*/bias", low: -1.0, high: 1.0, source: test}}
  - {{name: "sensor/*/offset", low: -1.0, high: 1.0, source: test}}
  - {{name: "sensor/*/scale", low: 0.5, high: 2.0, source: test}}
  - {{name: "timing/control/period", low: 0.5, high: 2.0, source: test}}
"""
THREADS = open_backend("threads", nthread=2)


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arm")
    (folder / "arm.xml").write_text(ARM)
    twins = {}
    for substeps in (1, 4):
        for control in ("position", "torque"):
            path = folder / f"arm_{substeps}_{control}.yaml"
            path.write_text(SPEC.format(substeps=substeps, control=control))
            twins[substeps, control] = load_twin(path)
    return twins


def beginning(twin, rng, nworld, history):
    home = InitialState.home(twin, nworld)
    earlier = rng.normal(scale=0.5, size=(nworld, history, 2))
    qpos, qvel = (rng.normal(scale=0.3, size=(nworld, 2)) for _ in range(2))
    return replace(home, command=rng.normal(size=(nworld, 2)), earlier=earlier, qpos=qpos, qvel=qvel)


DELAYS = st.one_of(st.floats(0.0, 0.2), st.integers(0, 40).map(lambda n: n * 0.005), st.just(0.02 / 3))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(DELAYS, min_size=6, max_size=6),
    st.sampled_from([1, 4]),
    st.sampled_from(["position", "torque"]),
    st.integers(0, 12),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_controls_beforehand_equal_controls_step_by_step(arms, delays, substeps, control, history, gradual, seed):
    twin, rng = replace(arms[substeps, control], gradual_commands=gradual), generator(seed, "test/commands")
    initial, commands = beginning(twin, rng, 3, history), rng.normal(size=(3, 9, 2))
    values = {f"sensor/{joint}/scale": rng.uniform(0.8, 1.2, 3) for joint in ("turn", "tilt")}
    values |= {f"actuator/{joint}/delay": delays[i : i + 3] for i, joint in enumerate(("turn", "tilt"))}
    table = twin.table(3, values)
    path = CommandPath(twin, table, initial.command, earlier=initial.earlier)
    slow = np.concatenate([path.compute_controls(commands[:, step]) for step in range(9)], axis=1)
    assert np.array_equal(compute_control_series(twin, table, initial, commands), slow)


@pytest.mark.parametrize("substeps", [1, 4])
def test_one_call_equals_control_step_by_control_step(arms, substeps):
    twin, rng = arms[substeps, "position"], generator(substeps, "test/fast")
    initial, commands = beginning(twin, rng, 5, 3), rng.normal(scale=0.4, size=(5, 30, 2))
    table = twin.table(5, {"actuator/turn/delay": np.linspace(0, 0.09, 5), "joint/tilt/damping": np.linspace(0, 1, 5)})
    fast = open_loop(THREADS, twin, table, initial, commands, record=("sensordata",))
    slow = rollout(THREADS, twin, table, initial, commands, 30, record=("sensordata",))
    assert isinstance(fast, ReplayedFrames)
    assert np.array_equal(fast.qpos, slow.qpos)
    assert np.array_equal(fast.qvel, slow.qvel)
    assert np.array_equal(fast.records["sensordata"], slow.records["sensordata"])
    assert (fast.invalid_step == -1).all()


def test_many_short_calls_equal_one(arms, monkeypatch):
    twin, rng = arms[4, "position"], generator(7, "test/fast")
    initial, commands = beginning(twin, rng, 3, 0), rng.normal(scale=0.4, size=(3, 20, 2))
    whole = open_loop(THREADS, twin, twin.table(3), initial, commands)
    monkeypatch.setattr("twinloop.simulate.open_loop._MOST_NUMBERS", 3 * 4 * 4 * 7)  # seven control steps
    assert np.array_equal(open_loop(THREADS, twin, twin.table(3), initial, commands).qpos, whole.qpos)


def test_a_world_that_diverges_says_when_and_leaves_its_neighbours_alone(arms):
    twin, rng = arms[4, "position"], generator(8, "test/fast")
    initial, commands = beginning(twin, rng, 3, 0), rng.normal(scale=0.4, size=(3, 40, 2))
    racing = initial.qvel.copy()
    racing[1, 0] = 1.2e10  # MuJoCo's limit is 1e10
    initial, table = replace(initial, qvel=racing), twin.table(3)
    fast = open_loop(THREADS, twin, table, initial, commands)
    slow = rollout(THREADS, twin, table, initial, commands, 40)
    assert slow.invalid_step[1] >= 0
    assert np.array_equal(fast.invalid_step, slow.invalid_step)
    assert np.array_equal(fast.qpos[[0, 2]], slow.qpos[[0, 2]])


def test_an_unsteady_clock_goes_control_step_by_control_step(arms):
    twin, rng = arms[4, "position"], generator(9, "test/fast")
    initial, commands = beginning(twin, rng, 2, 0), rng.normal(scale=0.4, size=(2, 10, 2))
    table = twin.table(2, {"timing/control/period": [1.0, 1.1]})
    run = open_loop(THREADS, twin, table, initial, commands)
    assert not isinstance(run, ReplayedFrames)
    assert np.array_equal(run.qpos, rollout(THREADS, twin, table, initial, commands, 10).qpos)


def tosses(lengths, *, hz=148.0):
    """Cubes thrown for different times; initial poses are those of a twin without contact."""
    rng, episodes = generator(2, "test/tosses"), []
    for index, length in enumerate(lengths):
        time = np.arange(length) / hz
        turn = rng.normal(size=4)
        pose = np.tile(np.concatenate([[0, 0, 0.2], turn / np.linalg.norm(turn)]), (length, 1))
        twist = np.tile(rng.normal(size=6), (length, 1))
        signals = {
            "pose/cube": LoggedSignal(time=time, values=pose, columns=tuple("xyzabcd"), unit=""),
            "twist/cube": LoggedSignal(time=time, values=twist, columns=tuple("abcdef"), unit=""),
        }
        none = np.empty((length, 0))
        units = UnitMap(joints=(), source="a body without joints")
        episodes.append(
            Episode(index=index, time=time, action=none, state=none, units=units, source="sim", signals=signals)
        )
    return episodes


def test_a_window_runs_beside_longer_ones_as_it_runs_alone():
    twin, lengths = load_twin("cube_toss"), [8, 40, 9, 22, 40]
    options = ReplayOptions(start="measured", compare=("pose/cube",), contacts=True)
    logs = prepare_replay(twin, tosses(lengths), options)
    together = replay(THREADS, logs, logs.twin.table(2, {"object/cube/friction/slide": [0.1, 0.4]}))
    assert together.shape == (2, 5, 40, 6)
    for row, length in enumerate(lengths):
        alone = logs.take([row]).trim_frames()
        assert alone.commands.shape[1] == length
        one = replay(THREADS, alone, logs.twin.table(2, {"object/cube/friction/slide": [0.1, 0.4]}))
        assert np.array_equal(together[:, row, :length], one[:, 0])
        assert np.isnan(together[:, row, length + length // 3 :]).all()


def test_first_states_are_corrected_in_the_bodys_own_tangent_space():
    """A correction of position and turn moves the first frame by just that; one of velocity moves the next frames."""
    twin = load_twin("cube_toss")
    options = ReplayOptions(
        start="measured",
        compare=("pose/cube",),
        contacts=True,
        local={"position": 1.0, "rotation": 1.0, "velocity": 1.0, "spin": 1.0},
    )
    logs = prepare_replay(twin, tosses([12, 12]), options)
    assert logs.nlocal == 12
    move = generator(4, "test/local").normal(scale=0.05, size=(1, 2, 12))
    plain, moved = (replay(THREADS, logs, logs.twin.table(1), local)[0] for local in (np.zeros((1, 2, 12)), move))
    assert moved[:, 0, :3] - plain[:, 0, :3] == pytest.approx(move[0, :, :3], abs=1e-12)
    assert moved[:, 0, 3:] == pytest.approx(move[0, :, 3:6], abs=1e-12)
    speed = move[0, :, 6:9]
    assert moved[:, 5, :3] - plain[:, 5, :3] == pytest.approx(move[0, :, :3] + speed * 5 / 148, abs=1e-9)


def test_moves_in_the_tangent_space_are_mujocos():
    model, rng = load_twin("cube_toss").model, generator(5, "test/integrated")
    qpos = np.concatenate([rng.normal(size=(6, 3)), rng.normal(size=(6, 4))], axis=1)
    qpos[:, 3:] /= np.linalg.norm(qpos[:, 3:], axis=1, keepdims=True)
    move = rng.normal(size=(6, 6))
    ours = integrate_positions(model, qpos, move)
    for row in range(6):
        theirs = qpos[row].copy()
        mujoco.mj_integratePos(model, theirs, move[row], 1.0)
        assert ours[row, :3] == pytest.approx(theirs[:3], abs=1e-12)
        assert abs(ours[row, 3:] @ theirs[3:]) == pytest.approx(1.0, abs=1e-12)
