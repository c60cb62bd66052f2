"""Raw episodes keep their defects; episodes built from them have none."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.core.errors import LogError
from twinloop.core.records import LoggedSignal
from twinloop.core.units import JointUnit, UnitMap
from twinloop.dataset.logs.importers.columns import EpisodeBuilder
from twinloop.dataset.logs.importers.protocol import LogOptions, RawEpisode

UNITS = UnitMap(joints=(JointUnit(joint="a", unit="rad", scale=1.0, offset=0.0),), source="planted")


def raw(time, state, **fields) -> RawEpisode:
    values = np.asarray(state, dtype=np.float64)[:, None]
    defaults = {"action": values, "origin": "bag"}
    return RawEpisode(index=3, time=np.asarray(time, dtype=np.float64), state=values, units=UNITS, **defaults | fields)


def test_what_is_wrong_is_carried_and_refused_only_as_an_episode():
    backwards = raw([0.0, 0.2, 0.1], [0.0, 1.0, np.nan])
    assert np.isnan(backwards.state[2, 0])
    with pytest.raises(LogError, match="Episode 3 of bag: action of a is nan at frame 2"):
        backwards.to_episode()
    empty = raw([], [])
    assert len(empty) == 0
    with pytest.raises(LogError, match="Episode 3 of bag is empty"):
        empty.to_episode()


def test_features_that_are_not_read_are_noted():
    table = pa.table(
        {
            "action": [[0.0], [1.0]],
            "observation.state": [[0.0], [0.5]],
            "observation.current": [[3.0], [4.0]],
            "timestamp": [0.0, 0.1],
            "frame_index": [0, 1],
        }
    )
    builder = EpisodeBuilder("log", LogOptions(joints=["a"], units="rad"), present=table.column_names)
    assert builder.build(0, table).notes == ("features not read: observation.current",)


def test_every_field_reaches_the_episode():
    signal = LoggedSignal(time=np.arange(4) / 10, values=np.ones((4, 1)), columns=("a",), unit="rad/s")
    given_fields = {
        "task": "wave",
        "source": "sim",
        "robot_type": "arm",
        "command": "torque",
        "signals": {"joint_velocity": signal},
        "conditions": {"mass": 0.5},
    }
    episode = raw([0.0, 0.1], [1.0, 2.0], **given_fields).to_episode()
    assert {name: getattr(episode, name) for name in given_fields} == given_fields
    assert (episode.index, episode.origin, episode.units) == (3, "bag", UNITS)


@given(
    times=st.lists(st.integers(0, 60), min_size=1, max_size=20, unique=True),
    commands=st.lists(st.integers(0, 60), min_size=1, max_size=20, unique=True),
)
def test_a_command_holds_until_the_next_one(times, commands):
    times, commands = sorted(times), sorted(commands)
    log = raw(
        times, times, action=np.array(commands, dtype=np.float64)[:, None], action_time=np.array(commands, dtype=float)
    )
    kept = [t for t in times if t >= commands[0]]
    if not kept:
        with pytest.raises(LogError, match="after the last measurement"):
            log.to_episode()
        return
    episode = log.to_episode()
    assert episode.time.tolist() == kept
    assert episode.action[:, 0].tolist() == [max(c for c in commands if c <= t) for t in kept]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0.0, 0.1, 0.1], r"the time of command 2 is 0.100000 s, which does not increase"),
        ([0.0, np.nan, 0.1], r"the time of command 1 is nan s"),
        ([np.inf, 0.1], r"the time of command 0 is inf s"),
        ([], "has measurements but no command"),
    ],
)
def test_commands_without_an_order_are_refused(times, message):
    log = raw([0.0, 0.1], [0, 1], action=np.zeros((len(times), 1)), action_time=np.array(times))
    with pytest.raises(LogError, match=message):
        log.to_episode()
