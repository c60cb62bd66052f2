"""Readers of the public sets: planted folders come back, real recordings obey the physics that their units imply."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import struct
from collections import OrderedDict

import numpy as np
import pytest
import scipy.io

from support.dataset_logs import real
from twinloop.core.errors import LogError
from twinloop.core.records import Episode
from twinloop.dataset.logs.sets.impacts import CUBE_RATE_HZ, HALF_WIDTH_M, read_ellipse, read_tensor
from twinloop.dataset.logs.sets.registry import load, load_set

GRAVITY = 9.81


def public(name: str, folder: str = "") -> list[Episode]:
    real(folder or name)
    return load(name)[0]


def turn_rate(wxyz, time) -> np.ndarray:
    """Angular velocity in the body's axes between frames, ``(T - 1, 3)``, from quaternions."""
    a, b = wxyz[:-1] * [1, -1, -1, -1], wxyz[1:]
    scalar = np.sum(a[:, 1:] * -b[:, 1:], axis=1) + a[:, 0] * b[:, 0]
    vector = a[:, :1] * b[:, 1:] + b[:, :1] * a[:, 1:] + np.cross(a[:, 1:], b[:, 1:])
    return 2 * vector * np.sign(scalar)[:, None] / np.diff(time)[:, None]


# ---- servos -----------------------------------------------------------------------------------------------------


def bam_run(**header) -> dict:
    entries = [
        {
            "timestamp": 0.01 * i,
            "position": 0.1 * i,
            "goal_position": 0.2 * i,
            "speed": 10.0,
            "load": 3,
            "input_volts": 7.3,
            "temp": 28,
            "torque_enable": i < 2,
        }
        for i in range(4)
    ]
    known = {"mass": 0.5, "length": 0.1, "kp": 400, "vin": 7.4, "motor": "xl330", "trajectory": "sin"}
    return known | header | {"entries": entries}


def test_a_servos_run_comes_with_its_gain_and_its_switch(tmp_path):
    folder = tmp_path / "xl330_raw"
    folder.mkdir()
    (folder / "2031-01-01_00h00m00.json").write_text(json.dumps(bam_run()))
    (episode,) = load_set("bam_servo", tmp_path)
    np.testing.assert_allclose(episode.action[:, 0], 2 * episode.state[:, 0])
    assert episode.conditions == {"firmware_kp": 400, "mass": 0.5, "length": 0.1, "voltage": 7.4}
    assert episode.signals["enabled"].values[:, 0].tolist() == [1, 1, 0, 0]
    assert (episode.robot_type, episode.task, episode.joints) == ("xl330", "sin", ("pendulum",))
    with pytest.raises(LogError, match=r"it has no feetech_sts3250_raw/\*.json"):
        load_set("bam_servo_sts3250", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entries": []}, "is empty"),
        ({"entries": [{"timestamp": 0.0}]}, "is not a log of a BAM pendulum .KeyError: 'goal_position'"),
        ({"kp": None}, "is not a log of a BAM pendulum"),
        ({"entries": [bam_run()["entries"][0], bam_run()["entries"][2] | {"position": None}]}, "is nan at frame 1"),
    ],
)
def test_a_servos_run_that_cannot_be_used_says_why(tmp_path, change, message):
    (tmp_path / "run.json").write_text(json.dumps(bam_run() | change))
    with pytest.raises(LogError, match=message):
        load_set("bam_servo", tmp_path)


@pytest.mark.parametrize("name", ["bam_servo", "bam_servo_sts3250"])
def test_the_servos_speeds_are_the_slopes_of_their_positions(name):
    for episode in public(name, "bam_servo"):
        few = max(2, round(0.05 / np.median(np.diff(episode.time))))  # the speed's own grid is coarse: over 50 ms
        slope = (episode.state[few:, 0] - episode.state[:-few, 0]) / (episode.time[few:] - episode.time[:-few])
        speed = np.convolve(episode.signals["joint_velocity"].values[:, 0], np.ones(few + 1) / (few + 1), "valid")
        assert np.corrcoef(slope, speed)[0, 1] > 0.95
        assert abs(np.polyfit(speed, slope, 1)[0] - 1) < 0.15
    gains = {episode.conditions["firmware_kp"] for episode in public(name, "bam_servo")}
    assert gains <= {32.0, 100.0, 200.0, 400.0, 800.0}


# ---- pendulums --------------------------------------------------------------------------------------------------


def test_the_double_pendulum_comes_with_measured_torques():
    runs = public("dfki_double_pendulum")
    assert {episode.command for episode in runs} == {"torque"}
    for episode in runs:
        assert np.median(np.diff(episode.time)) == pytest.approx(0.002, rel=0.01)
        slope = np.gradient(episode.state, episode.time, axis=0)
        speed = episode.signals["joint_velocity"].values
        assert np.sqrt(np.mean((slope - speed) ** 2)) < 0.25 * np.sqrt(np.mean(slope**2))
        moved = [j for j in range(2) if np.ptp(episode.action[:, j]) > 0.1]
        measured = episode.signals["joint_torque"].values
        assert all(np.corrcoef(episode.action[:-1, j], measured[1:, j])[0, 1] > 0.7 for j in moved)


def test_rollouts_are_known_by_their_controller_and_reach_the_published_counts():
    rollouts = public("dfki_double_pendulum_rollouts", "dfki_double_pendulum")
    reached: dict[str, list[bool]] = {}
    for episode in rollouts:
        first, second = episode.state[-1]
        height = -0.2 * np.cos(first) - 0.3 * np.cos(first + second)  # links of 0.2 and 0.3 m, 0 hangs
        reached.setdefault(episode.task, []).append(bool(height > 0.45))
    counts = {task: (sum(done), len(done)) for task, done in reached.items()}
    published = {"pendubot_mcpilco": (10, 10), "pendubot_sac_lqr": (4, 10)}
    assert {task: counts[task] for task in published if task in counts} == published


def pendulum_csv(path, torque, position, *, period=0.01):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (f"{period * i},{p},0.0,{t}" for i, (p, t) in enumerate(zip(position, torque, strict=True)))
    path.write_text("time,position,velocity,torque\n" + "\n".join(rows) + "\n")


def test_the_simple_pendulums_command_is_what_was_wanted(tmp_path):
    energy, follow = tmp_path / "control_method_energy_shaping", tmp_path / "control_method_pd" / "identification"
    pendulum_csv(energy / "data_measured_1kg.csv", [0.0, 0.4, 0.6], [0.0, 0.1, 0.2])
    pendulum_csv(energy / "data_desired_1kg.csv", [0.5, 0.6, 0.7], [0.0, 0.0, 0.0])
    pendulum_csv(follow / "data_measured.csv", [0.1, 0.2, 0.3], [0.0, 0.1, 0.2])
    pendulum_csv(follow / "data_desired.csv", [0.3, 0.4], [0.0, 0.1], period=0.015)
    pendulum_csv(tmp_path / "control_method_sac" / "data_measured.csv", [0.1, 0.2], [0.0, 0.1])
    by_task = {episode.task: episode for episode in load_set("dfki_simple_pendulum", tmp_path)}
    assert set(by_task) == {"energy_shaping", "pd/identification", "sac"}
    shaping, pd, sac = by_task["energy_shaping"], by_task["pd/identification"], by_task["sac"]
    assert shaping.action[:, 0].tolist() == [0.5, 0.6, 0.7]
    assert shaping.signals["joint_torque"].values[:, 0].tolist() == [0.0, 0.4, 0.6]
    assert shaping.conditions == {"drive_loop": 0.0, "mass_variant": 1.0}
    assert pd.action[:, 0].tolist() == [0.3, 0.3, 0.4]  # its own times: each holds until the next
    assert pd.conditions == {"drive_loop": 1.0}
    assert pd.signals["desired_position"].values[:, 0].tolist() == [0.0, 0.1]
    assert sac.action[:, 0].tolist() == [0.1, 0.2]  # without a commanded torque, only the measured torque is available


def test_what_was_wanted_counts_when_it_was_sent_not_when_it_was_planned(tmp_path):
    folder = tmp_path / "control_method_pd"
    pendulum_csv(folder / "data_measured.csv", [0.1, 0.2, 0.3], [0.0, 0.1, 0.2], period=0.009)
    pendulum_csv(folder / "data_desired.csv", [0.3, 0.4, 0.5], [0.0, 0.1, 0.2], period=0.010)
    (episode,) = load_set("dfki_simple_pendulum", tmp_path)
    np.testing.assert_allclose(episode.time, [0, 0.009, 0.018])
    np.testing.assert_array_equal(episode.signals["desired_position"].time, episode.time)
    assert episode.action[:, 0].tolist() == [0.3, 0.4, 0.5]


def test_the_real_simple_pendulum_follows_torques_one_frame_late():
    for episode in public("dfki_simple_pendulum"):
        if episode.conditions["drive_loop"] or not np.ptp(episode.action):
            continue
        measured = episode.signals["joint_torque"].values[:, 0]
        assert np.corrcoef(episode.action[:-1, 0], measured[1:])[0, 1] > 0.95


# ---- tosses -----------------------------------------------------------------------------------------------------


def legacy_tensor(values: np.ndarray, *, size=None, obj=None) -> bytes:
    """A legacy torch file of one float64 tensor, made of its parts as torch makes it."""

    head = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}]
    stream = io.BytesIO()
    for item in head:
        pickle.dump(item, stream, protocol=2)
    if obj is not None:
        pickle.dump(obj, stream, protocol=2)
    else:
        shape = size or values.shape
        strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
        body = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nDoubleStorage\n"
        body += b"X\x01\x00\x00\x007X\x03\x00\x00\x00cpuM" + struct.pack("<H", values.size) + b"NtQK\x00("
        body += b"".join(b"M" + struct.pack("<H", n) for n in shape) + b"t("
        body += b"".join(b"M" + struct.pack("<H", n) for n in strides) + b"t\x89ccollections\nOrderedDict\n)RtR."
        stream.write(body)
    pickle.dump(["7"], stream, protocol=2)
    stream.write(struct.pack("<q", values.size) + values.astype("<f8").tobytes())
    return stream.getvalue()


def test_a_tensor_comes_back_without_torch(tmp_path):
    values = np.random.default_rng(0).normal(size=(1, 5, 19))
    (tmp_path / "3.pt").write_bytes(legacy_tensor(values))
    np.testing.assert_array_equal(read_tensor(tmp_path / "3.pt"), values)
    (toss,) = load_set("contactnets_cube_tosses", tmp_path)
    assert (toss.index, toss.joints, toss.command) == (3, (), "none")
    np.testing.assert_allclose(toss.time, np.arange(5) / CUBE_RATE_HZ)
    np.testing.assert_allclose(toss.signals["pose/cube"].values[:, :3], values[0, :, :3] * HALF_WIDTH_M)
    np.testing.assert_array_equal(toss.signals["pose/cube"].values[:, 3:], values[0, :, 3:7])
    np.testing.assert_array_equal(toss.signals["twist/cube"].values[:, 3:], values[0, :, 10:13])


def test_what_torch_itself_writes_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    values = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    for name, tensor in (("all", values), ("part", values[1:, ::2]), ("turned", values.T)):
        path = tmp_path / f"{name}.pt"
        torch.save(tensor, path, _use_new_zipfile_serialization=False)
        np.testing.assert_array_equal(read_tensor(path), tensor.numpy())


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil_was_here",)


@pytest.mark.parametrize("place", range(3))
def test_a_file_that_names_a_function_is_refused_before_it_is_called(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    data = legacy_tensor(np.zeros(3), obj=Evil())
    if place == 1:  # before everything
        data = pickle.dumps(Evil(), protocol=2) + data
    if place == 2:  # among the keys
        data = legacy_tensor(np.zeros(3)).split(b"\x80\x02]q\x00")[0] + pickle.dumps([Evil()], protocol=2)
    (tmp_path / "evil.pt").write_bytes(data)
    with pytest.raises(LogError, match=r"evil.pt: It names \w+.mkdir. Only a tensor of numbers is read"):
        read_tensor(tmp_path / "evil.pt")
    assert not (tmp_path / "evil_was_here").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (legacy_tensor(np.zeros(4))[:-9], "is not a legacy torch file, or damaged"),
        (legacy_tensor(np.zeros(4), size=(4000, 4)), "has more values than its storage"),
        (legacy_tensor(np.zeros(4), obj=OrderedDict(a=1)), "It holds a OrderedDict"),
        (legacy_tensor(np.zeros(4), obj=[1, 2]), "It holds a list"),
        (b"", "is not a legacy torch file, or damaged"),
        (b"PK\x03\x04 a zip", "is not a legacy torch file, or damaged"),
    ],
)
def test_a_damaged_tensor_says_so(tmp_path, data, message):
    (tmp_path / "0.pt").write_bytes(data)
    with pytest.raises(LogError, match=message):
        read_tensor(tmp_path / "0.pt")


def test_a_spoiled_tensor_is_read_or_refused_and_nothing_else(tmp_path):
    data, rng = legacy_tensor(np.zeros((1, 5, 19))), np.random.default_rng(0)
    for _ in range(60):
        spoiled = bytearray(data)
        for at in rng.integers(0, len(data) // 2, rng.integers(1, 4)):
            spoiled[at] = rng.integers(0, 256)
        (tmp_path / "0.pt").write_bytes(bytes(spoiled))
        with contextlib.suppress(LogError):
            assert isinstance(read_tensor(tmp_path / "0.pt"), np.ndarray)


def test_a_tensor_of_another_shape_is_no_toss(tmp_path):
    (tmp_path / "0.pt").write_bytes(legacy_tensor(np.zeros((2, 5, 19))))
    with pytest.raises(LogError, match=r"a tensor of shape \(2, 5, 19\); a toss is \(1, frames, 19\)"):
        load_set("contactnets_cube_tosses", tmp_path)
    (tmp_path / "0.pt").unlink()
    (tmp_path / "first.pt").write_bytes(legacy_tensor(np.zeros((1, 5, 19))))
    with pytest.raises(LogError, match="first.pt has no number in its name"):
        load_set("contactnets_cube_tosses", tmp_path)


def test_real_tosses_fall_and_turn_as_their_velocities_say():
    tosses = public("contactnets_cube_tosses")[:60]
    falls, turns = [], []
    for toss in tosses:
        pose, twist = toss.signals["pose/cube"], toss.signals["twist/cube"]
        np.testing.assert_allclose(np.linalg.norm(pose.values[:, 3:], axis=1), 1, atol=1e-6)
        falls.append(np.diff(twist.values[:8, 2]) * CUBE_RATE_HZ)
        turns.append(np.abs(turn_rate(pose.values[:, 3:], pose.time) - twist.values[1:, 3:])[:20].mean())
    assert np.median(np.concatenate(falls)) == pytest.approx(-GRAVITY, rel=0.05)
    assert np.median(turns) < 0.2  # rad/s; about 2 if the angular velocity were in the world's axes
    rest = np.median([toss.signals["pose/cube"].values[-1, 2] for toss in tosses])
    assert rest == pytest.approx(0.0512, abs=0.0015)


# ---- landings ---------------------------------------------------------------------------------------------------


def test_real_landings_move_as_their_twists_say():
    landings = public("cassie_impact")
    for landing in landings:
        pose, twist = landing.signals["pose/pelvis"], landing.signals["twist/pelvis"]
        step = 10  # 5 ms, so that the estimator's noise does not drown the slope
        slope = (pose.values[step:, :3] - pose.values[:-step, :3]) / (pose.time[step:] - pose.time[:-step])[:, None]
        assert np.abs(slope - twist.values[step // 2 : -step // 2, :3]).mean() < 0.2
        turned = turn_rate(pose.values[::step, 3:], pose.time[::step])
        assert np.abs(turned - twist.values[step // 2 :: step, 3:][: len(turned)]).mean() < 0.5
        assert landing.signals["joint_torque"].columns[-1] == "toe_right"
        assert set(landing.signals["joint_torque"].columns) < set(landing.joints)
        springs = [i for i, joint in enumerate(landing.joints) if "ankle_spring" in joint]
        assert not landing.signals["joint_velocity"].values[:, springs].any()
    by_number = {landing.index: landing.conditions["pelvis_offset"] for landing in landings}
    assert by_number[0] == -0.005
    assert by_number[13] == 0.020


def test_landings_that_do_not_fit_together_are_refused(tmp_path):
    np.save(tmp_path / "x_04.npy", np.zeros((3, 45)))
    np.save(tmp_path / "u_04.npy", np.zeros((3, 10)))
    np.save(tmp_path / "t_04.npy", np.arange(4.0))
    with pytest.raises(LogError, match=r"states \(3, 45\), torques \(3, 10\) and times \(4,\) are not of one landing"):
        load_set("cassie_impact", tmp_path)
    np.save(tmp_path / "t_04.npy", np.array([Evil()]), allow_pickle=True)
    with pytest.raises(LogError, match="t_04.npy is not an array of numbers"):
        load_set("cassie_impact", tmp_path)


# ---- drops ------------------------------------------------------------------------------------------------------


def test_real_drops_fall_and_their_velocities_are_slopes():
    falls = []
    for drop in public("planar_impacts"):
        velocity = drop.signals["joint_velocity"].values
        slope = np.diff(drop.state, axis=0) * 250
        middle = (velocity[1:] + velocity[:-1]) / 2
        # at an impact the filtered velocity and the slope differ: the median frame shows the unit
        assert np.median(np.abs(slope - middle)[:, :2]) < 0.02
        low = int(np.argmax(drop.state[:, 1] < 0.05))  # no corner (0.042 m from the centre) has touched the ground yet
        falls.append(2 * np.polyfit(drop.time[:low], drop.state[:low, 1], 2)[0])
        assert drop.state[-1, 1] == pytest.approx(0.03, abs=0.004)  # half the square's side
    assert np.median(falls) == pytest.approx(-GRAVITY, rel=0.15)  # twelve frames of fall, filtered


def test_the_angle_of_the_ellipse_grows_from_x_towards_z():
    bounces = read_ellipse(real("planar_impacts"))
    angle = bounces.before[:, 2]
    around = np.linspace(0, 2 * np.pi, 721)
    x, z = 0.035 * np.cos(around), 0.025 * np.sin(around)  # half of 0.07 m and 0.05 m
    height = np.outer(np.sin(angle), x) + np.outer(np.cos(angle), z)
    lowest = height.argmin(axis=1)
    beside = np.cos(angle) * x[lowest] - np.sin(angle) * z[lowest]
    assert np.corrcoef(beside, bounces.normal[:, 2])[0, 1] > 0.99  # the contact's arm about the centre
    np.testing.assert_allclose(bounces.tangent[:, 2], -height.min(axis=1), atol=0.002)
    assert bounces.flagged.sum() == 282


def test_a_file_of_bounces_that_is_another_says_so(tmp_path):
    with pytest.raises(LogError, match="ellipse_uniform.mat is missing"):
        read_ellipse(tmp_path)
    scipy.io.savemat(tmp_path / "ellipse_uniform.mat", {"other": 1})
    with pytest.raises(LogError, match="is not a file of bounces .KeyError: 'bounce_array'"):
        read_ellipse(tmp_path)
