"""LeRobot's policies as ours: trained by LeRobot itself, run in our loops, their numbers those of LeRobot's own loop.

``TWINLOOP_LEROBOT_PYTHON`` names the interpreter of an environment that ``scripts/lerobot_env.sh`` made.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.training import config
from twinloop.catalog import Workspace
from twinloop.cli.main import main
from twinloop.core.errors import InputError
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.policies import PolicyLoop, open_policy
from twinloop.train.lerobot import train_lerobot
from twinloop.train.lerobot_policy import LeRobotEndedError, LeRobotPolicy, _noise_seeds

PYTHON = os.environ.get("TWINLOOP_LEROBOT_PYTHON", "")
SIDE = Path(__file__).parents[1] / "support" / "lerobot_side.py"
SMALL_ACT = {
    "chunk_size": 8,
    "n_action_steps": 4,
    "dim_model": 32,
    "n_heads": 2,
    "dim_feedforward": 32,
    "n_encoder_layers": 1,
    "n_vae_encoder_layers": 1,
    "pretrained_backbone_weights": None,
}
SMALL_DIFFUSION = {
    "horizon": 8,
    "n_action_steps": 4,
    "down_dims": [16, 32],
    "num_inference_steps": 3,
    "diffusion_step_embed_dim": 16,
    "crop_shape": None,
    "spatial_softmax_num_keypoints": 4,
}
GENERATED = """
scene: {{robot: so101, task: pick_and_place}}
rollout: {{parallel_envs: 4, environment_state: {tracker}}}
{render}
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(PYTHON).is_file(), reason="TWINLOOP_LEROBOT_PYTHON names no interpreter with LeRobot"),
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


def generated(folder: Path, *, images: bool, episodes: int = 4, seed: int = 0) -> Path:
    """Episodes of the SO-101, watched by a tracker or by a camera."""
    render = "render: {cameras: [front], height: 48, width: 64}" if images else ""
    file = folder / "generate.yaml"
    file.write_text(GENERATED.format(tracker="false" if images else "true", render=render))
    words = ["generate", str(file), "--output", str(folder / "set"), "--episodes", str(episodes), "--seed", str(seed)]
    assert main(words) == 0
    return folder / ("set-images" if images else "set")


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """ACT on joints and tracker."""
    root = tmp_path_factory.mktemp("states")
    said = {"policy": "lerobot:act", "settings": SMALL_ACT, "lr": 0.0, "steps": 4, "batch": 8}
    train_lerobot(config(generated(root, images=False), **said), root / "act")
    return root / "act"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A diffusion policy on joints and a camera; it looks back one step and draws by chance."""
    root = tmp_path_factory.mktemp("images")
    said = {"policy": "lerobot:diffusion", "settings": SMALL_DIFFUSION, "lr": 0.0, "steps": 2, "batch": 2}
    train_lerobot(config(generated(root, images=True), **said), root / "diffusion")
    return root / "diffusion"


class Watched:
    """A policy whose draws are written down."""

    def __init__(self, policy: LeRobotPolicy) -> None:
        self.policy, self.noise = policy, []
        for name in ("contract", "settings", "noise_size", "observation_keys"):
            setattr(self, name, getattr(policy, name))

    def predict_with_features(self, seen, noise=None, domain=None):
        self.noise.append(noise)
        return self.policy.predict_with_features(seen, noise, domain)


def observed(policy: LeRobotPolicy, nstep: int, nworld: int) -> dict[str, np.ndarray]:
    """Observations of no particular worlds, ``(nstep, nworld, …)``."""
    rng = np.random.default_rng(0)
    made = {}
    for key in policy.observation_keys:
        camera = policy.contract.cameras.get(key.removeprefix("observation.images."))
        size = {"observation.state": 6, "observation.environment_state": 11}.get(key)
        if camera is not None:
            made[key] = rng.integers(0, 256, (nstep, nworld, *camera, 3), dtype=np.uint8)
        else:
            made[key] = rng.normal(scale=30, size=(nstep, nworld, size)).astype(np.float32)
    return made


def compared(folder: Path, tmp_path: Path, *, nstep: int, nworld: int) -> tuple[np.ndarray, np.ndarray]:
    """The commands of our loop over all worlds at once, and of LeRobot's own over each."""
    policy = open_policy(folder)
    assert isinstance(policy, LeRobotPolicy)
    seen = observed(policy, nstep, nworld)
    watched = Watched(policy)
    acting = PolicyLoop(watched, nworld, run_seed=5)
    ours, seeds = [], np.zeros((nstep, nworld), dtype=np.int64)
    for step in range(nstep):
        ours.append(acting.act({key: rows[step] for key, rows in seen.items()}))
        if acting.predicted.any() and watched.noise[-1] is not None:
            seeds[step] = _noise_seeds(watched.noise[-1]).view("<u8")[:, 0] >> 1
    policy.close()
    np.savez(tmp_path / "seen.npz", **seen)
    np.save(tmp_path / "seeds.npy", seeds)
    job = {
        "checkpoint": str(folder / "pretrained_model"),
        "observations": str(tmp_path / "seen.npz"),
        "seeds": str(tmp_path / "seeds.npy"),
        "task": policy.settings.instruction,
        "target": str(tmp_path / "theirs.npy"),
    }
    (tmp_path / "jobs.json").write_text(json.dumps([job]))
    command = [PYTHON, str(SIDE), "select", str(tmp_path / "jobs.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return np.array(ours), np.load(tmp_path / "theirs.npy")


def test_act_commands_what_lerobots_own_loop_commands(states, tmp_path):
    ours, theirs = compared(states, tmp_path, nstep=10, nworld=3)
    difference = float(np.abs(ours - theirs).max())
    print(f"ACT: {difference:.2g} deg of {np.ptp(theirs):.0f}")  # noqa: T201 - the figure of docs/guides/training.md
    assert difference < 1e-4
    assert np.ptp(theirs, axis=0).max() > 0.1  # they depend on the observation


def test_ensembling_is_lerobots(states, tmp_path):
    """The same weights with ``temporal_ensemble_coeff``: our mean of predictions is theirs."""
    from twinloop.policies import PolicyCard
    from twinloop.train.lerobot_policy import save_lerobot

    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for file in (states / "pretrained_model").iterdir():
        (checkpoint / file.name).write_bytes(file.read_bytes())
    said = json.loads((checkpoint / "config.json").read_text())
    said |= {"temporal_ensemble_coeff": 0.01, "n_action_steps": 1}
    (checkpoint / "config.json").write_text(json.dumps(said))
    known = open_policy(states)
    known.close()
    save_lerobot(checkpoint, tmp_path / "ensemble", known.contract, card=PolicyCard())
    ours, theirs = compared(tmp_path / "ensemble", tmp_path, nstep=12, nworld=2)
    assert np.abs(ours - theirs).max() < 1e-3


def test_a_policy_with_memory_images_and_chance_does_too(images, tmp_path):
    ours, theirs = compared(images, tmp_path, nstep=7, nworld=2)
    difference = float(np.abs(ours - theirs).max())
    print(f"diffusion: {difference:.2g} deg of {np.ptp(theirs):.0f}")  # noqa: T201 - the figure of docs/guides/training.md
    assert difference < 1e-3
    assert np.abs(ours[:, 0] - ours[:, 1]).max() > 0.1


def test_it_is_evaluated_registered_and_run_like_any_other(states, tmp_path, monkeypatch, capsys):
    out = tmp_path / "evaluated"
    words = ["evaluate", str(states), "--suite", "nominal", "--episodes", "20", "--output", str(out), "--json"]
    assert main(words) == 0
    made = json.loads(capsys.readouterr().out.splitlines()[-1])["evaluations"][0]
    kept = json.loads((states / "config.json").read_text())
    assert made["policy_hash"] == kept["hash"]
    whole = pq.read_table(out / "trials.parquet")
    assert whole.num_rows == 20
    fewer = ["evaluate", str(states), "--suite", "nominal", "--episodes", "3", "--output", str(tmp_path / "fewer")]
    assert main(fewer) == 0
    some = pq.read_table(tmp_path / "fewer" / "trials.parquet")
    for name in ("success", "progress"):  # alone and in company
        assert some[name].to_pylist() == whole[name].to_pylist()[:3]

    Workspace.create(tmp_path / "cell").close()
    monkeypatch.chdir(tmp_path / "cell")
    assert main(["policies", "add", str(states), "--name", "act"]) == 0
    robot = "virtual:so101_tabletop?seed=3&task=pick_and_place"
    words = ["run", "--robot", robot, "--policy", "act@1", "--episodes", "1", "--output", str(tmp_path / "ran")]
    assert main(words) == 0
    reader = DatasetReader(tmp_path / "ran")
    assert len(reader) == 1
    assert np.isfinite(reader.array(0, "action")).all()


def test_a_changed_checkpoint_is_refused_and_a_killed_interpreter_said(states, tmp_path):
    policy = open_policy(states)
    seen = {key: rows[0][:, None] for key, rows in observed(policy, 1, 2).items()}
    assert policy.predict(seen).shape == (2, 8, 6)
    with pytest.raises(InputError, match=r"observation.state has shape \(2, 1, 5\); the policy needs \(n, 1, 6\)"):
        policy.predict({**seen, "observation.state": seen["observation.state"][:, :, :5]})
    policy._child._process.kill()
    with pytest.raises(LeRobotEndedError, match=r"for .*pretrained_model ended \(code -9\)"):
        policy.predict(seen)

    import shutil

    shutil.copytree(states, tmp_path / "other")
    file = tmp_path / "other" / "pretrained_model" / "config.json"
    file.write_text(file.read_text().replace('"n_action_steps": 4', '"n_action_steps": 5'))
    with pytest.raises(InputError, match="checkpoint, settings or contract were changed after it was saved"):
        open_policy(tmp_path / "other")


def called_real(folder: Path) -> Path:
    """Set the source of every episode to "real" and return the folder."""
    for file in (folder / "meta" / "episodes").glob("*/*.parquet"):
        table = pq.read_table(file)
        place = table.column_names.index("provenance/source")
        table = table.set_column(place, "provenance/source", pa.array(["real"] * len(table)))
        pq.write_table(table, file)
    return folder


def test_a_mixture_of_two_sources_has_its_shares_and_trains_on(tmp_path, capsys):
    """Six simulated episodes and two that are called real, half and half; trained by the command, and gone on with."""
    (tmp_path / "real").mkdir()
    (tmp_path / "sim").mkdir()
    sim = generated(tmp_path / "sim", images=False, episodes=6)
    real = called_real(generated(tmp_path / "real", images=False, episodes=2, seed=1))
    out = tmp_path / "mixed"
    words = ["train", "--policy", "lerobot:act", "--data", str(sim), str(real), "--sim-fraction", "0.5", "--json"]
    words += ["--steps", "10", "--batch", "4", "--output", str(out), "--set"]
    words += [f"{key}={json.dumps(value)}" for key, value in SMALL_ACT.items()]
    capsys.readouterr()
    assert main(words) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    of_sim, of_real = metrics["sources"]
    lengths = [DatasetReader(folder).lengths.sum() for folder in (sim, real)]
    assert (of_sim["episodes"], of_sim["written"], of_sim["frames"], of_sim["real"]) == (6, 6, lengths[0], False)
    assert (of_real["episodes"], of_real["real"]) == (2, True)
    assert of_real["frames"] == of_real["written"] * lengths[1] / 2  # all are of one length
    assert abs(of_real["share_realized"] - 0.5) < 0.05
    mixture = DatasetReader(tmp_path / "mixed.lerobot" / "dataset")
    assert len(mixture) == 6 + of_real["written"]
    assert int(mixture.lengths.sum()) == of_sim["frames"] + of_real["frames"]
    assert [step for step, _ in metrics["losses"]] == list(range(1, 11))

    (out / "result.json").unlink()
    again = ["14" if word == "10" else word for word in words]
    assert main([*again[: again.index("--set")], "--resume"]) == 0
    resumed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert resumed["losses"][0][0] == 11
    assert resumed["hash"] != metrics["hash"]
    assert open_policy(out).hash == resumed["hash"]
