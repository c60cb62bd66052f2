"""µSD logs of a Crazyflie: packed structs read back in SI units, and a damaged card is reported."""

from __future__ import annotations

import contextlib
import math
import struct
import zlib

import numpy as np
import pytest

from support.dataset_logs import real
from twinloop.core.errors import InputError, LogError
from twinloop.dataset.logs.formats import load_log
from twinloop.dataset.logs.importers.crazyflie import read_events
from twinloop.dataset.logs.sets.registry import load

IMU = ("acc.x(f)", "acc.y(f)", "acc.z(f)", "gyro.x(f)", "gyro.y(f)", "gyro.z(f)")
MOTORS = tuple(f"motor.m{i}(I)" for i in (1, 2, 3, 4))


def write_log(path, events, records, *, spoil=b""):
    """``events``: variables by (id, name); ``records``: (id, time in µs, values)."""
    data = struct.pack("<BHH", 0xBC, 2, len(events))
    for (number, name), variables in events.items():
        data += struct.pack("<H", number) + name.encode() + b"\0" + struct.pack("<H", len(variables))
        data += b"".join(variable.encode() + b"\0" for variable in variables)
    codes = {number: "".join(v[-2] for v in variables) for (number, _), variables in events.items()}
    for number, time, values in records:
        data += struct.pack("<HQ", number, time) + struct.pack("<" + codes[number], *values)
    path.write_bytes(data + struct.pack("<I", zlib.crc32(data)) + spoil)
    return path


def flight(path, count=5, **options):
    rows = [(7, 2_000_000 + 1000 * i, (0.0, 0.5, 1.0, 90.0, 0.0, -180.0, 0, 65535, 32768, i)) for i in range(count)]
    return write_log(path, {(7, "fixedFrequency"): (*IMU, *MOTORS)}, rows, **options)


def test_a_flight_comes_back_in_si(tmp_path):
    (episode,) = load_log(flight(tmp_path / "log00"), task="hover")
    assert (episode.joints, episode.command, episode.robot_type, episode.task) == ((), "none", "crazyflie", "hover")
    np.testing.assert_allclose(episode.time, np.arange(5) * 1e-3, atol=1e-12)
    acceleration, rate, motor = (episode.signals[k] for k in ("acceleration/imu", "angular_velocity/imu", "motor"))
    np.testing.assert_allclose(acceleration.values[2], [0, 0.5 * 9.80665, 9.80665])
    np.testing.assert_allclose(rate.values[2], [math.pi / 2, 0, -math.pi])
    np.testing.assert_allclose(motor.values[2], [0, 1, 32768 / 65535, 2 / 65535])
    assert (acceleration.unit, rate.unit, motor.columns) == ("m/s²", "rad/s", ("m1", "m2", "m3", "m4"))


def test_events_of_several_kinds_keep_their_own_times(tmp_path):
    events = {(1, "imu"): IMU[3:], (2, "battery"): ("pm.vbat(d)", "pm.state(b)"), (3, "motors"): MOTORS}
    records = [
        (1, 100, (1.0, 2.0, 3.0)),
        (2, 150, (3.7, -1)),
        (3, 160, (65535, 0, 0, 0)),
        (1, 200, (4.0, 5.0, 6.0)),
    ]
    path = write_log(tmp_path / "log", events, records)
    tables = {table.name: table for table in read_events(path)}
    assert tables["battery"].columns["pm.vbat"].tolist() == [3.7]
    assert tables["battery"].columns["pm.state"].tolist() == [-1]
    (episode,) = load_log(path)
    np.testing.assert_allclose(episode.signals["angular_velocity/imu"].time, [0, 1e-4])
    np.testing.assert_allclose(episode.signals["motor"].time, [6e-5])
    assert "acceleration/imu" not in episode.signals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-40], "is damaged or was cut off: its checksum differs. Copy it from the card again"),
        (lambda data: data[:20] + b"\xff" + data[21:], "its checksum differs"),
        (lambda data: data[:5], "is not a µSD log of a Crazyflie \\(format version 2\\)"),
    ],
)
def test_a_damaged_card_is_told(tmp_path, change, message):
    path = flight(tmp_path / "log00")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(LogError, match=message):
        load_log(path)


@pytest.mark.parametrize(
    ("variables", "records", "message"),
    [
        (("acc.x(Z)",), [], r"variable 'acc.x\(Z\)' of no known type"),
        (("acc.x(f)",), [(7, 1, (1.0,))], r"holds neither gyro.x, y, z nor .* It has event: acc.x"),
    ],
)
def test_a_log_that_says_something_else_is_told(tmp_path, variables, records, message):
    path = write_log(tmp_path / "log", {(7, "event"): variables}, records)
    with pytest.raises(LogError, match=message):
        load_log(path)


def test_a_record_of_an_unknown_event_is_told(tmp_path):
    events = {(1, "imu"): IMU, (2, "motors"): MOTORS}
    path = write_log(tmp_path / "log", events, [(1, 5, (0.0,) * 6)])
    data = bytearray(path.read_bytes()[:-4])
    data[-34:-32] = struct.pack("<H", 9)
    path.write_bytes(bytes(data) + struct.pack("<I", zlib.crc32(bytes(data))))
    with pytest.raises(LogError, match="is damaged .KeyError: 9"):
        load_log(path)


def test_a_spoiled_header_is_read_or_refused_and_nothing_else(tmp_path):
    data, rng = flight(tmp_path / "log00").read_bytes()[:-4], np.random.default_rng(0)
    for _ in range(60):
        spoiled = bytearray(data)
        for at in rng.integers(3, 160, rng.integers(1, 4)):
            spoiled[at] = rng.integers(0, 256)
        (tmp_path / "log01").write_bytes(bytes(spoiled) + struct.pack("<I", zlib.crc32(bytes(spoiled))))
        with contextlib.suppress(LogError):
            assert load_log(tmp_path / "log01")[0].joints == ()


def test_other_versions_are_not_recognized(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(struct.pack("<BHH", 0xBC, 1, 0) + bytes(20))
    with pytest.raises(InputError, match="is not known. Known formats: .*crazyflie"):
        load_log(path)


def test_real_flights_feel_gravity_and_stop_at_full_throttle():
    real("crazyflie_sysid")
    flights, _ = load("crazyflie_sysid")
    for episode in flights:
        assert np.median(np.diff(episode.time)) == pytest.approx(1e-3, rel=0.05)
        felt = np.linalg.norm(episode.signals["acceleration/imu"].values, axis=1)
        assert np.median(felt) == pytest.approx(9.8, rel=0.08)
        motor = episode.signals["motor"].values
        assert 0 <= motor.min() <= motor.max() <= 1
        assert episode.index == int(episode.origin.rsplit("log")[-1])
