"""Pushes give the stated momentum at the stated time, equal on every backend, and are replayed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.disturbance import Pushes
from twinloop.twin import load_twin
from twinloop.twin.load import compile_twin
from twinloop.twin.spec import parse_spec

MASS = 0.25
PUCK = f"""
<mujoco model="puck">
  <option gravity="0 0 0"/>
  <worldbody>
    <body name="puck"><freejoint/>
      <geom type="box" size="0.02 0.03 0.01" pos="0.01 0 0" mass="{MASS}"/>
    </body>
  </worldbody>
</mujoco>
"""
SECOND = 50  # control steps


@pytest.fixture(scope="module")
def puck(tmp_path_factory):
    path = tmp_path_factory.mktemp("puck") / "puck.xml"
    path.write_text(PUCK)
    value = {
        "name": "puck",
        "model": path.name,
        "control_hz": SECOND,
        "substeps": 10,
        "params": [
            {"name": f"push/*/{quantity}", "source": "test"}
            for quantity in ("force", "azimuth", "elevation", "time", "duration", "period")
        ],
    }
    return compile_twin(parse_spec(value, where="test"), path, where="test")


def run(twin, nworld=1, nstep=SECOND, backend="threads", **push):
    table = twin.table(nworld, {f"push/puck/{name}": value for name, value in push.items()})
    commands = np.zeros((nworld, nstep, twin.model.nu))
    return rollout(open_backend(backend, nthread=1), twin, table, InitialState.home(twin, nworld), commands, nstep)


@settings(max_examples=30, deadline=None)
@given(
    force=st.floats(0.01, 20.0),
    azimuth=st.floats(-3.1, 3.1),
    elevation=st.floats(-1.5, 1.5),
    time=st.floats(0.0, 0.5),
    duration=st.floats(0.001, 0.4),
)
def test_momentum_gained_is_force_times_duration_whatever_the_step(puck, force, azimuth, elevation, time, duration):
    trajectory = run(puck, force=force, azimuth=azimuth, elevation=elevation, time=time, duration=duration)
    direction = [np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)]
    velocity = trajectory.qvel[0, -1]
    np.testing.assert_allclose(MASS * velocity[:3], force * duration * np.array(direction), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(velocity[3:], 0.0, atol=1e-9)  # through the centre of mass: no spin


def test_nothing_moves_before_the_push_and_nothing_changes_after_it(puck):
    trajectory = run(puck, force=2.0, time=0.4, duration=0.2)
    speed = trajectory.qvel[0, :, 0]
    moments = np.arange(SECOND + 1) / SECOND
    assert (speed[moments <= 0.4 + 1e-9] == 0.0).all()
    after = speed[moments >= 0.6 - 1e-9]
    np.testing.assert_array_equal(after, after[0])
    between = (moments > 0.4) & (moments < 0.6)
    np.testing.assert_allclose(speed[between], 2.0 / MASS * (moments[between] - 0.4), rtol=1e-9)


def test_the_work_done_is_the_energy_gained(puck):
    force = 3.0
    trajectory = run(puck, force=force, time=0.1, duration=0.5)
    centre, speed = trajectory.qpos[0, 5:31, 0], trajectory.qvel[0, 5:31, 0]  # from 0.1 s to 0.6 s
    work, energy = force * (centre - centre[0]), 0.5 * MASS * speed**2
    # Semi-implicit Euler moves with the new velocity: after n physics steps its way is longer by 1 part in n.
    steps = 10 * np.arange(1, len(work))
    np.testing.assert_allclose(work[1:], energy[1:] * (1 + 1 / steps), rtol=1e-9)


def test_a_period_repeats_the_push(puck):
    speed = run(puck, force=1.0, time=0.1, duration=0.05, period=0.3).qvel[0, :, 0]
    for moment, pushes in ((0.09, 0), (0.2, 1), (0.39, 1), (0.5, 2), (0.69, 2), (0.8, 3)):
        assert speed[int(moment * SECOND)] == pytest.approx(pushes * 0.05 / MASS, rel=1e-9), moment


def test_backends_agree_bit_for_bit_and_unpushed_worlds_are_untouched():
    twin = load_twin("so101_tabletop")
    value = twin.spec.model_dump(by_alias=True)
    value["params"] += [{"name": f"push/*/{quantity}", "source": "test"} for quantity in ("force", "time", "azimuth")]
    pushed = compile_twin(parse_spec(value, where="t"), _model_file(twin), where="t")
    table = pushed.table(3, {"push/gripper/force": [0.0, 4.0, 0.0], "push/cube/force": [0.0, 0.1, 0.2]})
    start = InitialState.home(pushed, 3)
    commands = np.repeat(start.command[:, None], 12, axis=1)
    runs = [rollout(open_backend(name), pushed, table, start, commands, 12) for name in ("reference", "threads")]
    np.testing.assert_array_equal(runs[0].states, runs[1].states)
    plain = rollout(open_backend(), twin, twin.table(1), start_of(twin), commands[:1], 12)
    np.testing.assert_array_equal(runs[1].states[0], plain.states[0])
    assert np.abs(runs[1].qpos[1] - runs[1].qpos[0]).max() > 1e-3
    alone = rollout(open_backend(), pushed, table.take([1]), start_of(pushed), commands[:1], 12)
    np.testing.assert_array_equal(runs[1].states[1], alone.states[0])


def test_worlds_that_begin_anew_are_pushed_by_their_own_time(puck):
    first = puck.table(2, {"push/puck/force": 1.0, "push/puck/time": 0.1, "push/puck/duration": 0.1})
    simulation = open_backend("threads", nthread=1).start(puck, first, InitialState.home(puck, 2), SECOND)
    for _ in range(20):
        simulation.advance(np.zeros((2, 0)))
    simulation.restart([1], first.take([1]), InitialState.home(puck, 1))
    for _ in range(5):
        simulation.advance(np.zeros((2, 0)))
    assert simulation.qvel[1, 0] == 0.0
    for _ in range(10):
        simulation.advance(np.zeros((2, 0)))
    np.testing.assert_allclose(simulation.qvel[:, 0], 0.1 / MASS, rtol=1e-9)


def test_a_push_longer_than_its_period_is_refused(puck):
    table = puck.table(1, {"push/puck/force": 1.0, "push/puck/duration": 0.5, "push/puck/period": 0.2})
    with pytest.raises(InputError, match=r"push/puck/duration is 0.5 s, longer than its period of 0.2 s. Shorten"):
        Pushes(puck, table)


def start_of(twin):
    return InitialState.home(twin, 1)


def _model_file(twin):
    from twinloop.twin.load import _BUILTIN

    return _BUILTIN / twin.spec.model
