"""The vector environment is the engine: its worlds are those of `rollout`, its laws those of Gymnasium."""

from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium.vector import AutoresetMode

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import write_json
from twinloop.envs import IDS, TwinVectorEnv
from twinloop.randomize import Plan, default_draws, section_plan
from twinloop.rollout import run_batch
from twinloop.rollout.sensing import joint_readings
from twinloop.simulate import open_backend, rollout
from twinloop.tasks import open_task, placement
from twinloop.tasks.reaching import GraspFrame, joint_step, tool_error
from twinloop.twin import load_twin

PICK = "twinloop/PickAndPlace-SO101-v0"
SEED = 11


@pytest.fixture(scope="module")
def twin():
    return load_twin("so101_tabletop")


def make(twin, num_envs, **options):
    return TwinVectorEnv(num_envs, twin=twin, **options)


def played(env, actions, **reset):
    """States and commands of a run of actions ``(nstep, num_envs, nu)``, with what each step returned."""
    observation, infos = env.reset(**reset)
    states, commands, steps = [env.worlds.state], [], [(observation, None, None, None, infos)]
    for action in actions:
        steps.append(env.step(action))
        states.append(env.worlds.state)
        commands.append(env.worlds.command)
    return np.stack(states, axis=1), np.stack(commands, axis=1), steps


def noise(nstep, num_envs, nu=6, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (nstep, num_envs, nu)).astype(np.float32)


def plan_of(twin, seed=SEED):
    return Plan(twin=twin, run_seed=seed, draws=tuple(default_draws(twin)))


@pytest.mark.parametrize("name", sorted(IDS))
@pytest.mark.parametrize("observation", ["readings", "state", "lerobot"])
def test_spaces_hold_what_the_environment_gives_and_takes(name, observation):
    env = gymnasium.make_vec(name, num_envs=3, observation=observation)
    assert isinstance(env, TwinVectorEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    env.action_space.seed(0)
    seen, infos = env.reset(seed=1)
    assert seen in env.observation_space
    for _ in range(3):
        seen, rewards, terminated, truncated, infos = env.step(env.action_space.sample())
        assert seen in env.observation_space
        assert rewards.shape == terminated.shape == truncated.shape == (3,)
        assert (rewards.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)
    for key in ("is_success", "episode_number", "elapsed_steps", "invalid"):
        assert infos[key].shape == infos[f"_{key}"].shape == (3,)
    flat = seen["agent_pos"] if observation == "lerobot" else seen
    assert flat.shape == (3, len(env.observation_names))


def test_the_environment_state_is_what_datasets_record(twin):
    """The task's tracked values, also in the final observation of an episode that ends within the step."""
    options = {"observation": "lerobot", "environment_state": True, "autoreset_mode": "SameStep"}
    env = make(twin, 2, **options, max_episode_steps=2)
    seen, _ = env.reset(seed=SEED)
    for _ in range(2):
        before = env.worlds.state
        assert seen in env.observation_space
        np.testing.assert_allclose(seen["environment_state"], env.goal.task.environment(before), atol=1e-6)
        seen, *_, infos = env.step(env.action_space.sample())
    assert infos["_final_obs"].all()
    final = infos["final_obs"][0]["environment_state"] - env.goal.task.environment(before)[0]
    assert 0 < np.abs(final).max() < 0.2  # one step after the last state
    with pytest.raises(InputError, match=r'environment_state needs observation="lerobot"'):
        make(twin, 1, environment_state=True)


@pytest.mark.parametrize("action", ["absolute", "delta", "dataset"])
@pytest.mark.parametrize("backend", ["threads", "reference"])
def test_a_trajectory_is_the_rollout_of_the_same_parameters_and_commands(twin, backend, action):
    env = make(twin, 3, action=action, backend=backend)
    env.action_space.seed(3)
    actions = [env.action_space.sample() for _ in range(12)]
    states, commands, _ = played(env, actions, seed=SEED, options={"episodes": [5, 0, 9]})
    params = plan_of(twin).draw([5, 0, 9])
    initial = open_task("pick_and_place", twin).reset(params, run_seed=SEED, episodes=[5, 0, 9])
    expected = rollout(open_backend("threads"), twin, params, initial, commands, 12)
    assert states.tobytes() == expected.states.tobytes()


def test_a_world_is_the_same_alone_and_among_others_and_again(twin):
    actions = noise(20, 8)
    together, _, steps = played(make(twin, 8), actions, seed=SEED)
    again, _, _ = played(make(twin, 8), actions, seed=SEED)
    assert together.tobytes() == again.tobytes()
    for i in (0, 5):
        alone, _, single = played(make(twin, 1), actions[:, i : i + 1], seed=SEED, options={"episodes": [i]})
        assert alone[0].tobytes() == together[i].tobytes()
        for (many, rewards, *_), (one, reward, *_) in zip(steps, single, strict=True):
            np.testing.assert_array_equal(many[i], one[0])
            assert rewards is None or rewards[i] == reward[0]


def test_one_environment_plays_the_episodes_of_many_in_any_order(twin):
    few, many = make(twin, 2, max_episode_steps=4), make(twin, 4)
    states, _, _ = played(many, noise(4, 4), seed=SEED)
    few.reset(seed=SEED)
    for rounds in range(2):
        actions = noise(4, 4)[:, 2 * rounds : 2 * rounds + 2]
        begun = few.worlds.state
        assert few.worlds.numbers.tolist() == [2 * rounds, 2 * rounds + 1]
        assert begun.tobytes() == states[2 * rounds : 2 * rounds + 2, 0].tobytes()
        for action in actions:
            few.step(action)
        assert few.worlds.state.tobytes() == states[2 * rounds : 2 * rounds + 2, -1].tobytes()
        few.step(actions[0])


def test_a_list_of_seeds_names_worlds_whichever_environment_plays_them(twin):
    env = make(twin, 3)
    first, _ = env.reset(seed=[100, 101, 102])
    other, infos = env.reset(seed=[102, 100, 7])
    np.testing.assert_array_equal(first[[2, 0]], other[:2])
    assert infos["episode_number"].tolist() == [102, 100, 7]
    different, _ = env.reset(seed=5)
    assert (different[0] != first[0]).any()


def test_without_a_seed_worlds_differ_from_run_to_run_and_go_on_within_one(twin):
    env, other = make(twin, 2), make(twin, 2)
    one, two = env.reset()[0], other.reset()[0]
    assert (one != two).any()
    assert env.reset()[1]["episode_number"].tolist() == [2, 3]


def test_next_step_autoreset_shows_the_last_state_then_the_first_of_the_next_episode(twin):
    env = make(twin, 2, max_episode_steps=3)
    _, _, steps = played(env, noise(9, 2), seed=SEED)
    assert [step[3][0] for step in steps[1:]] == [False, False, True, False] * 2 + [False]
    assert [step[4]["elapsed_steps"][0] for step in steps] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert [step[4]["episode_number"][1] for step in steps] == [1] * 4 + [3] * 4 + [5] * 2
    first, _ = make(twin, 2).reset(seed=SEED, options={"episodes": [2, 3]})
    np.testing.assert_array_equal(steps[4][0], first)
    assert steps[4][1].tolist() == [0.0, 0.0]


def test_same_step_autoreset_keeps_the_last_observation_and_info(twin):
    options = {"max_episode_steps": 3, "autoreset_mode": "SameStep", "report_params": True}
    env = gymnasium.make_vec(PICK, num_envs=2, **options)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    _, _, steps = played(env, noise(4, 2), seed=SEED)
    _, _, whole = played(make(twin, 2, max_episode_steps=3), noise(3, 2), seed=SEED)
    observation, _, _, truncated, infos = steps[3]
    assert truncated.all()
    assert infos["_final_obs"].all()
    assert infos["final_info"]["elapsed_steps"].tolist() == [3, 3]
    assert infos["final_info"]["episode_number"].tolist() == [0, 1]
    assert infos["episode_number"].tolist() == [2, 3]
    assert infos["elapsed_steps"].tolist() == [0, 0]
    np.testing.assert_array_equal(np.stack(list(infos["final_obs"])), whole[3][0])
    first, fresh = make(twin, 2, report_params=True).reset(seed=SEED, options={"episodes": [2, 3]})
    np.testing.assert_array_equal(observation, first)
    np.testing.assert_array_equal(infos["params"]["object/cube/mass"], fresh["params"]["object/cube/mass"])
    assert "final_obs" not in steps[4][4]


def test_without_autoreset_a_mask_says_who_begins_anew(twin):
    env = make(twin, 3, max_episode_steps=2, autoreset_mode=AutoresetMode.DISABLED)
    played(env, noise(2, 3), seed=SEED)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"Environment 0, 1, 2 has ended"):
        env.step(noise(1, 3)[0])
    before = env.worlds.state
    observation, infos = env.reset(options={"reset_mask": np.array([True, False, True])})
    assert infos["episode_number"].tolist() == [3, 1, 5]
    assert infos["_episode_number"].tolist() == [True, False, True]
    assert env.worlds.state[1].tobytes() == before[1].tobytes()
    first, _ = make(twin, 3).reset(seed=SEED, options={"episodes": [3, 1, 5]})
    np.testing.assert_array_equal(observation[[0, 2]], first[[0, 2]])
    with pytest.raises(gymnasium.error.ResetNeeded, match="Environment 1 has ended"):
        env.step(noise(1, 3)[0])


def test_worlds_are_drawn_as_a_run_of_that_seed_draws_them(twin):
    _, infos = make(twin, 4, report_params=True).reset(seed=SEED)
    table = plan_of(twin).draw(range(4))
    for name in table.names:
        np.testing.assert_array_equal(infos["params"][name], table[name])
    _, nominal = make(twin, 2, report_params=True, randomization=None).reset(seed=SEED)
    assert nominal["params"]["object/cube/mass"].tolist() == [twin.params["object/cube/mass"].nominal] * 2
    chosen = {"physics": {"object_mass_g": [30, 31]}}
    _, infos = make(twin, 8, report_params=True, randomization=chosen).reset(seed=SEED)
    assert ((infos["params"]["object/cube/mass"] > 0.03) & (infos["params"]["object/cube/mass"] < 0.031)).all()


def late(name, folder):
    """A built-in twin with commands and readings that are late or lost, and a control loop that oversleeps."""
    added = [f"timing/{name}" for name in ("command/jitter", "command/drop_rate", "control/jitter")]
    added += ["timing/readings/delay", "timing/readings/rate", "sensor/*/noise"]
    value = {"base": name, "name": "late", "params": [{"name": param, "source": "test"} for param in added]}
    (folder / "late.yaml").write_text(yaml.safe_dump(value))
    return load_twin(folder / "late.yaml")


@pytest.mark.parametrize("name", ["so101_tabletop", "so101_tabletop_geared"])
def test_episodes_that_begin_at_any_time_are_those_of_a_run_with_chance_and_change_in_them(name, tmp_path):
    twin = late(name, tmp_path)
    wild = {
        "default": True,
        "params": {
            "sensor/shoulder_pan/offset": {"low": -0.02, "high": 0.02, "scope": "step"},
            "object/cube/friction/slide": {"low": 0.4, "high": 1.1, "scope": "step"},
            "timing/command/jitter": [0.0, 0.02],
            "timing/command/drop_rate": [0.0, 0.3],
            "timing/control/jitter": [0.0, 0.01],
            "timing/readings/delay": [0.0, 0.1],
            "timing/readings/rate": [20.0, 200.0],
            "sensor/*/noise": [0.0, 0.01],
        },
    }
    env = make(twin, 3, randomization=wild, autoreset_mode="Disabled", observation="readings")
    observation, _ = env.reset(seed=SEED)
    running = {i: [(env.worlds.state[i], None, observation[i])] for i in range(3)}
    ended = {}
    ends = {3: [0], 5: [1, 2], 6: [0]}
    for step, action in enumerate(noise(9, 3), start=1):
        observation, *_ = env.step(action)
        for i in range(3):
            running[i].append((env.worlds.state[i], env.worlds.command[i], observation[i]))
        if step in ends:
            for i in ends[step]:
                ended[int(env.worlds.numbers[i])] = running[i]
            mask = np.isin(np.arange(3), ends[step])
            observation, _ = env.reset(options={"reset_mask": mask})
            for i in ends[step]:
                running[i] = [(env.worlds.state[i], None, observation[i])]
    ended |= {int(env.worlds.numbers[i]): running[i] for i in range(3)}
    assert sorted(ended) == [0, 1, 2, 3, 4, 5, 6]
    task = open_task("pick_and_place", twin)
    plan = section_plan(wild, twin, run_seed=SEED, episodes=7, where="test")
    for number, history in ended.items():
        params = plan.draw([number], nstep=task.nstep)
        states, commands, seen = (list(part) for part in zip(*history, strict=True))
        initial = task.reset(params, run_seed=SEED, episodes=[number])
        issued = np.array(commands[1:])[None]
        expected = rollout(open_backend(), twin, params, initial, issued, len(states) - 1)
        assert np.array(states).tobytes() == expected.states[0].tobytes()
        readings = joint_readings(twin, params, expected.qpos, qvel=expected.qvel, time=expected.time)[0]
        np.testing.assert_array_equal(np.array(seen)[:, :6], readings.astype(np.float32))


def test_worlds_are_drawn_from_what_identification_found(twin, tmp_path):
    names = ("joint/elbow_flex/damping", "actuator/elbow_flex/delay")
    found = ParamDistribution(
        names=names,
        transforms=("log", "identity"),
        mean=np.array([np.log(0.7), 0.05]),
        covariance=np.diag([1e-4, 1e-6]),
        low=np.array([0.0, 0.0]),
        high=np.array([10.0, 0.3]),
        determined=(True, True),
        clusters=9,
    )
    write_json(tmp_path / "result.json", {"distribution": found.to_json()})
    env = make(twin, 16, report_params=True, randomization={"identified": str(tmp_path)})
    drawn = env.reset(seed=SEED)[1]["params"]
    assert drawn[names[0]].mean() == pytest.approx(0.7, rel=0.02)
    assert 1e-4 < drawn[names[1]].std() < 5e-3
    assert drawn["object/cube/mass"].std() > 0.005
    with pytest.raises(InputError, match=r"randomization\.adaptive needs a run with a known number of episodes"):
        make(twin, 1, randomization={"default": True, "adaptive": {"names": ["object/cube/mass"]}})
    with pytest.raises(InputError, match='randomization must be "default", None, a Plan or a mapping; given 3'):
        make(twin, 1, randomization=3)


def test_gymnasiums_wrappers_take_it(twin):
    env = gymnasium.wrappers.vector.RecordEpisodeStatistics(make(twin, 2, max_episode_steps=3))
    env.reset(seed=SEED)
    total = np.zeros(2)
    for action in noise(3, 2):
        _, rewards, _, _, infos = env.step(action)
        total += rewards
    np.testing.assert_allclose(infos["episode"]["r"], total)
    assert infos["episode"]["l"].tolist() == [3, 3]


def test_observation_is_the_encoders_reading_and_the_last_command(twin):
    env = make(twin, 2, observation="readings")
    states, commands, steps = played(env, noise(10, 2), seed=SEED)
    qpos = states[:, :, 1 : 1 + twin.model.nq]
    readings = joint_readings(twin, env.worlds.params, qpos)
    for t in range(1, 11):
        np.testing.assert_array_equal(steps[t][0][:, :6], readings[:, t].astype(np.float32))
        np.testing.assert_array_equal(steps[t][0][:, 6:], commands[:, t - 1].astype(np.float32))
    assert np.abs(readings - qpos[:, :, twin.joint_qpos]).max() > 0.005


def test_success_ends_an_episode_at_the_step_that_the_task_says(twin):
    task = open_task("pick_and_place", twin)
    numbers = [0, 1, 2]
    made = run_batch(twin, task, plan_of(twin).draw(numbers), run_seed=SEED, episodes=numbers)
    assert made.success.all()
    env = make(twin, 3, action="dataset", reward="dense", autoreset_mode="Disabled", max_episode_steps=task.nstep)
    env.reset(seed=SEED)
    ends = [int(np.argmax(row)) for row in made.success_by_state]
    returns, potential = np.zeros(3), env.meter.potential.copy()
    for step in range(max(ends)):
        env._over[:] = False
        _, rewards, terminated, _, infos = env.step(made.action[:, step])
        returns += rewards
        for world, end in enumerate(ends):
            if step + 1 <= end:
                assert terminated[world] == infos["is_success"][world] == (step + 1 == end)
            if step + 1 == end:
                assert returns[world] == pytest.approx(1.0 + env.meter.potential[world] - potential[world])
                assert returns[world] > 2.5
                returns[world] = 0.0


def holding(task, point):
    """A command that brings the tool to a point and holds it there against gravity, at nominal parameters."""
    home, command = task.home
    frame = GraspFrame(task.chain, task.hand, home, tilt=task.config.approach_tilt, heights=(0.05, 0.09))
    q = home[None, task.chain.qpos]
    for _ in range(200):
        pose = task.chain.pose(q)
        error = tool_error(pose, point[None], frame.tool_axes(point[None], np.zeros(1)))
        q = q + np.clip(joint_step(task.chain.jacobian(pose), error, 0.0 * q), -0.1, 0.1)
    command[task.servo.actuators] = (q + task.chain.gravity_torques(task.chain.pose(q)) / task.servo.stiffness)[0]
    return command


def test_reaching_pays_once_the_tool_has_stayed_above_the_object(twin):
    env = make(twin, 1, goal="reach", reward="sparse", action="dataset", randomization=None)
    env.reset(seed=SEED)
    assert env.task_description == "Move the gripper above the cube."
    task = open_task("pick_and_place", twin)
    above = task.scene_features(env.worlds.state).object[0] + [0, 0, task.config.lift_height]
    command = twin.units.from_si(holding(task, above))[None]
    rewards, inside, terminated = [], [], [False]
    while not terminated[0]:
        _, reward, terminated, truncated, infos = env.step(command)
        assert not truncated[0]
        rewards.append(reward[0])
        inside.append(np.linalg.norm(task.scene_features(env.worlds.state).tool[0] - above) <= 0.02)
    assert infos["is_success"][0]
    assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
    assert inside[-task.rest_steps :] == [True] * task.rest_steps
    assert not inside[-task.rest_steps - 1]


def test_a_world_that_breaks_ends_alone_and_says_why(twin):
    env, calm = make(twin, 3), make(twin, 3)
    env.reset(seed=SEED)
    calm.reset(seed=SEED)
    for step, action in enumerate(noise(6, 3)):
        broken = action.copy()
        if step == 2:
            broken[1] = np.nan
        observation, rewards, terminated, _, infos = env.step(broken)
        assert np.isfinite(observation).all()
        assert terminated.tolist() == [False, step == 2, False]
        if step == 2:
            assert "BADCTRL" in infos["invalid"][1]
            assert (rewards[1], infos["is_success"][1]) == (0.0, False)
        assert not infos["invalid"][0]
        calm.step(action)
        assert env.worlds.state[[0, 2]].tobytes() == calm.worlds.state[[0, 2]].tobytes()
    assert env.worlds.numbers.tolist() == [0, 4, 2]
    assert env.worlds.valid.all()


def test_a_world_that_cannot_be_made_ends_at_its_first_step_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(placement, "TRIALS", 2)
    group = {"set": "all", "count": [0, 5], "x": [0.2, 0.24], "y": [-0.02, 0.02]}
    scene = {"sets": {"all": [{"shape": "box", "size": [0.03, 0.03, 0.02]}]}, "clutter": {"stuff": group}}
    (tmp_path / "crowded.yaml").write_text(
        yaml.safe_dump({"base": "so101_tabletop", "name": "crowded", "scene": scene})
    )
    crowd = {"params": {"scene/stuff/count": {"distribution": "choice", "values": [0.0, 5.0]}}}
    env = TwinVectorEnv(6, twin=tmp_path / "crowded.yaml", randomization=crowd, report_params=True)
    _, infos = env.reset(seed=SEED)
    full = infos["params"]["scene/stuff/count"] == 5.0
    assert 0 < full.sum() < 6
    _, rewards, terminated, _, infos = env.step(noise(1, 6)[0])
    assert (terminated == full).all()
    assert set(infos["invalid"][full]) == {"clutter could not be placed: no room"}
    assert set(infos["invalid"][~full]) == {""}
    assert not rewards[full].any()
    _, _, _, _, infos = env.step(noise(1, 6)[0])
    assert (infos["episode_number"] == np.arange(6) + 6 * full).all()
    assert ((infos["invalid"] != "") == (full & (infos["params"]["scene/stuff/count"] == 5.0))).all()


@pytest.mark.slow
def test_worlds_on_warp_go_where_those_on_threads_go(twin):
    pytest.importorskip("mujoco_warp")
    pytest.importorskip("torch")
    options = {"autoreset_mode": "SameStep", "max_episode_steps": 4, "report_params": True}
    env, other = make(twin, 3, backend="warp:cpu", **options), make(twin, 3, **options)
    actions = noise(6, 3)
    for (seen, rewards, *_, infos), (expected, gains, *_, told) in zip(
        played(env, actions, seed=SEED)[2], played(other, actions, seed=SEED)[2], strict=True
    ):
        np.testing.assert_allclose(seen, expected, atol=2e-3)  # Warp steps in float32
        assert rewards is None or np.abs(rewards - gains).max() < 1e-4
        assert infos["episode_number"].tolist() == told["episode_number"].tolist()
        assert not infos["invalid"].any()


def test_what_is_wrong_is_said(twin):
    with pytest.raises(UnknownNameError, match=r"Unknown option 'rewards' in the options of an environment\. Nearest"):
        make(twin, 1, rewards="dense")
    with pytest.raises(UnknownNameError, match=r"Unknown observation 'pixels'.*Existing: lerobot, readings, state"):
        make(twin, 1, observation="pixels")
    with pytest.raises(UnknownNameError, match=r"Unknown goal 'staple'"):
        make(twin, 1, goal="staple")
    with pytest.raises(UnknownNameError, match=r"Unknown camera 'top' in twin so101_tabletop"):
        make(twin, 1, observation="lerobot", cameras=("top",))
    with pytest.raises(InputError, match="cameras need observation"):
        make(twin, 1, cameras=("front",))
    env = make(twin, 2)
    with pytest.raises(gymnasium.error.ResetNeeded, match="Call reset"):
        env.step(noise(1, 2)[0])
    env.reset(seed=0)
    with pytest.raises(InputError, match=r"Actions have shape \(2, 5\), expected \(2, 6\)"):
        env.step(np.zeros((2, 5)))
    with pytest.raises(InputError, match="2 whole numbers from 0, one per environment"):
        env.reset(seed=0, options={"episodes": [1]})
    with pytest.raises(InputError, match="reset_mask is 2 booleans"):
        env.reset(options={"reset_mask": np.array([False, False])})
    with pytest.raises(InputError, match="reset_mask works only without"):
        env.reset(seed=1, options={"reset_mask": np.array([True, False])})


def test_success_need_not_end_an_episode_and_an_episode_can_repeat(twin):
    options = {"goal": "reach_moving", "action": "dataset", "autoreset_mode": "Disabled", "max_episode_steps": 3}
    env = make(twin, 2, reward={"holding": 1.0}, end_at_success=False, repeat_episode=True, **options)
    env.goal = Always(env.goal)
    first, _ = env.reset(seed=SEED, options={"episodes": [4, 9]})
    command = twin.units.from_si(env.worlds.command)
    ends = [env.step(command) for _ in range(3)]
    assert [end[2].any() for end in ends] == [False] * 3
    assert [end[3].all() for end in ends] == [False, False, True]
    assert sum(end[1] for end in ends) == pytest.approx([1.0, 1.0])
    again, infos = env.reset(options={"reset_mask": np.array([True, True])})
    assert infos["episode_number"].tolist() == [4, 9]
    np.testing.assert_array_equal(again, first)


@dataclasses.dataclass
class Always:
    """A goal that is always reached."""

    goal: object

    def __getattr__(self, name):
        return getattr(self.goal, name)

    def evaluate_states(self, states, envs, *, begin=False):
        found = self.goal.evaluate_states(states, envs, begin=begin)
        return dataclasses.replace(found, success=np.ones(len(envs), dtype=bool))
