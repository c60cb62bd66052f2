"""Transfer study: worlds of each condition, order of the parts, resumption, and definitions of the figures."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("torch")

from rich.console import Console

from benchmarks.transfer import parts, study
from benchmarks.transfer.means import average_over_robots
from benchmarks.transfer.pages import difference_table, plot_success, success_table, time_table
from benchmarks.transfer.parts import StudyPart, make
from benchmarks.transfer.retraining import Retraining, draw_near, retraining_table
from benchmarks.transfer.robots import cut_share
from benchmarks.transfer.run import run_bench_retraining, run_bench_transfer
from benchmarks.transfer.settings import CONDITIONS, DEMONSTRATIONS, MEMORY, PLACES, TransferSettings
from benchmarks.transfer.study import TransferResult, order_stages
from benchmarks.transfer.worlds import training_plans
from twinloop.core.contract import ENVIRONMENT
from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.files import write_json
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.hardware import make_hidden_cell
from twinloop.policies import open_policy
from twinloop.twin import load_twin

TWIN = load_twin("so101_tabletop")
RECIPE = {
    "worlds": 2,
    "rounds": 2,
    "steps": 2,
    "final_steps": 2,
    "batch": 4,
    "settings": {"width": 8, "depth": 1},
}
TINY = TransferSettings(first=0, robots=1, seeds=1, episodes=2, log=2, conditions=(1, 4), recipe=RECIPE)
KNOWN, UNKNOWN = "joint/elbow_flex/damping", "joint/wrist_roll/frictionloss"


@pytest.fixture
def identified(tmp_path):
    """File of a distribution that determines one parameter."""
    mean, nominal = [TWIN.params[name].nominal for name in (KNOWN, UNKNOWN)], TWIN.params[KNOWN].nominal
    found = ParamDistribution(
        names=(KNOWN, UNKNOWN),
        mean=np.array([1.1 * nominal, mean[1]]),
        covariance=np.diag([(0.01 * nominal) ** 2, 1.0]),
        transforms=("identity", "identity"),
        low=np.zeros(2),
        high=np.full(2, np.inf),
        clusters=3,
        determined=(True, False),
    )
    write_json(tmp_path / "found.json", found.to_json())
    return tmp_path / "found.json"


def test_each_condition_draws_what_it_says(identified):
    nominal = TWIN.params[KNOWN].nominal
    drawn = {}
    for condition in (one for one in CONDITIONS if not one.base):
        plan, other = training_plans(condition.worlds, TWIN, identified, seed=1)
        drawn[condition.worlds] = plan.draw(range(40))
        assert (other is not None) is (condition.worlds == "both")
        assert np.ptp(drawn[condition.worlds]["object/cube/position/x"]) > 0
    assert (drawn["nominal"][KNOWN] == nominal).all()
    assert (drawn["nominal"][UNKNOWN] == TWIN.params[UNKNOWN].nominal).all()
    assert np.ptp(drawn["point"][KNOWN]) == 0
    assert drawn["point"][KNOWN][0] == pytest.approx(1.1 * nominal)
    assert (drawn["point"][UNKNOWN] == TWIN.params[UNKNOWN].nominal).all()
    assert abs(drawn["identified"][KNOWN] / nominal - 1.1).max() < 0.05
    assert np.ptp(drawn["identified"][UNKNOWN]) > 0
    assert np.ptp(drawn["ranges"][KNOWN]) > 5 * np.ptp(drawn["identified"][KNOWN])
    np.testing.assert_array_equal(drawn["both"][KNOWN], drawn["identified"][KNOWN])


class TestOrder:
    def parts(self, tmp_path):
        settings = TransferSettings(robots=2, seeds=2)
        return [
            StudyPart(
                kind="trials", folder=str(tmp_path), settings=settings, robot=robot, seed=seed, condition=c.number
            )
            for robot in settings.robot_seeds
            for seed in range(2)
            for c in TransferSettings().selected_conditions
        ]

    def test_what_is_needed_comes_first_and_once(self, tmp_path):
        made = order_stages(self.parts(tmp_path))
        assert [{part.kind for part in stage} for stage in made] == [{"log"}, {"policy"}, {"trials"}]
        assert [len(stage) for stage in made] == [2, 2 * 2 + 2 * 2 * 3, 2 * 2 * 5]  # two policies are shared

    def test_what_is_whole_is_not_made_again_and_half_parts_are(self, tmp_path, monkeypatch):
        made = []

        def maker(part):
            made.append(part.path.name)
            (part.path / "trials.json").write_text('{"success": [true], "cut": 0.25}')

        monkeypatch.setitem(parts._MAKERS, "script", maker)
        part = StudyPart(kind="script", folder=str(tmp_path), settings=TINY, robot=100)
        part.path.mkdir(parents=True)
        (part.path / "half").write_text("")
        first = make(part)
        assert not (part.path / "half").exists()
        assert make(part) == first
        assert made == ["robot100"]
        assert part.read_trials() == ([True], 0.25)

    def test_the_time_of_a_part_that_two_stages_need_counts_once(self, tmp_path):
        own = replace(self.parts(tmp_path)[0], seed=0, condition=4)
        needed = [own, replace(own, condition=9)]  # the second adapts the policy of the first
        stages = order_stages(needed)
        for part in itertools.chain.from_iterable(stages):
            part.path.mkdir(parents=True, exist_ok=True)
            write_json(part.path / "seconds.json", {"wall_s": 2.0, "processor_s": 1.0})
        assert sum(part.kind == "policy" for stage in stages for part in stage) == 3
        took = study.make_all(needed, Console(quiet=True), 1)
        assert {kind: clocks["processor_s"] for kind, clocks in took.items()} == {
            "demonstrations": 1.0,
            "log": 1.0,
            "policy": 2.0,
            "trials": 2.0,
        }

    def test_another_study_is_refused(self, tmp_path):
        (tmp_path / "study.json").write_text(json.dumps(replace(TINY, log=7).made_of()))
        with pytest.raises(InputError, match=r"another log\. Use the same settings, or choose another --output"):
            run_bench_transfer(Console(), TINY, tmp_path, workers=1)

    def test_more_robots_or_seeds_are_the_same_study(self):
        assert replace(TINY, robots=4, seeds=2, conditions=(1,)).made_of() == TINY.made_of()

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"conditions": (1, 99)}, "--conditions 99"),
            ({"conditions": (2, 8), "family": "drake"}, "--conditions 8: demonstrations are not recorded"),
            ({"log": 0}, "--log 0"),
            ({"family": "x"}, "--family x"),
        ],
    )
    def test_wrong_settings(self, changed, said):
        with pytest.raises(InputError, match=said):
            TransferSettings(**changed)


@pytest.mark.slow
def test_a_policy_is_adapted_with_demonstrations_on_its_robot(tmp_path):
    part = StudyPart(kind="policy", folder=str(tmp_path), settings=TINY, robot=3, seed=1, condition=8)
    assert [needed.path.name for needed in part.needs] == ["shared-ranges-seed1", "robot3"]
    base, demonstrations = part.needs
    assert replace(part, condition=9).needs[0].path.name == "robot3-identified-seed1"
    made = [make(one) and one for one in (base, demonstrations, part)]
    robot = DatasetReader(demonstrations.path / "data")
    assert len(robot) == DEMONSTRATIONS  # robot 3 has no failures of the script
    start = [robot.array(index, ENVIRONMENT)[0] for index in range(DEMONSTRATIONS)]
    assert np.ptp(start, axis=0).max() > 0.05  # the object is at another place in each
    before, after = (open_policy(one.path) for one in (made[0], made[2]))
    assert after.contract == before.contract
    assert after.hash != before.hash


def test_the_policies_of_the_study_of_memories_differ_in_their_memory_alone(tmp_path, monkeypatch):
    taught = {}

    def record(plan, task, config, output, *, other):
        taught[output.name] = (plan.hash, config)

    monkeypatch.setattr(parts, "distill", record)
    for number in MEMORY:
        part = StudyPart(kind="policy", folder=str(tmp_path), settings=TINY, seed=2, condition=number)
        assert part.needs == ()
        parts._policy(part)
    assert list(taught) == ["shared-ranges-seed2", "shared-ranges-frames-seed2", "shared-ranges-memory-seed2"]
    (plan, none), (_, frames), (_, memory) = taught.values()
    assert {made[0] for made in taught.values()} == {plan}
    assert none.policy == "mlp"
    assert none.settings == RECIPE["settings"]
    assert frames == none.model_copy(update={"settings": {**RECIPE["settings"], "n_obs_steps": 4}})
    assert memory == none.model_copy(update={"policy": "adaptive"})


def test_the_share_of_cut_commands_is_that_of_the_envelope():
    home = TWIN.units.from_si(TWIN.home()[0][TWIN.joint_qpos])
    still = np.tile(home, (1, 8, 1))
    jumps = still.copy()
    jumps[0, 4, 0] += 30.0  # degrees in one step
    assert cut_share(TWIN, still, still) == 0.0
    assert cut_share(TWIN, still, jumps) == pytest.approx(2 / 8, abs=1 / 8)


class TestFigures:
    RESULT = TransferResult(
        settings=TransferSettings(robots=3, seeds=2, conditions=(2, 4)),
        success={2: np.array([[0.1, 0.2], [0.0, 0.0], [0.3, 0.2]]), 4: np.array([[0.9, 0.8], [0.5, 0.7], [0.6, 0.8]])},
        cut={n: np.array([[0.01, 0.03], [0.0, 0.0], [0.0, 0.02]]) for n in (2, 4)},
        script=np.array([1.0, 0.9, 1.0]),
        seconds={"policy": {"wall_s": 20.0, "processor_s": 12.0}},
        asked={"commit": "abc"},
    )

    def test_an_interval_is_students_over_robots(self):
        each = np.array([0.2, 0.4, 0.9])
        found = average_over_robots(np.stack([each, each], axis=1))
        expected = stats.ttest_1samp(each, 0.0).confidence_interval(0.95)
        assert found.interval == pytest.approx(tuple(expected))
        assert found.between_seeds == 0

    def test_differences_are_paired_by_robot(self):
        np.testing.assert_allclose(self.RESULT.differences()[4, 2].each, [0.7, 0.6, 0.45])
        assert [(row["of"], row["over"]) for row in self.RESULT.to_json()["differences"]] == [(4, 2)]

    def test_one_robot_has_no_interval(self):
        assert np.isnan(average_over_robots(np.array([[0.5, 0.7]])).interval).all()

    def test_trials_that_all_succeed_prove_no_certainty(self):
        """For n successes of n trials, the exact two-sided lower limit is (α/2)^(1/n)."""
        low, high = average_over_robots(np.ones((10, 3)), episodes=3).interval
        assert low == pytest.approx(0.025 ** (1 / 90))
        assert high == 1.0
        spread = np.repeat(np.linspace(0.2, 0.8, 10)[:, None], 3, axis=1)
        assert average_over_robots(spread, episodes=100).interval == average_over_robots(spread).interval

    def test_what_is_shown(self):
        table = success_table(self.RESULT)
        assert [row[0] for row in table.rows] == ["(2)", "(4)", ""]
        assert (table.rows[1][2], table.rows[1][5]) == ("71.7%", "60%")
        assert table.rows[0][-1] == "1.0%, at most 2.0%"
        assert "seeds 300 to 302" in table.note
        assert "commit abc" in table.note
        assert difference_table(self.RESULT).rows[0][:2] == ("(4) − (2)", "+58.3")
        assert time_table(self.RESULT).rows[-1] == ("total", "12 s", "20 s")
        assert plot_success(self.RESULT).data[0].x[0] == pytest.approx(100 * self.RESULT.condition(2).mean)


@pytest.mark.slow
def test_a_study_goes_on_and_says_the_same(tmp_path):
    first = run_bench_transfer(Console(quiet=True), TINY, tmp_path, workers=1)
    (tmp_path / "trials" / "robot0-identified-seed0" / "seconds.json").unlink()
    again = run_bench_transfer(Console(quiet=True), TINY, tmp_path, workers=1)
    assert [row["success"] for row in again["conditions"]] == [row["success"] for row in first["conditions"]]
    assert (tmp_path / "report.html").exists()
    assert [row["number"] for row in first["conditions"]] == [1, 4]
    assert first["script"]["mean"] == 1.0


def test_initial_conditions_near_a_failure_are_in_the_box_in_which_a_loop_trains():
    made = draw_near(TWIN, 3, 5, 200)
    [centre] = make_hidden_cell(TWIN, 3).plan(PLACES).draw([5]).values
    for name, middle in zip(made.names, centre, strict=True):
        param = TWIN.params.get(name)
        if param is None or param.quantity.stage != "reset":
            assert (made[name] == middle).all()
            continue
        half = 0.125 * np.ptp(param.absolute(param.default_range, param.op))
        low, high = max(middle - half, param.low), min(middle + half, param.high)
        assert low <= made[name].min() < made[name].max() <= high
        assert np.ptp(made[name]) > 0.9 * (high - low)


def test_the_gain_of_retraining_is_paired_by_robot():
    made = [
        Retraining(robot=robot, trial=0, near=(0.1, 0.1 + gain), elsewhere=(0.9, 0.8))
        for robot, gain in enumerate((0.2, 0.4, 0.6))
    ]
    table = retraining_table(made)
    half = 100 * stats.t.ppf(0.975, 2) * 0.2 / np.sqrt(3)
    assert f"near the failures +40.0 [{40 - half:+.1f}, {40 + half:+.1f}]" in table.note
    assert "elsewhere -10.0 [-10.0, -10.0]" in table.note
    assert table.rows[1] == ("1, trial 0", "10", "50", "90", "80")


@pytest.mark.slow
def test_a_policy_is_retrained_from_its_failure_on_the_robot(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "NEAR", 3)
    made = run_bench_retraining(Console(quiet=True), TINY, tmp_path, workers=1)
    [row] = made["robots"]
    assert (row["robot"], row["trial"]) == (0, 0)
    assert all(0 <= rate <= 1 for pair in (row["near"], row["elsewhere"]) for rate in pair)
