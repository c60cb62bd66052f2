"""Run by the interpreter of LeRobot's own environment: what LeRobot makes of dataset folders, as JSON on the last line.

python lerobot_side.py load JOBS.json        of each {name, folder, target, frames}: items into the npz file
                                              ``target``, a DataLoader batch, the statistics LeRobot computes
python lerobot_side.py convert PARENT NAME   LeRobot's own v2.1 to v3.0, in place
python lerobot_side.py train FOLDER          ACT, two steps on the CPU
python lerobot_side.py select JOBS.json      of each {checkpoint, observations, seeds, task, target}: the commands that
                                              LeRobot's own `predict_action` gives, step by step and world by world
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

# torchvision for CUDA looks for operators that are not there on the CPU; their declarations are enough to import it.
_FRAGMENT = torch.library.Library("torchvision", "FRAGMENT")
for _operator in ("nms", "qnms"):
    _FRAGMENT.define(f"{_operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def load(jobs: str) -> dict:
    return {
        job["name"]: load_one(job["folder"], job["target"], job["frames"]) for job in json.loads(Path(jobs).read_text())
    }


def load_one(folder: str, target: str, frames: list[int]) -> dict:
    from lerobot.datasets.compute_stats import compute_episode_stats
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    data = LeRobotDataset("local/set", root=folder)
    arrays: dict[str, np.ndarray] = {}
    for frame in frames:
        for key, value in data[frame].items():
            if isinstance(value, torch.Tensor):
                arrays[f"{frame}|{key}"] = value.numpy()
    np.savez(target, **arrays)
    batch = next(iter(torch.utils.data.DataLoader(data, batch_size=4, shuffle=False)))
    first = data.hf_dataset.select(range(data.meta.episodes[0]["length"]))
    features = {k: f for k, f in data.meta.features.items() if f["dtype"] not in ("video", "image", "string")}
    columns = {key: np.stack([np.asarray(v) for v in first[key]]) for key in features}
    stats = compute_episode_stats(columns, features)
    return {
        "episodes": data.num_episodes,
        "frames": data.num_frames,
        "tasks": sorted(map(str, data.meta.tasks.index)),
        "batch": {k: list(v.shape) for k, v in batch.items() if isinstance(v, torch.Tensor)},
        "stats": {key: {n: np.asarray(v).ravel().tolist() for n, v in row.items()} for key, row in stats.items()},
        "loaded": {k: {n: list(np.shape(v)) for n, v in row.items()} for k, row in data.meta.stats.items()},
    }


def convert(parent: str, name: str) -> dict:
    from lerobot.datasets.v30.convert_dataset_v21_to_v30 import convert_dataset

    convert_dataset(name, root=parent, push_to_hub=False)
    return {"info": json.loads((Path(parent) / name / "meta/info.json").read_text())["codebase_version"]}


def train(folder: str) -> dict:
    from lerobot.configs.types import FeatureType
    from lerobot.datasets.lerobot_dataset import LeRobotDataset, LeRobotDatasetMetadata
    from lerobot.datasets.utils import dataset_to_policy_features
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.factory import make_policy, make_pre_post_processors

    torch.manual_seed(0)
    meta = LeRobotDatasetMetadata("local/set", root=folder)
    features = dataset_to_policy_features(meta.features)
    config = ACTConfig(
        input_features={k: f for k, f in features.items() if f.type is not FeatureType.ACTION},
        output_features={k: f for k, f in features.items() if f.type is FeatureType.ACTION},
        pretrained_backbone_weights=None,
        device="cpu",
        chunk_size=10,
        n_action_steps=10,
        dim_model=64,
        n_heads=2,
        dim_feedforward=128,
    )
    policy = make_policy(config, ds_meta=meta)
    before, _ = make_pre_post_processors(config, dataset_stats=meta.stats)
    delta = {"action": [i / meta.fps for i in range(10)]}
    data = LeRobotDataset("local/set", root=folder, delta_timestamps=delta)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    losses = []
    for _, batch in zip(range(2), torch.utils.data.DataLoader(data, batch_size=2, shuffle=True), strict=False):
        loss, _ = policy.forward(before(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return {"losses": losses}


def select(jobs: str) -> dict:
    for job in json.loads(Path(jobs).read_text()):
        select_one(**job)
    return {}


def select_one(checkpoint: str, observations: str, seeds: str, task: str, target: str) -> None:
    """Observations ``(nstep, nworld, …)`` by key; ``seeds`` ``(nstep, nworld)`` are of steps that predict."""
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    from lerobot.utils.control_utils import predict_action

    config = PreTrainedConfig.from_pretrained(checkpoint)
    policy = get_policy_class(config.type).from_pretrained(checkpoint, config=config)
    before, after = make_pre_post_processors(config, checkpoint)
    seen, draws = np.load(observations), np.load(seeds)
    nstep, nworld = draws.shape
    torch.set_num_threads(1)
    made = []
    for world in range(nworld):
        policy.reset()
        for step in range(nstep):
            torch.manual_seed(int(draws[step, world]))
            one = {key: seen[key][step, world] for key in seen.files}
            answer = predict_action(one, policy, torch.device("cpu"), before, after, use_amp=False, task=task)
            made.append(answer.numpy().reshape(-1))
    np.save(target, np.array(made).reshape(nworld, nstep, -1).swapaxes(0, 1))


if __name__ == "__main__":
    answer = {"load": load, "convert": convert, "train": train, "select": select}[sys.argv[1]](*sys.argv[2:])
    print("\n" + json.dumps(answer))  # noqa: T201 - the answer
