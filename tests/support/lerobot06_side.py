"""Run by the interpreter of LeRobot 0.6.1's environment; the answer is JSON on the last line.

python lerobot06_side.py frames FOLDER      ten random frames as LeRobot loads them, and as twinloop stores them
python lerobot06_side.py evaluate TASK      which of eight worlds succeed in LeRobot's own `rollout`
python lerobot06_side.py record FOLDER      a dataset with depth and language columns, written by LeRobot
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch


def frames(folder: str) -> dict:
    from lerobot.datasets import LeRobotDataset

    from twinloop.dataset.lerobot.reader import DatasetReader

    data, reader = LeRobotDataset("local/set", root=folder, video_backend="pyav"), DatasetReader(folder)
    ends = np.cumsum(reader.lengths)
    worst = {"number": 0.0, "pixel": 0.0, "depth_m": 0.0}
    subtasks = []
    for index in np.sort(np.random.default_rng(0).choice(len(data), 10, replace=False)).tolist():
        episode = int(np.searchsorted(ends, index, side="right"))
        frame = index - int(ends[episode - 1] if episode else 0)
        item = data[index]
        for key, value in item.items():
            kind = data.meta.features.get(key, {}).get("dtype")
            if kind in ("float32", "bool", "int64"):
                own = np.ravel(reader.array(episode, key)[frame]).astype(np.float32)
                worst["number"] = max(worst["number"], float(np.abs(np.ravel(value.float().numpy()) - own).max()))
        for camera in reader.cameras:
            seen = item[f"observation.images.{camera}"].numpy().transpose(1, 2, 0) * 255
            worst["pixel"] = max(worst["pixel"], float(np.abs(seen - reader.images(episode, camera, [frame])[0]).max()))
        for camera in reader.depth_cameras:
            seen = item[f"observation.images.{camera}"].numpy()[0] / 1000
            worst["depth_m"] = max(worst["depth_m"], float(np.abs(seen - reader.depth(episode, camera, [frame])).max()))
        subtasks.append([row["content"] for row in item.get("language_persistent", [])])
    return {"frames": len(data), "episodes": data.num_episodes, "subtasks": subtasks, **worst}


class _Commands(torch.nn.Module):
    """A policy for LeRobot's `rollout`, whose actions are given for every step ``(nworld, nstep, n)``."""

    def __init__(self, actions):
        super().__init__()
        self._actions, self._step = torch.as_tensor(actions), 0

    def reset(self):
        self._step = 0

    def select_action(self, _):
        self._step += 1
        return self._actions[:, self._step - 1]


def evaluate(task: str) -> dict:
    from lerobot.envs import make_env
    from lerobot.envs.factory import make_env_config
    from lerobot.scripts.lerobot_eval import rollout
    from lerobot.utils.import_utils import register_third_party_plugins

    from twinloop.randomize import Plan, default_draws
    from twinloop.rollout import run_batch
    from twinloop.tasks import open_task
    from twinloop.twin import load_twin

    register_third_party_plugins()
    config = make_env_config("twinloop", task=task, environment_state=True)
    env = make_env(config, n_envs=8)["twinloop"][0]
    twin, worlds = load_twin("so101_tabletop"), list(range(8))
    plan = Plan(twin=twin, run_seed=0, draws=tuple(default_draws(twin)))
    made = run_batch(twin, open_task(task, twin), plan.draw(worlds), run_seed=0, episodes=worlds)
    actions = made.action.astype(np.float32)
    actions[::2] = actions[::2, :1]  # every second world holds its first command, and fails
    same = [lambda value: value] * 4
    done = rollout(env, _Commands(actions), *same, seeds=worlds)
    features = {key: list(feature.shape) for key, feature in config.features.items()}
    truth = [bool(solved) and world % 2 == 1 for world, solved in enumerate(made.success)]
    return {
        "successes": done["success"].any(dim=1).tolist(),
        "truth": truth,
        "features": features,
        "fps": config.fps,
    }


def record(folder: str) -> dict:
    import pyarrow.parquet as pq
    from lerobot.annotations.steerable_pipeline.writer import LanguageColumnsWriter, _normalize_persistent_row
    from lerobot.datasets import LeRobotDataset
    from lerobot.datasets.language import language_feature_info

    depth = {"dtype": "video", "shape": (48, 64, 1), "names": ["height", "width", "channels"]}
    features = {
        "action": {"dtype": "float32", "shape": (2,), "names": ["a.pos", "b.pos"]},
        "observation.state": {"dtype": "float32", "shape": (2,), "names": ["a.pos", "b.pos"]},
        "observation.images.front_depth": depth | {"info": {"is_depth_map": True}},
    }
    data = LeRobotDataset.create("local/set", 30, root=folder, robot_type="x", features=features, use_videos=True)
    rng, stored = np.random.default_rng(0), []
    for _ in range(2):
        for _ in range(15):
            stored.append(rng.integers(300, 3000, size=(48, 64, 1), dtype=np.uint16))
            values = rng.normal(size=2).astype(np.float32)
            data.add_frame(
                {
                    "action": values,
                    "observation.state": values,
                    "observation.images.front_depth": stored[-1],
                    "task": "t",
                }
            )
        data.save_episode()
    data.finalize()
    np.save(f"{folder}.npy", np.stack(stored))
    for path in Path(folder).glob("data/*/*.parquet"):
        table = pq.read_table(path)
        row = {"role": "assistant", "content": "reach", "style": "subtask", "timestamp": 0.0}
        rows = [[_normalize_persistent_row(row)]] * table.num_rows
        pq.write_table(
            LanguageColumnsWriter()._materialize_table(table, rows, [[]] * table.num_rows, drop_old=False), path
        )
    info = Path(folder) / "meta/info.json"
    described = json.loads(info.read_text())
    described["features"] |= json.loads(json.dumps(language_feature_info()))
    info.write_text(json.dumps(described))
    return {}


if __name__ == "__main__":
    answer = {"frames": frames, "evaluate": evaluate, "record": record}[sys.argv[1]](*sys.argv[2:])
    print("\n" + json.dumps(answer))  # noqa: T201 - the answer
