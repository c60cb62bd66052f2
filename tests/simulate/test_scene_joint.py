"""The position of a joint that no motor drives is compared with its log: a mass on a spring, in closed form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import yaml

from twinloop.core.errors import LogError, UnknownNameError
from twinloop.core.records import Episode, LoggedSignal
from twinloop.core.units import UnitMap
from twinloop.identify import FitConfig
from twinloop.identify.assembly import huber_width
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay
from twinloop.twin import load_twin

HZ, FRAMES, MASS, STIFFNESS, REACH = 50, 60, 0.5, 80.0, 0.1
MODEL = f"""<mujoco><option timestep="0.0005" gravity="0 0 0"/><worldbody>
<body><joint name="ball" type="ball"/><geom size="0.01" mass="1"/></body>
<body pos="0 1 0"><joint name="spring" type="slide" axis="1 0 0" stiffness="{STIFFNESS}" springref="{REACH}"/>
<geom size="0.01" mass="{MASS}"/></body></worldbody></mujoco>"""


@pytest.fixture
def twin(tmp_path):
    (tmp_path / "spring.xml").write_text(MODEL)
    spec = {"schema": 1, "name": "spring", "model": "spring.xml", "control_hz": HZ, "substeps": 40}
    (tmp_path / "spring.yaml").write_text(yaml.safe_dump(spec))
    return load_twin(tmp_path / "spring.yaml")


def spring_log(position):
    time, none = np.arange(FRAMES) / HZ, np.zeros((FRAMES, 0))
    signal = LoggedSignal(time=time, values=position(time)[:, None], columns=("position",), unit="m")
    units = UnitMap(joints=(), source="none")
    return Episode(
        index=0, time=time, action=none, state=none, units=units, command="none", signals={"joint/spring": signal}
    )


def test_a_spring_swings_as_measured(twin):
    swing = spring_log(lambda time: REACH * (1.0 - np.cos(np.sqrt(STIFFNESS / MASS) * time)))
    logs = prepare_replay(twin, [swing], ReplayOptions(compare=("joint/spring",)))
    (channel,) = logs.channels
    assert (channel.name, channel.unit) == ("joint/spring", "m")
    assert np.ptp(logs.measured) > 0.19
    np.testing.assert_allclose(replay(open_backend("threads"), logs, twin.table(1))[0], logs.measured, atol=1e-3)


def test_the_noise_of_a_channel_at_rest_is_at_least_the_accuracy_of_its_sensor(twin):
    logs = prepare_replay(twin, [spring_log(np.sin)], ReplayOptions(compare=("joint/spring",)))
    residual = np.zeros(logs.measured.shape)
    residual[:, -5:] = 1e-3  # touched in the last frames only
    for accuracy, expected in ({}, 1e-9 + 1e-6 * np.max(logs.measured)), ({"joint/*": 2e-4}, 2e-4):
        config = FitConfig(accuracy=accuracy, width=1.5)
        np.testing.assert_allclose(huber_width(residual, logs, config), 1.5 * expected)
    np.testing.assert_allclose(huber_width(residual + 1e-3, logs, FitConfig(accuracy={"*": 2e-4})), 1e-3)
    with pytest.raises(UnknownNameError, match=r"compared channel 'place/\*'.*accuracy"):
        huber_width(residual, logs, FitConfig(accuracy={"place/*": 1e-3}))


def test_what_is_not_there_is_named(twin):
    log = spring_log(np.sin)
    for name in ("drawer", "ball"):
        with pytest.raises(UnknownNameError, match=f"hinge or slide '{name}'.*spring"):
            prepare_replay(twin, [log], ReplayOptions(compare=(f"joint/{name}",)))
    with pytest.raises(LogError, match="has no signal joint/spring"):
        prepare_replay(twin, [replace(log, signals={})], ReplayOptions(compare=("joint/spring",)))
