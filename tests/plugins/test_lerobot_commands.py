"""LeRobot 0.6.1's own commands with our plugins and our datasets; `support.lerobot06` has its environment."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from support.lerobot06 import environment, run
from twinloop.cli.main import main
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.hardware import open_robot
from twinloop.tasks import open_task
from twinloop.twin import load_twin

pytestmark = pytest.mark.slow

SIDE = Path(__file__).parents[1] / "support" / "lerobot06_side.py"
TASK = "Pick up the cube and place it on the target."
CAMERA = "cameras=front&height=96&width=128"
TINY_ACT = [
    *("--policy.type=act", "--policy.device=cpu", "--policy.push_to_hub=false"),
    *("--policy.pretrained_backbone_weights=null", "--policy.use_vae=false", "--policy.dim_model=64"),
    *("--policy.n_heads=2", "--policy.dim_feedforward=128", "--policy.chunk_size=20", "--policy.n_action_steps=20"),
    *("--batch_size=2", "--num_workers=0", "--wandb.enable=false", "--log_freq=2", "--dataset.video_backend=pyav"),
]
PAGE = Path(__file__).parents[2] / "docs/guides/lerobot.md"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    environment()
    return tmp_path_factory.mktemp("lerobot")


def ask(home: Path, *words: object) -> dict:
    return json.loads(run("python", SIDE, *words, home=home).splitlines()[-1])


def dataset(name: str, home: Path) -> list[str]:
    return [f"--dataset.repo_id=local/{name}", f"--dataset.root={home / name}"]


@pytest.fixture(scope="module")
def recorded(home):
    """Two demonstrations of the expert on the nominal twin, recorded by lerobot-record with its default codec."""
    run(
        "lerobot-record",
        "--robot.type=twinloop",
        f"--robot.address=twin:so101_tabletop?{CAMERA}",
        "--robot.scene_s=8.5",
        "--robot.step_hz=30",
        "--robot.robot_type=so_follower",
        "--teleop.type=twinloop_expert",
        *dataset("recorded", home),
        "--dataset.no_stamp=true",
        "--dataset.num_episodes=2",
        "--dataset.episode_time_s=6",
        "--dataset.reset_time_s=2",
        f"--dataset.single_task={TASK}",
        "--dataset.push_to_hub=false",
        "--play_sounds=false",
        home=home,
    )
    return home / "recorded"


@pytest.fixture(scope="module")
def generated(home):
    """Three episodes of ours with images and depth annotations."""
    (home / "generate.yaml").write_text(
        "scene: {twin: so101_tabletop, task: pick_and_place}\nrollout: {environment_state: true}\n"
        "render: {cameras: [front], height: 96, width: 128, annotations: [depth]}\n"
    )
    assert main(["generate", str(home / "generate.yaml"), "--episodes", "3", "--output", str(home / "ours")]) == 0
    return home / "ours-images"


def test_the_recorded_demonstrations_are_repeated_exactly_and_solve_the_task(recorded):
    """Each recorded episode begins with a new scene, and each command is simulated for one frame."""
    reader, robot = DatasetReader(recorded), open_robot("twin:so101_tabletop")
    assert reader.info["robot_type"] == "so_follower"
    assert reader.cameras == ["front"]
    assert [row["tasks"] for row in map(reader.row, range(2))] == [[TASK]] * 2
    for episode in range(2):
        state, action = reader.array(episode, "observation.state"), reader.array(episode, "action")
        assert 150 <= len(action) <= 182  # 6 s at 30 Hz, a little less on a busy machine
        robot.connect()
        for seen, row in zip(state, action, strict=True):
            reading = robot.get_observation()
            assert np.abs(np.array([reading[key] for key in robot.action_features]) - seen).max() < 0.05  # deg, percent
            robot.send_action(dict(zip(robot.action_features, row, strict=True)))
            robot.clock.wait_until(robot.clock.now() + 1 / 30)
        assert robot.success()
        robot.disconnect()


def test_the_commands_of_the_page_run_as_written(home):
    """Teleoperate, record, replay, train, rollout, eval, export and merge."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    (home / "page").mkdir()
    (home / "page.sh").write_text("set -e\ncd page\n" + "\n".join(blocks))
    run("sh", home / "page.sh", home=home, timeout=900)
    page = home / "page"
    assert len(DatasetReader(page / "demo")) == 2
    assert len(DatasetReader(page / "rollout")) == 2
    assert len(DatasetReader(page / "merged")) == 4
    found = json.loads((page / "eval/eval_info.json").read_text())["overall"]
    assert (found["n_episodes"], len(found["video_paths"])) == (4, 4)


def test_lerobots_own_evaluation_counts_the_successes_of_an_expert(home):
    answer = ask(home, "evaluate", "pick_and_place")
    task = open_task("pick_and_place", load_twin("so101_tabletop"))
    assert answer["fps"] == 30
    assert answer["features"] == {
        "action": [6],
        "agent_pos": [6],
        "environment_state": [len(task.environment_names)],
    }
    assert answer["successes"] == answer["truth"]
    assert sum(answer["truth"]) >= 3  # of the four worlds in which the expert acts


def test_lerobot_loads_our_depth_and_language_and_trains_on_the_rest(home, generated):
    words = ["export", "lerobot", str(generated), "--set", "language=subtasks"]
    assert main([*words, "--set", "depth=front", "--output", str(home / "rich")]) == 0
    answer = ask(home, "frames", home / "rich")
    assert answer["episodes"] == 3
    assert answer["number"] == 0.0
    assert answer["pixel"] < 0.51
    assert answer["depth_m"] < 0.00051  # LeRobot rounds to mm
    assert all(row[:3] == ["reach", "grasp", "lift"] for row in answer["subtasks"])
    assert main([*words, "--output", str(home / "lang")]) == 0
    run("lerobot-train", *dataset("lang", home), *TINY_ACT, "--steps=2", f"--output_dir={home / 'act2'}", home=home)


def test_lerobot_merges_ours_with_its_own_recording(home, generated, recorded):
    words = ["export", "lerobot", str(generated), "--output", str(home / "like"), "--set", f"like={recorded}"]
    assert main(words) == 0
    run(
        "lerobot-edit-dataset",
        "--new_repo_id=local/merged",
        f"--new_root={home / 'merged'}",
        "--operation.type=merge",
        "--operation.repo_ids=['local/like','local/recorded']",
        f"--operation.roots=['{home / 'like'}','{recorded}']",
        "--push_to_hub=false",
        home=home,
    )
    answer = ask(home, "frames", home / "merged")
    assert answer["episodes"] == 5
    assert answer["frames"] == sum(int(DatasetReader(home / name).lengths.sum()) for name in ("like", "recorded"))
    assert answer["number"] == 0.0
    assert answer["pixel"] < 0.51
    run("lerobot-train", *dataset("merged", home), *TINY_ACT, "--steps=2", f"--output_dir={home / 'act3'}", home=home)


def test_twinloop_opens_edits_and_exports_what_lerobot_recorded(home):
    folder = home / "theirs"
    ask(home, "record", folder)
    stored = np.load(f"{folder}.npy")[..., 0] / 1000
    words = ["edit", "delete", str(folder), "--episodes", "0", "--output", str(home / "deleted")]
    assert main(words) == 0
    assert main(["export", "lerobot", str(folder), "--output", str(home / "copied"), "--verify"]) == 0
    for name, true in (("theirs", stored), ("copied", stored), ("deleted", stored[15:])):
        reader = DatasetReader(home / name)
        assert (reader.cameras, reader.depth_cameras) == ([], ["front_depth"])
        for episode in range(len(reader)):
            for frame in (0, 7, 14):
                seen = reader.depth(episode, "front_depth", [frame])[0]
                assert np.abs(seen - true[15 * episode + frame]).max() < 0.0015  # half a code at 3 m
            rows = reader.frames_table(episode)["language_persistent"].to_pylist()
            assert rows[0][0]["content"] == "reach"
        assert ask(home, "frames", home / name)["depth_m"] < 0.00051
        shutil.rmtree(home / name)
