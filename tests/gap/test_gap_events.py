"""Events in a recording are detected from positions: turns, starts, standstill, limits, contact."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.one_joint import actuator_twin
from support.swing import TRUTH, swing_twin
from twinloop.core.records import Episode, LoggedSignal
from twinloop.core.units import UnitMap
from twinloop.gap.dynamics.events import MEANINGS, event_masks
from twinloop.gap.dynamics.motion import (
    EventThresholds,
    compute_demands,
    compute_directions,
    compute_speeds,
    estimate_reading_noise,
    find_breakaways,
    find_onsets,
    find_reversals,
    find_saturation,
    widen_mask,
)
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay
from twinloop.twin import load_twin

HZ = 100.0


def strokes(nframe=400, period=2.0, wait=0.5, noise=0.0, seed=0):
    """There and back with waits between: constant speed, then rest, then the other way, ``(1, nframe, 1)``."""
    time = np.arange(nframe) / HZ
    phase = np.mod(time, period)
    stroke = period / 2 - wait
    there = np.clip(phase / stroke, 0, 1)
    back = np.clip((phase - period / 2) / stroke, 0, 1)
    rng = np.random.default_rng(seed)
    return (there - back)[None, :, None] + noise * rng.normal(size=(1, nframe, 1))


def frames(mask):
    return np.flatnonzero(mask[0, :, 0]).tolist()


def test_the_demand_of_an_actuator_is_its_own_law_with_the_gains_of_the_table(tmp_path):
    time = np.arange(40) / 200
    position, command, speed = 0.3 * np.sin(time), 0.5 * np.cos(9 * time), 0.3 * np.cos(time)
    for actuator, control, values, law in (
        ("motor", "torque", {"gain": 3.0}, 3.0 * command),
        ('pid kp="10" kv="0.5" ki="4" input="pos"', "position", {"kp": 20.0}, 20 * (command - position) - 0.5 * speed),
        ('velocity kv="2"', "velocity", {"kv": 3.0}, 3.0 * (command - speed)),
    ):
        twin = actuator_twin(tmp_path, f'<{actuator} name="j0" joint="j0" ctrlrange="-0.4 0.4"/>', control=control)
        log = Episode(index=0, time=time, action=command[:, None], state=position[:, None], units=twin.units,
                      command=control)  # fmt: skip
        logs = prepare_replay(twin, [log])
        table = logs.twin.table(1, {f"actuator/j0/{name}": value for name, value in values.items()})
        demand, limited = compute_demands(logs, table, position[None, :, None], speed[None, :, None])
        np.testing.assert_allclose(demand[0, 1:, 0], law[1:], atol=1e-9)
        assert limited
        if control == "torque":
            full = find_saturation(logs, table, demand, 0.98)[0, :, 0]
            np.testing.assert_array_equal(full, np.abs(command) >= 0.98 * 0.4)


@pytest.mark.parametrize("noise", [0.0, 0.002])
def test_turns_and_starts_are_where_they_were_made(noise):
    position = strokes(noise=noise)
    speed, sd = compute_speeds(position, HZ, 0.12)
    assert speed[0, 20, 0] == pytest.approx(2.0, abs=5 * max(float(sd[0]), 1e-9))
    direction = compute_directions(speed, np.maximum(4 * sd, 0.05))
    turns, starts = frames(find_reversals(direction)), frames(find_breakaways(direction, 10))
    assert turns == pytest.approx([100, 200, 300], abs=6)  # half of the speed's span
    assert starts == pytest.approx([100, 200, 300], abs=6)


def test_noise_is_told_from_motion_and_never_below_the_rounding():
    rng = np.random.default_rng(1)
    moving = np.sin(np.arange(3000) / 40.0)[None, :, None]
    assert estimate_reading_noise(moving + 0.003 * rng.normal(size=(1, 3000, 1)))[0] == pytest.approx(0.003, rel=0.1)
    rounded = np.round(moving / 0.01) * 0.01
    assert estimate_reading_noise(rounded)[0] >= 0.0099 / np.sqrt(12)
    still = 0.01 * rng.normal(size=(20, 300, 1))
    speed, sd = compute_speeds(still, HZ, 0.12)
    moves = compute_directions(speed, 4 * sd) != 0
    assert moves.mean() < 0.002


def test_speeds_know_gaps_and_short_windows():
    position = np.full((3, 40, 1), np.nan)
    position[0, :, 0] = np.arange(40) * 0.01
    position[1, :3, 0] = [0.0, 0.01, 0.02]
    position[2, :2, 0] = [0.0, 0.01]
    speed, _ = compute_speeds(position, HZ, 0.12)
    assert speed[0] == pytest.approx(np.ones((40, 1)))
    assert speed[1, :3, 0] == pytest.approx(np.ones(3))
    assert speed[2, :2, 0] == pytest.approx(np.ones(2))
    assert np.isnan(speed[1, 3:]).all()


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(0, 5), st.integers(0, 5))
def test_about_is_the_slow_loop(marks, before, after):
    mask = np.array(marks)[None, :, None]
    slow = [any(marks[max(0, i - after) : i + before + 1]) for i in range(len(marks))]
    assert widen_mask(mask, before, after)[0, :, 0].tolist() == slow


@given(st.lists(st.integers(-1, 1), min_size=1, max_size=25), st.integers(1, 4))
def test_reversals_and_breakaways_are_the_slow_loop(values, rest):
    direction = np.array(values, dtype=np.int8)[None, :, None]
    turns, starts = [], []
    for i, now in enumerate(values):
        moved = [v for v in values[:i] if v]
        turns.append(bool(now and moved and moved[-1] != now))
        starts.append(bool(now and i >= rest and not any(values[i - rest : i])))
    assert find_reversals(direction)[0, :, 0].tolist() == turns
    assert find_breakaways(direction, rest)[0, :, 0].tolist() == starts


def test_a_window_does_not_begin_with_an_onset():
    mask = np.array([True, True, False, True])[None, :, None]
    assert frames(find_onsets(mask)) == [3]


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return swing_twin(tmp_path_factory.mktemp("swing"))


def moved(twin, action, state, index=0):
    time = np.arange(len(state)) / twin.control_hz
    columns = (np.asarray(values, dtype=float)[:, None] for values in (action, state))
    action, state = columns
    return Episode(index=index, time=time, action=action, state=state, units=twin.unit_map(["deg"]), source="sim")


def test_a_drive_is_saturated_where_its_law_asks_for_more_than_its_limit(twin):
    error = np.linspace(0.0, 30.0, 90)  # deg; 3 N·m of 9 N·m/rad are reached at 19.1°
    log = prepare_replay(twin, [moved(twin, error, np.zeros(90))])
    first = np.flatnonzero(event_masks(log)["saturation"][0, :, 0])[0]
    assert error[first] == pytest.approx(0.98 * np.rad2deg(3.0 / 9.0), abs=0.4)
    stronger = event_masks(log, {"actuator/swing/kp": 18.0})["saturation"]
    assert error[np.flatnonzero(stronger[0, :, 0])[0]] == pytest.approx(0.98 * np.rad2deg(3.0 / 18.0), abs=0.4)
    late = event_masks(log, {"actuator/swing/delay": 0.1})["saturation"]
    assert np.flatnonzero(late[0, :, 0])[0] == pytest.approx(first + 3, abs=1)
    assert event_masks(log)["effort"].mean() == pytest.approx(0.1, abs=0.02)


def test_ends_of_the_range_and_rest_are_named_and_padding_is_nothing(twin):
    state = np.concatenate([np.zeros(30), np.linspace(0, 175, 60), np.full(30, 175.0)])
    log = prepare_replay(twin, [moved(twin, state, state), moved(twin, state[:60], state[:60], 1)])
    masks = event_masks(log, TRUTH)
    assert np.flatnonzero(masks["near_limit"][0, :, 0]) == pytest.approx(np.arange(88, 120), abs=1)  # beyond 169.2°
    assert masks["still"][0, :28].all()
    assert not masks["still"][0, 33:88].any()
    assert masks["breakaway"][0, 30:34].all()
    for mask in masks.values():
        assert mask.shape == log.measured.shape
        assert not mask[1, 60:].any()
    assert not masks["breakaway"][1, 50:].any()
    assert list(masks) == [name for name in MEANINGS if name in masks]
    assert "contact" not in masks


def test_a_dropped_cube_is_in_contact_once_it_lies_on_the_table():
    cube = load_twin("cube_toss")
    time = np.arange(100) / 148.0
    rest = 0.0524
    height = np.maximum(0.25 - 4.905 * time**2, rest)
    pose = np.stack([0 * time, 0 * time, height, 1 + 0 * time, 0 * time, 0 * time, 0 * time], axis=-1)
    episode = Episode(
        index=0,
        time=time,
        action=np.zeros((100, 0)),
        state=np.zeros((100, 0)),
        units=UnitMap(joints=(), source=""),
        command="torque",
        source="sim",
        signals={"pose/cube": LoggedSignal(time=time, values=pose, columns=tuple("xyzabcd"), unit="")},
    )
    log = prepare_replay(cube, [episode], ReplayOptions(compare=("pose/cube",), contacts=True, start="measured"))
    masks = event_masks(log)
    landed = int(np.argmax(height - rest <= EventThresholds().touch))
    assert np.flatnonzero(masks["contact"][0, :, 0]) == pytest.approx(np.arange(landed, 100), abs=1)
    impact = np.flatnonzero(masks["contact_onset"][0, :, 0])
    assert impact[0] == pytest.approx(landed - 1, abs=1)
    assert impact[-1] == pytest.approx(landed + 0.05 * 148, abs=1)
    assert masks["still"][0, -10:].all()
    assert "reversal" not in masks
    off = prepare_replay(cube, [episode], ReplayOptions(compare=("pose/cube",), start="measured"))
    assert "contact" not in event_masks(off)
