"""Planted parameters are recovered with intervals that cover; unidentifiable ones are reported as unknown."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import lfilter

from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.identify import FitConfig, HoldoutSpec, identify
from twinloop.simulate import open_backend
from twinloop.simulate.replay import change_substeps, replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import load_twin

# A turret whose first joint turns about the vertical, free of gravity, and whose second lifts a weight.
MODEL = """
<mujoco model="turret">
  <option integrator="implicitfast"/>
  <default>
    <joint damping="0.6" frictionloss="0.05" armature="0.03" solimpfriction="0.999 0.999 0.001"/>
    <general gaintype="fixed" biastype="affine" gainprm="9" biasprm="0 -9" forcelimited="true" forcerange="-3 3"/>
  </default>
  <worldbody>
    <body>
      <joint name="turn" axis="0 0 1" range="-180 180"/>
      <geom type="cylinder" size="0.05 0.05" mass="0.2"/>
      <body pos="0 0 0.1">
        <joint name="tilt" axis="0 1 0" range="-180 180"/>
        <geom type="capsule" fromto="0 0 0 0.25 0 0" size="0.02" mass="0.4"/>
      </body>
    </body>
  </worldbody>
  <actuator><general name="turn" joint="turn"/><general name="tilt" joint="tilt"/></actuator>
</mujoco>
"""
SPEC = """
name: turret
model: turret.xml
control_hz: 30
substeps: 8
robot: {type: turret, joints: [turn, tilt], units: [deg, deg]}
params:
  - {name: "joint/*/damping", low: 0.0, high: 10.0, source: test}
  - {name: "joint/*/frictionloss", low: 0.0, high: 2.0, source: test}
  - {name: "joint/*/armature", low: 0.001, high: 0.5, transform: log, source: test}
  - {name: "actuator/*/kp", low: 0.5, high: 100.0, transform: log, source: test}
  - {name: "actuator/*/delay", low: 0.0, high: 0.3, source: test}
  - {name: "sensor/*/offset", low: -0.5, high: 0.5, source: test}
"""
TRUTH = {
    "joint/turn/damping": 1.1,
    "joint/tilt/damping": 0.9,
    "joint/turn/frictionloss": 0.09,
    "joint/tilt/frictionloss": 0.12,
    "actuator/turn/kp": 13.0,
    "actuator/tilt/kp": 11.0,
    "actuator/turn/delay": 0.041,
    "actuator/tilt/delay": 0.018,
    "sensor/tilt/offset": 0.06,
    "sensor/turn/offset": 0.06,
}
KNOWN = {"joint/turn/armature": 0.03, "joint/tilt/armature": 0.03}


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("turret")
    (folder / "turret.xml").write_text(MODEL)
    (folder / "turret.yaml").write_text(SPEC)
    return load_twin(folder / "turret.yaml")


@pytest.fixture(scope="module")
def backend():
    return open_backend("threads", nthread=2)


def commands(rng, nframe):
    """Strokes and rests of both joints, deg."""
    knots = rng.uniform(-60, 60, size=(nframe // 20 + 2, 2))
    knots[0] = 0.0
    at = np.arange(nframe) / 20
    whole = at.astype(int)
    ease = np.clip(2 * (at - whole), 0, 1)[:, None]
    return (1 - ease) * knots[whole] + ease * knots[whole + 1]


def log_of(twin, backend, truth, *, count=8, nframe=120, seed=0, noise_deg=0.1, substeps=8):
    """Episodes of the twin with planted parameters and encoder noise that is correlated over about ten frames.

    ``substeps`` is the robot's number of physics steps per frame; the twin's own is 8.
    """
    rng = generator(seed, "test/log")
    episodes = []
    for index in range(count):
        action = commands(rng, nframe)
        time = np.arange(nframe) / 30
        units = twin.unit_map(["deg", "deg"])
        episodes.append(Episode(index=index, time=time, action=action, state=action, units=units, source="sim"))
    logs = prepare_replay(twin, episodes)
    robot = change_substeps(logs.twin, substeps)
    clean = replay(backend, replace(logs, twin=robot), twin.table(1, truth))[0]
    white = rng.normal(size=clean.shape)
    noise = noise_deg * np.sqrt(1 - 0.9**2) * lfilter([1.0], [1.0, -0.9], white, axis=1)
    return [
        Episode(index=e.index, time=e.time, action=e.action, state=clean[i] + noise[i], units=e.units, source="sim")
        for i, e in enumerate(episodes)
    ]


def covered(result):
    """Which determined parameters' intervals hold the planted value."""
    return {row.name: row.low <= TRUTH[row.name] <= row.high for row in result.estimates if row.determined}


@pytest.mark.parametrize("coupled", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_planted_parameters_come_back(twin, backend, coupled):
    episodes = log_of(twin, backend, TRUTH)
    config = FitConfig(coupled=coupled, fixed=KNOWN)
    result = identify(twin, episodes, backend=backend, holdout=HoldoutSpec.parse("last:2"), config=config)
    found = result.values
    assert result.training == (0, 1, 2, 3, 4, 5)
    for name, tolerance in {"kp": 0.05, "damping": 0.05, "frictionloss": 0.2}.items():
        for joint in ("turn", "tilt"):
            full = f"{'actuator' if name == 'kp' else 'joint'}/{joint}/{name}"
            assert found[full] == pytest.approx(TRUTH[full], rel=tolerance), full
    for joint in ("turn", "tilt"):
        assert found[f"actuator/{joint}/delay"] == pytest.approx(TRUTH[f"actuator/{joint}/delay"], abs=2e-3)
    assert found["sensor/tilt/offset"] == pytest.approx(0.06, abs=0.02)
    assert result.holdout_error.high.max() < 0.2  # degrees; the planted noise alone gives 0.08
    assert np.all(result.training_error < 0.2 * result.nominal_training_error)
    assert result.nominal_holdout_error == pytest.approx(result.nominal_training_error, rel=0.5)


@pytest.mark.slow
def test_offset_of_a_joint_without_gravity_is_not_determined(twin, backend):
    result = identify(twin, log_of(twin, backend, TRUTH), backend=backend, config=FitConfig(fixed=KNOWN))
    rows = {row.name: row for row in result.estimates}
    turn, tilt = rows["sensor/turn/offset"], rows["sensor/tilt/offset"]
    assert not turn.determined
    assert turn.low is None
    assert turn.high is None
    assert tilt.determined
    assert any("sensor/turn/offset" in direction for direction in result.directions)
    index = result.distribution.names.index("sensor/turn/offset")
    assert not result.distribution.determined[index]
    assert result.distribution.covariance[index, index] == pytest.approx(0.1**2)
    assert "not determined: the data do not constrain it" in result.text()


def test_a_fit_without_holdout_says_so_and_survives_json(twin, backend):
    episodes = log_of(twin, backend, TRUTH, count=3, nframe=60)
    config = FitConfig(quantities=("kp", "delay"), iterations=3)
    result = identify(twin, episodes, backend=backend, config=config)
    assert result.holdout_error is None
    assert "NOTHING HELD OUT" in result.text()
    plain = result.to_json()
    assert plain["holdout"] == []
    assert {row["name"] for row in plain["estimates"]} == {n for n in TRUTH if n.endswith(("kp", "delay"))}


def test_one_training_episode_gives_no_interval(twin, backend):
    episodes = log_of(twin, backend, TRUTH, count=2, nframe=60)
    config = FitConfig(quantities=("kp", "delay"), iterations=3)
    result = identify(twin, episodes, backend=backend, holdout=HoldoutSpec.parse("last:1"), config=config)
    assert all(row.reason == "one episode gives no interval" for row in result.estimates)
    assert np.isnan(result.holdout_error.low).all()


@pytest.mark.slow
def test_intervals_cover_the_planted_values_and_estimates_have_no_bias(twin, backend):
    """95 % intervals under noise correlated over ten frames: 12 logs of 12 episodes, of a robot with fine steps.

    Intervals include physics that the twin may lack, so that they cover more often than nominal here, where it lacks
    nothing; their width is bounded instead.
    """
    hits, found, widths = [], [], []
    for seed in range(12):
        episodes = log_of(twin, backend, TRUTH, count=12, seed=seed, substeps=64)
        result = identify(twin, episodes, backend=backend, config=FitConfig(fixed=KNOWN))
        hits += covered(result).values()
        rows = {row.name: row for row in result.estimates if row.name.endswith(("kp", "damping", "delay"))}
        found.append([row.value / TRUTH[name] for name, row in rows.items()])
        widths.append([(row.high - row.low) / TRUTH[name] for name, row in rows.items()])
    assert len(hits) >= 12 * 8
    assert np.mean(hits) >= 0.95
    np.testing.assert_allclose(np.mean(found, axis=0), 1.0, atol=0.01)
    assert np.all(np.median(widths, axis=0) < 0.2)
