"""Training by reinforcement: the weights are those that act, resumed runs, curricula, reports, and clear errors."""

import importlib
import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from twinloop.cli.main import main
from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.policies.folder import read_card
from twinloop.randomize import Plan, default_draws, section_plan
from twinloop.simulate import open_backend
from twinloop.tasks import OwnTask, open_task
from twinloop.twin import load_twin

torch = pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")

from twinloop.envs import TwinVectorEnv  # noqa: E402
from twinloop.policies import open_policy  # noqa: E402
from twinloop.rollout.episodes import run_batch  # noqa: E402
from twinloop.rollout.policy_actor import PolicyActor  # noqa: E402
from twinloop.train import reinforce as module  # noqa: E402
from twinloop.train.ppo import EpisodeSums, PolicyWorlds, PpoTrainer, keep_random_states  # noqa: E402
from twinloop.train.reinforce import ReinforceConfig, ReinforceRun, reinforce  # noqa: E402
from twinloop.train.reward_report import make_report, run_actors  # noqa: E402

TWIN = load_twin("so101_tabletop")
PLAN = Plan(twin=TWIN, run_seed=3, draws=tuple(default_draws(TWIN)))
TASK = "reach_moving"
SMALL: dict[str, Any] = {
    "worlds": 2, "iterations": 2, "batch": 8, "passes": 1, "report_episodes": 2, "settings": {"width": 8, "depth": 1},
}  # fmt: skip


@pytest.fixture
def task():
    made = open_task(TASK, TWIN)
    made.nstep = 12
    return made


def make_env(plan, weights, worlds, nstep=12):
    return TwinVectorEnv(
        worlds, twin=TWIN, goal=TASK, randomization=plan, observation="lerobot", environment_state=True,
        action="dataset", reward=weights, autoreset_mode="Disabled", end_at_success=False, repeat_episode=True,
        max_episode_steps=nstep, nthread=1,
    )  # fmt: skip


def make_run(task, folder, plan=PLAN, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    config = ReinforceConfig.of({**SMALL, **changes})
    return ReinforceRun(plan=plan, task=task, task_name=TASK, config=config, folder=folder, make_env=make_env)


def test_the_result_has_every_iteration_and_the_policy_runs(task, tmp_path):
    made = reinforce(make_run(task, tmp_path / "policy"))
    assert [row["worlds"] for row in made["iterations"]] == [2, 2]
    assert made["steps"] == 48
    assert set(made["iterations"][0]["terms"]) == set(made["config"]["reward"])
    assert [row["actor"] for row in made["reward_report"]["rows"]] == ["zero", "random", "expert"]
    policy = open_policy(tmp_path / "policy")
    assert policy.hash == made["hash"]
    assert policy.kind == "mlp"
    assert not any(name.startswith("tool") for name in policy.contract.environment)
    assert "4 episodes" in read_card(tmp_path / "policy").provenance["acted"]
    assert not list((tmp_path / "policy").glob("checkpoint*"))


def test_an_interrupted_run_ends_with_the_same_weights(task, tmp_path, monkeypatch):
    whole = reinforce(make_run(task, tmp_path / "whole"))
    update = PpoTrainer.run_iteration

    def killed(self, **given):
        if (tmp_path / "cut" / "checkpoint.safetensors").exists():
            raise KeyboardInterrupt
        return update(self, **given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PpoTrainer, "run_iteration", killed)
        reinforce(make_run(task, tmp_path / "cut"))
    np.random.seed(5)  # noqa: NPY002 - the global states must have no effect
    torch.manual_seed(5)
    with pytest.raises(InputError, match="--resume"):
        reinforce(make_run(task, tmp_path / "cut"))
    for other in ({"lr": 0.1}, {"plan": Plan(twin=TWIN, run_seed=3, draws=())}):
        with pytest.raises(InputError, match="another configuration, twin, task or randomization"):
            reinforce(make_run(task, tmp_path / "cut", **other), resume=True)
    again = reinforce(make_run(task, tmp_path / "cut"), resume=True)
    assert again["hash"] == whole["hash"]
    assert again["iterations"] == whole["iterations"]


def test_training_drives_the_worlds_as_the_saved_policy_does(task, tmp_path):
    """Without exploration, states in training are those of the policy's own rollout, within float32 rounding."""
    run = make_run(task, tmp_path / "policy", settings={"width": 8, "depth": 1, "n_obs_steps": 3})
    reinforce(run)
    policy = open_policy(tmp_path / "policy")
    env = make_env(PLAN, {"progress": 1.0}, 3)
    numbers = np.array([7, 8, 9])
    worlds = PolicyWorlds(env, policy, columns=run.columns, nstep=12, start=lambda _: (3, numbers))
    trainer = PpoTrainer(policy, worlds, nstep=12, seed=0, init_std=0.5, options={"batch_size": 4})
    torch.nn.init.normal_(policy.network.head.weight, std=0.5)  # so that the commands differ between steps
    seen, states = worlds.reset(), []
    for _ in range(11):
        with torch.no_grad():
            actions = trainer.modules._predict(torch.from_numpy(seen), deterministic=True).numpy()
            chunk, _ = policy.network.sample(policy.encode(worlds._seen), torch.empty(3, 0))
        np.testing.assert_allclose(actions, chunk[:, 0].numpy(), atol=1e-6)
        seen = worlds.step(actions)[0]
        states.append(env.worlds.state.copy())
    batch = run_batch(
        TWIN, task, PLAN.draw(numbers.tolist()), run_seed=3, episodes=numbers.tolist(),
        actor=PolicyActor(policy=policy, task=task, twin=TWIN), backend=open_backend("threads", nthread=1),
    )  # fmt: skip
    np.testing.assert_allclose(np.stack(states, axis=1), batch.trajectories.states[:, 1:12], rtol=1e-4, atol=1e-4)
    assert np.abs(np.diff(batch.trajectories.commands, axis=1)).max() > 1e-3


def test_an_invalid_world_repeats_its_episode_and_counts_as_a_failure(task, tmp_path):
    run = make_run(task, tmp_path / "policy")
    policy = run.run(run.measure())
    env, ended = make_env(PLAN, {"progress": 1.0}, 2), list[EpisodeSums]()

    def start(sums):
        ended.extend([] if sums is None else [sums])
        return 3, np.array([0, 1])

    worlds = PolicyWorlds(env, policy, columns=run.columns, nstep=12, start=start)
    first, still = worlds.reset(), np.zeros((2, policy.action_size), dtype=np.float32)
    wild = still.copy()
    wild[0] = np.nan
    seen, _, over, _ = worlds.step(wild)
    assert over.tolist() == [True, False]
    np.testing.assert_array_equal(seen[0], first[0])  # the same episode from its start
    assert env.worlds.numbers.tolist() == [0, 1]
    for _ in range(11):
        seen, _, over, _ = worlds.step(still)
    assert over.all()
    assert ended[0].valid.tolist() == [False, True]
    assert not ended[0].success[0]


def adaptive_plan(every=4, **options):
    section = {"adaptive": {"names": ["joint/*/damping"], "every": every, "buffer": 1, **options}}
    name = next(n for n in TWIN.params if n.endswith("/damping"))
    section["adaptive"]["names"] = [name]
    return section_plan(section, TWIN, run_seed=3, episodes=64, where="here"), name


def test_ranges_grow_with_success_and_their_history_survives_an_interruption(task, tmp_path, monkeypatch):
    plan, name = adaptive_plan(boundary_probability=1.0, start="nominal")
    end = ReinforceRun._end_iteration

    def succeed(self, sums):
        sums.success = sums.valid.copy()
        end(self, sums)

    monkeypatch.setattr(ReinforceRun, "_end_iteration", succeed)
    made = reinforce(make_run(task, tmp_path / "policy", plan, iterations=4))
    ranges = [row["ranges"][name] for row in made["ranges"]["rounds"]]
    assert len(ranges) == 2
    assert ranges[0][0] == ranges[0][1]
    assert made["ranges"]["ranges"][name][1] > ranges[0][1]  # wider in both rounds, at the ends that were tested
    attempts = sum(one["attempted"] for one in made["ranges"]["rounds"][0]["boundaries"])
    assert attempts == 4  # of the four episodes of a round
    update = PpoTrainer.run_iteration
    calls = iter(range(100))

    def killed(self, **given):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return update(self, **given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PpoTrainer, "run_iteration", killed)
        reinforce(make_run(task, tmp_path / "cut", plan, iterations=4))
    again = reinforce(make_run(task, tmp_path / "cut", plan, iterations=4), resume=True)
    assert again["hash"] == made["hash"]
    assert json.dumps(again["ranges"]) == json.dumps(made["ranges"])


def test_settings_that_do_not_fit_are_refused(task, tmp_path):
    plan, _ = adaptive_plan(every=3)
    with pytest.raises(InputError, match=r"every is 3, but one iteration has 2 episodes"):
        make_run(task, tmp_path, plan)
    with pytest.raises(InputError, match="batch 25 is more than the 24 samples"):
        make_run(task, tmp_path, batch=25)
    with pytest.raises(InputError, match="chunk_size 1"):
        make_run(task, tmp_path, settings={"chunk_size": 2})
    with pytest.raises(UnknownNameError, match="reward term"):
        make_run(task, tmp_path, reward={"speed": 1.0})
    with pytest.raises(UnknownNameError, match="tracked body"):
        make_run(task, tmp_path, inputs=("cup",))
    with pytest.raises(InputError, match="The task blind has no tracked values"):
        make_run(SimpleNamespace(name="blind"), tmp_path)
    with pytest.raises(InputError, match="iterations"):
        ReinforceConfig.of({"iterations": 0})


def test_a_report_warns_unless_the_expert_earns_clearly_more(task):
    actors = [*module.make_actors(PLAN, task, fake_action(), is_relative=True, std=0.5)]
    made = run_actors(PLAN, task, actors, episodes=3, backend=open_backend())
    good = make_report(made, TASK, {"progress": 1.0})
    assert set(made) == {"zero", "random", "expert"}
    np.testing.assert_array_equal(made["zero"].trajectories.commands[:, 0], made["zero"].initial.command)
    assert all(row["terms"]["progress"] == row["return"] for row in good.rows)
    swapped = {**made, "expert": made["random"], "random": made["expert"]}
    warnings = make_report(swapped, TASK, {"progress": 1.0}).warnings
    assert any("not clearly above that of the random policy" in text for text in warnings)
    unscripted = {name: batch for name, batch in made.items() if name != "expert"}
    assert "no scripted expert" in make_report(unscripted, TASK, {"progress": 1.0}).warnings[0]


def fake_action():
    size = np.abs(np.diff(TWIN.units.from_si(np.stack(TWIN.find_command_ranges())), axis=0)[0])
    zero = 0.0 * size
    return module.ColumnStatistics(mean=zero, std=0.02 * size, min=-size, max=size, q01=-size, q99=size)


def test_a_task_without_an_expert_is_reported_without_one(task):
    class Unscripted(OwnTask):
        pass

    actors = module.make_actors(PLAN, Unscripted(TWIN), fake_action(), is_relative=True, std=0.5)
    assert [actor.name for actor in actors] == ["zero", "random"]


def test_random_states_are_restored():
    before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    with keep_random_states(7):
        drawn = np.random.rand(), torch.rand(1)  # noqa: NPY002
    with keep_random_states(7):
        assert (np.random.rand(), torch.rand(1)) == drawn  # noqa: NPY002
    np.testing.assert_array_equal(np.random.get_state()[1], before[0])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.delitem(sys.modules, "twinloop.train.ppo")
    with pytest.raises(MissingDependencyError, match="Stable-Baselines3") as caught:
        importlib.import_module("twinloop.train.ppo")
    assert "twinloop[rl]" in str(caught.value.remedy)


@pytest.mark.slow
def test_the_command_reports_the_reward_trains_and_writes_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reach.yaml").write_text(
        "scene: {robot: so101, task: reach_moving}\nrandomization:\n  default: true\n"
        "  adaptive: {names: [timing/command/drop_rate], every: 4, start: nominal, limits: {'*': [0, 0.5]}}\n"
    )
    small = ["--worlds", "4", "--iterations", "2", "--batch", "120", "--set", "width=8"]
    assert main(["reinforce", "reach.yaml", "--output", "policies/teacher", "--report-only", *small]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("zero", "random", "expert", "holding", "100%"))
    assert not (tmp_path / "policies").exists()
    assert (
        main(["reinforce", "reach.yaml", "--output", "policies/teacher", *small, "--reward", "progress=2", "--json"])
        == 0
    )
    made = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert made["config"]["reward"] == {"progress": 2.0}
    assert len(made["ranges"]["rounds"]) == 2
    page = (tmp_path / "policies" / "teacher" / "report.html").read_text()
    assert all(word in page for word in ("Reward", "Learning", "Curriculum", "timing/command/drop_rate"))
    assert main(["reinforce", "reach.yaml", "--output", "policies/other", *small, "--reward", "progress"]) == 2
    assert "--reward progress: give NAME=WEIGHT" in capsys.readouterr().err


@pytest.mark.slow
def test_a_policy_learns_to_follow_a_moving_goal_from_its_reward_alone(tmp_path):
    task = open_task(TASK, TWIN)
    config = ReinforceConfig()
    run = ReinforceRun(
        plan=PLAN, task=task, task_name=TASK, config=config, folder=tmp_path,
        make_env=lambda plan, weights, worlds: make_env(plan, weights, worlds, nstep=None),
    )  # fmt: skip
    reinforce(run)
    actor = PolicyActor(policy=open_policy(tmp_path), task=task, twin=TWIN)
    fresh = Plan(twin=TWIN, run_seed=1000, draws=PLAN.draws)
    batch = run_batch(TWIN, task, fresh.draw(range(256)), run_seed=1000, episodes=range(256), actor=actor)
    assert batch.success.mean() >= 0.9
