"""The three-dimensional view and the twin's replay show the motion that the dataset and the engine have."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace

import mujoco
import numpy as np
import pytest

from support.exports import generated_dataset
from support.real_data import real_set
from twinloop.catalog import Workspace
from twinloop.core.errors import InputError
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.simulate.protocol import STATE_SPEC
from twinloop.studio.data import StudioData
from twinloop.studio.jobs import Jobs
from twinloop.studio.scene import describe_robot, describe_scene, read_poses, read_robot_poses
from twinloop.studio.twin_replay import replay_in_twin
from twinloop.twin import load_twin
from twinloop.workflows.data.logs import open_log


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    root = tmp_path_factory.mktemp("studio") / "cell"
    with Workspace.create(root) as ws:
        ws.add(generated_dataset(root.parent / "mast"))
        yield StudioData(ws, "tester", root)


def test_shapes_are_those_of_the_model_and_poses_those_of_its_states(simulated):
    ids = [row["episode_id"] for row in simulated.rows("SELECT episode_id FROM episodes ORDER BY episode_index")]
    scene = describe_scene(simulated, ids[1])
    shapes = {geom["name"]: geom for geom in scene["geoms"]}
    assert list(shapes) == ["floor", "arm", "hand"]
    assert shapes["floor"]["plane"] == [3.0, 3.0]
    corners = np.frombuffer(base64.b64decode(shapes["arm"]["corners"]), np.float32).reshape(-1, 3)
    assert np.abs(corners).max(axis=0) == pytest.approx([0.3, 0.1, 0.05])
    triangles = np.frombuffer(base64.b64decode(shapes["hand"]["triangles"]), np.uint32)
    assert len(triangles) == 12
    assert shapes["arm"]["rgba"] == [0.9, 0.3, 0.1, 1.0]

    reader, index = simulated.open_episode(ids[1])
    states = reader.states(index)
    poses = np.frombuffer(read_poses(simulated, ids[1]), np.float32).reshape(len(states) - 1, 3, 7)
    model = load_twin(str(reader.path.parent / "mast.yaml")).model
    data = mujoco.MjData(model)
    for frame in (0, len(poses) // 2, len(poses) - 1):
        mujoco.mj_setState(model, data, states[frame], STATE_SPEC)
        mujoco.mj_forward(model, data)
        assert poses[frame, :, :3] == pytest.approx(data.geom_xpos, abs=1e-5)
        for geom in range(3):
            turn = np.empty(9)
            mujoco.mju_quat2Mat(turn, poses[frame, geom, 3:].astype(float))
            assert turn == pytest.approx(data.geom_xmat[geom], abs=1e-5)


def test_without_a_twin_there_is_no_replay(simulated):
    (row,) = simulated.rows("SELECT episode_id FROM episodes WHERE episode_index = 0")
    with pytest.raises(InputError, match=r"names no twin.*twinloop\.yaml"):
        replay_in_twin(simulated, row["episode_id"])


def test_a_real_episode_moves_beside_its_twin(tmp_path):
    real_set("so101_pick_place_tape")
    with Workspace.create(tmp_path / "cell", twin="so101_tabletop") as ws:
        log = open_log("so101_pick_place_tape")
        ws.add(write_log_dataset(log.episodes[7:8], ws.root / "data" / "tape"))
        data = StudioData(ws, "tester", ws.root)
        (row,) = data.rows("SELECT episode_id FROM episodes LIMIT 1")
        shown = replay_in_twin(data, row["episode_id"])
        channels = shown.to_json()["channels"]
        joints = shown.logs.twin.joint_qpos
        moved = shown.logs.units.from_si(shown.twin_qpos[:, joints])
        seen = shown.logs.units.from_si(shown.measured_qpos[:, joints])
        for number, channel in enumerate(channels):
            assert channel["predicted"][0] == pytest.approx(channel["measured"][0], abs=1e-3)
            assert moved[:, number] == pytest.approx(channel["predicted"], abs=1e-3)
            assert seen[:, number] == pytest.approx(channel["measured"], abs=1e-3)
            difference = np.subtract(channel["predicted"], channel["measured"])
            assert channel["rmse"] == pytest.approx(np.sqrt(np.mean(difference**2)), rel=1e-4)
        own = np.frombuffer(read_poses(data, row["episode_id"]), np.float32)
        twin = np.frombuffer(read_poses(data, row["episode_id"], of_twin=True), np.float32)
        assert own.shape == twin.shape
        assert np.abs(own - twin).max() > 1e-3


def test_another_twin_is_not_drawn_with_the_shapes_of_the_first(simulated, monkeypatch):
    (row,) = simulated.rows("SELECT episode_id FROM episodes WHERE episode_index = 0")
    other = SimpleNamespace(twin_qpos=np.zeros((3, 13)), logs=SimpleNamespace(twin=load_twin("so101_tabletop")))
    monkeypatch.setattr("twinloop.studio.scene.replay_in_twin", lambda *_: other)
    with pytest.raises(InputError, match="so101_tabletop has other shapes"):
        read_poses(simulated, row["episode_id"], of_twin=True)


def test_a_running_robot_moves_the_workspace_s_twin(tmp_path):
    folder = tmp_path / "cell"
    Workspace.create(folder, twin="so101_tabletop").close()
    job = folder / "runs" / ".studio" / "01RUN"
    job.mkdir(parents=True)
    (job / "job.json").write_text(json.dumps({"words": ["run"], "pid": 1, "born": "", "started": "2026-01-02"}))
    lines = [
        {"step": step, "measured/elbow_flex": 0.1 * step, "commanded/elbow_flex": 0.2 * step, "measured/unknown": 3.0}
        for step in range(5)
    ]
    (job / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with Workspace.open(folder) as workspace:
        data = StudioData(workspace, "tester", folder)
        rows = Jobs(root=folder).read_joints("01RUN")
        assert rows == [{"elbow_flex": pytest.approx(0.4), "unknown": 3.0}, {"elbow_flex": pytest.approx(0.8)}]
        shapes = describe_robot(data)["geoms"]
        poses = np.frombuffer(read_robot_poses(data, rows), "<f4").reshape(2, len(shapes), 7)
    model = load_twin("so101_tabletop").model
    for row, angle in zip(poses, (0.4, 0.8), strict=True):
        state = mujoco.MjData(model)
        state.qpos[:] = model.key_qpos[0] if model.nkey else model.qpos0
        state.joint("elbow_flex").qpos[0] = angle
        mujoco.mj_kinematics(model, state)
        for shape, pose in zip(shapes, row, strict=True):
            if shape["name"]:
                np.testing.assert_allclose(pose[:3], state.geom(shape["name"]).xpos, atol=1e-6)
