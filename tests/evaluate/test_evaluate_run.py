"""Policies in suites: the same worlds for all, scores by outcome, and lost worlds reported as lost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from support.evaluate_run import TWO
from twinloop.core.errors import InputError
from twinloop.evaluate.candidates import TimedActor, TimedImages, make_candidate
from twinloop.evaluate.comparison import compare_running, compare_stored, draw_trials
from twinloop.evaluate.run import TrialRunner, evaluate
from twinloop.evaluate.scores import compute_arm_limits, find_joint_violations
from twinloop.evaluate.suite import parse_suite
from twinloop.evaluate.worlds import expand_suite
from twinloop.rollout import ExpertActor
from twinloop.simulate import open_backend
from twinloop.tasks import open_task
from twinloop.twin import load_twin


@pytest.fixture(scope="module")
def twin():
    return load_twin("so101_tabletop")


@pytest.fixture(scope="module")
def two(twin):
    return expand_suite(parse_suite(TWO, where="two"), twin, open_task("pick_and_place", twin))


@dataclass
class Weakened:
    """The expert, which lets go of its task (``still``) or breaks (``broken``) in worlds that a seed chooses."""

    task: object
    still: float = 0.0
    broken: float = 0.0
    name: str = "weakened"

    def begin(self, worlds):
        expert = ExpertActor(task=self.task).begin(worlds)
        home = worlds.initial.command.copy()
        u = np.array([np.random.default_rng(int(n)).random() for n in worlds.numbers])

        def act(simulation):
            command = np.array(expert(simulation))
            command[u < self.still] = home[u < self.still]
            command[u < self.broken] = np.nan
            return command

        return act


def weakened(**how):
    return lambda twin, task: Weakened(task=task, **how)


@pytest.fixture(scope="module")
def expert(twin, two):
    return evaluate("expert", twin, suite=two, episodes=3, run_seed=5, backend=open_backend("threads", nthread=1))


def test_an_expert_succeeds_and_every_score_is_there(expert):
    rows = expert.trials.to_pylist()
    assert [row["trial"] for row in rows[:3]] == ["nominal#0", "nominal#1", "nominal#2"]
    assert all(row["success"] and row["valid"] and row["progress"] == 1.0 for row in rows)
    assert all(2.0 < row["time_s"] < 6.0 and row["peak_force_n"] > 1.0 for row in rows)
    assert all(-10.0 < row["smoothness"] < -1.0 and row["latency_s"] > 0 for row in rows)
    assert expert.extra["latency"]["median_s"] <= expert.extra["latency"]["p95_s"]
    assert expert.extra["suite_hash"]


def test_the_same_policy_twice_is_the_same_bit_for_bit_in_any_batch(twin, two, expert):
    again = evaluate("expert", twin, suite=two, episodes=2, run_seed=5, batch=3, slices=["heavy"])
    columns = [name for name in again.trials.column_names if name != "latency_s"]
    first = expert.trials.filter(pc.field("slice") == "heavy").slice(0, 2).select(columns)
    assert again.trials.select(columns).to_pylist() == first.to_pylist()
    assert compare_stored(expert, again).discordant_counts == (0, 0)


def test_a_policy_that_stands_still_or_breaks_is_told_apart_from_one_that_works(twin, two):
    nominal = two.select_slices(["nominal"])
    still = evaluate(weakened(still=1.0), twin, suite=nominal, episodes=1, run_seed=5, name="still")
    (row,) = still.trials.to_pylist()
    assert (row["success"], row["valid"], row["time_s"]) == (False, True, None)
    assert row["progress"] < 0.1
    assert row["violations"] == 0
    made = TrialRunner(suite=nominal, task="pick_and_place", run_seed=5)
    (lost,) = made.run(make_candidate(weakened(broken=1.0)), [(nominal.slices[0], 0)])
    assert (lost["success"], lost["valid"]) == (False, False)
    assert lost["reason"]


def test_hard_commands_break_the_acceleration_limit_and_a_joint_that_friction_stops_does_not(twin):
    """With torque control the motion counts, because a torque has no acceleration of its own."""
    hz, limits = twin.control_hz, compute_arm_limits(twin)
    n = len(limits.acceleration)
    stopped = np.zeros((1, 6, n))
    stopped[:, 2:4, 0] = 0.9 * limits.speed[0]  # stops between two time steps
    assert limits.speed[0] * hz > limits.acceleration[0]
    ramps = {share: np.zeros((5, n)) for share in (0.99, 1.01)}
    for share, ramp in ramps.items():
        ramp[2:, 0] = share * limits.acceleration[0] / hz**2 * np.arange(1, 4)  # one change of speed

    def find(robot, commands, limits, speeds):
        middle = robot.joint_ranges.mean(axis=1) + 0 * speeds
        return find_joint_violations(robot, limits, middle, speeds, commands[None], hz)[0]

    assert not find(twin, ramps[0.99], limits, stopped).any()
    assert find(twin, ramps[1.01], limits, stopped)[:, 2].nonzero()[0].tolist() == [1]
    arm = load_twin("double_pendulum")
    two = replace(compute_arm_limits(arm), speed=limits.speed[:2], acceleration=limits.acceleration[:2])
    assert find(arm, ramps[0.99][:, :2], two, stopped[..., :2])[:, 2].nonzero()[0].tolist() == [2, 4]


def test_each_trial_begins_in_its_own_world_in_whatever_order_they_come(twin, two):
    """Slices differ by the cube's mass, trials by its position; a policy that fails at once runs no further."""
    begun = dict[tuple[str, int], tuple]()

    class Noting(Weakened):
        def begin(self, worlds):
            seen.extend(zip(worlds.params["object/cube/mass"], map(tuple, worlds.initial.qpos), strict=True))
            return super().begin(worlds)

    nominal, heavy = two.slices
    for order in ([(nominal, 0), (nominal, 1), (heavy, 0), (heavy, 1)], [(heavy, 1), (nominal, 1), (heavy, 0)]):
        seen = list[tuple]()
        runner = TrialRunner(suite=two, task="pick_and_place", run_seed=1)
        rows = runner.run(make_candidate(lambda twin, task: Noting(task=task, broken=1.0)), order)
        assert [row["trial"] for row in rows] == [item.get_trial_name(number) for item, number in order]
        assert [mass == 0.08 for mass, _ in seen] == [item is heavy for item, _ in order]
        for (item, number), world in zip(order, seen, strict=True):
            assert begun.setdefault((item.name, number), world) == world
    assert len(set(begun.values())) == 4


def test_trials_of_a_comparison_are_spread_over_slices_and_never_repeat(two):
    source = draw_trials(TrialRunner(suite=two, task="pick_and_place", run_seed=1))
    drawn = [next(source) for _ in range(400)]
    names = [item.get_trial_name(number) for item, number in drawn]
    assert len(set(names)) == 400
    assert abs(sum(item.name == "heavy" for item, _ in drawn) - 200) < 50


@pytest.mark.slow
def test_planted_success_rates_are_found_and_a_comparison_decides(twin, two):
    planted = 0.4
    made = evaluate(weakened(still=planted), twin, suite=two, episodes=40, run_seed=2)
    numbers = [item.get_episode_numbers(range(40)) for item in two.slices]
    u = [np.random.default_rng(int(n)).random() >= planted for row in numbers for n in row]
    assert [bool(x) for x in made.trials["success"].to_pylist()] == u
    runner = TrialRunner(suite=two, task="pick_and_place", run_seed=2)
    found, rows_a, rows_b = compare_running(
        make_candidate("expert"), make_candidate(weakened(still=planted)), runner, max_pairs=300
    )
    assert found.answer == "better"
    assert found.decided < 60
    assert [row["trial"] for row in rows_a] == [row["trial"] for row in rows_b]
    same, _, _ = compare_running(make_candidate("expert"), make_candidate("expert"), runner, margin=0.1, max_pairs=300)
    assert (same.answer, same.discordant_counts) == ("equivalent", (0, 0))


@pytest.mark.slow
def test_a_pinned_world_is_a_slice_and_fails_again(twin, tmp_path):
    from twinloop.rollout import run_batch
    from twinloop.rollout.scenario import Scenario
    from twinloop.rollout.scenario_files import write_scenario

    task = open_task("pick_and_place", twin)
    table = twin.table(1, {"object/cube/position/x": 0.26, "object/cube/position/y": 0.09})
    result = run_batch(twin, task, table, run_seed=1, episodes=[7], actor=Weakened(task=task, still=1.0))
    scenario = Scenario.of_episode(result.episode(0), twin, task, name="far")
    write_scenario(scenario, tmp_path / "far")
    made = evaluate("expert", twin, suite="failures", episodes=3, scenarios=tmp_path)
    assert made.slices == ("far",)
    assert made.counts() == (3, 3)  # solvable unless the policy does nothing
    still = evaluate(weakened(still=1.0), twin, suite="failures", episodes=2, scenarios=tmp_path)
    assert still.counts() == (0, 2)


def test_the_time_of_a_command_leaves_out_what_no_robot_does(monkeypatch):
    passed = [0.0]
    monkeypatch.setattr("twinloop.evaluate.candidates.time", SimpleNamespace(perf_counter=lambda: passed[0]))

    def lasting(seconds):
        passed[0] += seconds
        return {}

    class Looks:
        name = "looks"
        images = TimedImages(camera=SimpleNamespace(take=lambda rows, step: lasting(8.0)))

        def begin(self, worlds):
            return lambda simulation: self.images.take(np.zeros(1, dtype=int), 0) or lasting(0.5) or np.zeros(1)

    actor = TimedActor(actor=Looks())
    controller = actor.begin(None)
    for _ in range(2):
        controller(np.zeros(1))
    assert actor.actor.images.seconds == 16.0
    assert actor.seconds == [0.5, 0.5]


def test_who_cannot_be_tried_is_refused(twin, two):
    with pytest.raises(InputError, match="42 cannot be evaluated. Give a policy, 'expert', or an actor"):
        evaluate(42, twin, suite=two)
    with pytest.raises(InputError, match="At most 0 pairs cannot give a decision"):
        runner = TrialRunner(suite=two, task="pick_and_place")
        compare_running(make_candidate("expert"), make_candidate("expert"), runner, max_pairs=0)


def test_progress_grows_by_stages_and_is_whole_only_when_done(twin):
    task = open_task("pick_and_place", twin)
    actor, params = ExpertActor(task=task), twin.table(1)
    from twinloop.rollout import run_batch

    result = run_batch(twin, task, params, run_seed=0, episodes=[0], actor=actor)
    progress = task.progress(result.trajectories.states)
    assert progress.shape == result.success_by_state.shape
    assert progress[0, 0] == 0.0
    assert ((progress == 1.0) == result.success_by_state).all()
    before = progress[:, : int(np.argmax(result.success_by_state[0]))]
    assert (np.diff(before, axis=1) >= 0).all()
    assert before.max() <= 0.75
    cut = replace(result.trajectories, states=result.trajectories.states[:, :40])
    assert 0 < task.progress(cut.states)[0, -1] < 0.75


def test_worker_processes_return_the_trials_of_one_process(tmp_path, capsys):
    """Two batches of a suite on two processes; times of computation differ."""
    from twinloop.cli.main import main

    words = "evaluate expert --twin so101_reach --task reach_moving --suite latency --episodes 7 --seed 3 --output"
    for workers in (1, 2):
        assert main([*words.split(), str(tmp_path / f"{workers}"), "--workers", f"{workers}", "--batch", "20"]) == 0
    capsys.readouterr()
    one, two = (pq.read_table(tmp_path / f"{workers}/trials.parquet").drop("latency_s") for workers in (1, 2))
    assert one.num_rows > 32  # more than one process runs
    near = pc.subtract(one["smoothness"], two["smoothness"])  # the last bit depends on the number of worlds in a batch
    assert pc.max(pc.abs(near)).as_py() < 1e-9
    assert one.drop("smoothness").equals(two.drop("smoothness"))
