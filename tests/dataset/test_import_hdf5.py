"""robomimic's HDF5 files: observations, meaning of actions under each controller, and omitted data."""

from __future__ import annotations

import builtins
import json

import numpy as np
import pytest

from twinloop.core.errors import LogError, MissingDependencyError
from twinloop.dataset.logs.formats import load_log, read_raw

h5py = pytest.importorskip("h5py")

POSITION = {"type": "JOINT_POSITION", "input_min": -1, "input_max": 1, "output_min": -0.05, "output_max": 0.05}
TORQUE = POSITION | {"type": "JOINT_TORQUE", "output_min": [-1, -2], "output_max": [1, 2]}


def write_demos(path, controller=None, *, demos=("demo_0",), frames=4, env=None, observations=None):
    rng = np.random.default_rng(1)
    kwargs = {"robots": ["Panda"], "control_freq": 50, "controller_configs": controller or {"type": "OSC_POSE"}}
    said = {"env_name": "Lift", "type": 1, "env_kwargs": kwargs} if env is None else env
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs["env_args"] = json.dumps(said)
        for name in demos:
            demo = file["data"].create_group(name)
            demo["actions"] = rng.uniform(-2, 2, (frames, 3))
            demo["states"] = rng.normal(size=(frames, 9))
            values = {
                "robot0_joint_pos": rng.normal(size=(frames, 2)),
                "robot0_joint_vel": rng.normal(size=(frames, 2)),
                "robot0_eef_pos": rng.normal(size=(frames, 3)),
                "robot0_eef_quat": np.tile([0.1, 0.2, 0.3, 0.9], (frames, 1)),
                "agentview_image": np.zeros((frames, 4, 4, 3), dtype=np.uint8),
            }
            for key, value in (values if observations is None else observations).items():
                demo[f"obs/{key}"] = value
    return path


def stored(path, key):
    with h5py.File(path) as file:
        return file[f"data/demo_0/{key}"][()]


def test_demonstrations_come_back_by_their_numbers(tmp_path):
    path = write_demos(tmp_path / "low_dim.hdf5", demos=("demo_10", "demo_9", "demo_0"))
    episodes = load_log(path)
    assert [episode.index for episode in episodes] == [0, 9, 10]
    first = episodes[0]
    np.testing.assert_array_equal(first.state, stored(path, "obs/robot0_joint_pos"))
    np.testing.assert_allclose(first.time, np.arange(4) / 50)
    assert (first.joints, first.task, first.robot_type, first.source) == (("joint1", "joint2"), "Lift", "Panda", "sim")
    np.testing.assert_array_equal(first.signals["joint_velocity"].values, stored(path, "obs/robot0_joint_vel"))
    hand = first.signals["pose/robot0_eef"].values
    np.testing.assert_array_equal(hand[:, :3], stored(path, "obs/robot0_eef_pos"))
    np.testing.assert_array_equal(hand[0, 3:], [0.9, 0.1, 0.2, 0.3])  # theirs is xyzw
    assert first.origin == f"{path}#demo_0"
    named = load_log(path, joints=["pan", "lift"], task="lift a cube", units="deg")[0]
    assert (named.joints, named.task, named.units.joints[0].unit) == (("pan", "lift"), "lift a cube", "deg")


def test_inputs_of_a_hand_controller_command_no_joint(tmp_path):
    (raw,) = read_raw(write_demos(tmp_path / "demo.hdf5"))
    assert raw.command == "none"
    assert not raw.action.any()
    assert raw.notes == (
        "50 Hz from env_args",
        "actions are inputs of OSC_POSE, from which no joint's command follows: left out",
    )


def test_steps_of_position_are_added_to_what_was_measured(tmp_path):
    path = write_demos(tmp_path / "demo.hdf5", POSITION)
    (raw,) = read_raw(path)
    expected = stored(path, "obs/robot0_joint_pos") + 0.05 * np.clip(stored(path, "actions")[:, :2], -1, 1)
    assert raw.command == "position"
    np.testing.assert_allclose(raw.action, expected)


def test_absolute_positions_are_taken_as_they_are(tmp_path):
    parts = {"body_parts": {"right": POSITION | {"input_type": "absolute"}}}  # as robosuite 1.5 defines it
    path = write_demos(tmp_path / "demo.hdf5", parts)
    (raw,) = read_raw(path)
    assert raw.command == "position"
    np.testing.assert_array_equal(raw.action, stored(path, "actions")[:, :2])


def test_torques_are_commands_where_nothing_is_added_to_them(tmp_path):
    path = write_demos(tmp_path / "plain.hdf5", TORQUE | {"use_torque_compensation": False})
    (raw,) = read_raw(path)
    assert raw.command == "torque"
    np.testing.assert_allclose(raw.action, np.clip(stored(path, "actions")[:, :2], -1, 1) * [1, 2])
    (helped,) = read_raw(write_demos(tmp_path / "helped.hdf5", TORQUE))
    assert helped.command == "none"


def test_a_file_that_does_not_say_its_rate_is_read_at_the_default_and_says_so(tmp_path):
    (raw,) = read_raw(write_demos(tmp_path / "demo.hdf5", env={"env_name": "Mug"}))
    assert raw.notes[0] == "20 Hz assumed: robosuite's default, env_args have none"
    assert raw.source == "real"
    np.testing.assert_allclose(raw.time[1], 0.05)


@pytest.mark.parametrize(
    ("observations", "message"),
    [
        ({}, r"demo_0 has no obs/robot0_joint_pos, the joints' positions. Its observations are: none"),
        ({"robot0_eef_pos": np.zeros((4, 3))}, r"Its observations are: robot0_eef_pos"),
        ({"robot0_joint_pos": np.array([[0.0], [np.nan], [1], [2]])}, r"state of joint1 is nan at frame 1"),
        ({"robot0_joint_pos": np.zeros((0, 2))}, r"action has shape|is empty"),
        ({"robot0_joint_pos": np.array([b"a", b"b"])}, r"holds \|S1 values where numbers should be"),
    ],
)
def test_what_cannot_be_used_says_why(tmp_path, observations, message):
    path = write_demos(tmp_path / "demo.hdf5", observations=observations)
    with pytest.raises(LogError, match=message):
        load_log(path)


def test_files_that_are_something_else_say_so(tmp_path):
    path = tmp_path / "other.hdf5"
    with h5py.File(path, "w") as file:
        file["weights"] = np.zeros(3)
    with pytest.raises(LogError, match=r"has no group data, as robomimic's files have. It has: weights"):
        load_log(path)
    whole = write_demos(tmp_path / "demo.hdf5").read_bytes()
    (tmp_path / "torn.hdf5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LogError, match=r"torn.hdf5 cannot be opened as HDF5 .* Copy it again"):
        load_log(tmp_path / "torn.hdf5")
    write_demos(tmp_path / "empty.hdf5", demos=())
    with pytest.raises(LogError, match="empty.hdf5 has no episodes"):
        load_log(tmp_path / "empty.hdf5")


def test_a_file_that_links_outside_reads_nothing_there(tmp_path):
    secret = write_demos(tmp_path / "secret.hdf5")
    path = write_demos(tmp_path / "demo.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_0/obs/robot0_joint_pos"]
        file["data/demo_0/obs/robot0_joint_pos"] = h5py.ExternalLink(secret.name, "/data/demo_0/actions")
    with pytest.raises(
        LogError, match=r"#demo_0/robot0_joint_pos is a link to another file, and links are not followed"
    ):
        load_log(path)
    with h5py.File(path, "a") as file:
        del file["data/demo_0/obs"]
        file["data/demo_0/obs"] = h5py.ExternalLink(secret.name, "/data/demo_0/obs")
    with pytest.raises(LogError, match=r"is a link to another file"):
        load_log(path)


def test_without_the_package_the_command_is_named(tmp_path, monkeypatch):
    path = write_demos(tmp_path / "demo.hdf5")
    real_import = builtins.__import__

    def no_h5py(name, *args, **kwargs):
        if name == "h5py":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_h5py)
    with pytest.raises(MissingDependencyError, match=r"demo.hdf5 is an HDF5 file.*pip install 'twinloop\[hdf5\]'"):
        load_log(path)
