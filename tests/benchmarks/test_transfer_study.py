"""Transfer study: data per arm of the study, order of the steps, and definitions of the metrics."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("torch")

from rich.console import Console

from benchmarks.transfer.pages import difference_table, plot_success, success_table, time_table
from benchmarks.transfer.run import run_bench_transfer
from twinloop.core.errors import InputError
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.randomize import Plan
from twinloop.rollout import run_batch
from twinloop.simulate import open_backend
from twinloop.tasks import open_task
from twinloop.twin import load_twin
from twinloop.workflows.demo.virtual_robots.comparison import TransferResult, average_over_robots, order_stages
from twinloop.workflows.demo.virtual_robots.demonstrations import (
    DemonstrationWorlds,
    PerturbedExpert,
    placement_draws,
    training_worlds,
    write_demonstrations,
)
from twinloop.workflows.demo.virtual_robots.parts import StudyPart, make, read_outcomes
from twinloop.workflows.demo.virtual_robots.settings import CONDITIONS, TransferRecipe, TransferSettings

TWIN = load_twin("so101_tabletop")
TINY = TransferSettings(robots=1, seeds=1, episodes=3, demos=6, real=2, steps=20, log=2, conditions=(1, 6))


def shaken(numbers, recipe, nstep=12):
    """Intended and executed commands, ``(n, nstep, nu)``."""
    task = open_task("pick_and_place", TWIN)
    task.nstep = nstep
    actor, plan = (
        PerturbedExpert(task=task, recipe=recipe),
        Plan(twin=TWIN, run_seed=3, draws=tuple(placement_draws(TWIN))),
    )
    backend = open_backend("threads", nthread=1)
    batch = run_batch(TWIN, task, plan.draw(numbers), run_seed=3, episodes=numbers, actor=actor, backend=backend)
    return np.stack(actor.unperturbed_commands, axis=1), batch.trajectories.commands


class TestShowing:
    def test_arms_are_shaken_as_much_as_said_and_jaws_are_not(self):
        recipe = TransferRecipe(shake=0.02, memory=0.5)
        meant, done = shaken(range(40), recipe, nstep=20)
        shake = (done - meant)[:, 6:]
        assert np.std(shake[..., :5]) == pytest.approx(0.02, rel=0.1)
        assert not shake[..., 5].any()
        before, after = shake[:, :-1, :5].ravel(), shake[:, 1:, :5].ravel()
        assert np.corrcoef(before, after)[0, 1] == pytest.approx(0.5, abs=0.06)

    def test_an_episode_is_shaken_alike_alone_and_among_others(self):
        _, alone = shaken([4], TransferRecipe(shake=0.02))
        _, among = shaken([2, 4], TransferRecipe(shake=0.02))
        np.testing.assert_array_equal(alone[0], among[1])

    def test_randomized_worlds_differ_and_nominal_ones_do_not(self):
        nominal, ranges = (
            training_worlds(kind, TWIN, TransferRecipe()).draw(range(3)) for kind in ("nominal", "ranges")
        )
        assert np.ptp(nominal["joint/elbow_flex/damping"]) == 0
        assert np.ptp(ranges["joint/elbow_flex/damping"]) > 0
        assert np.ptp(nominal["object/cube/position/x"]) > 0


class TestOrder:
    def parts(self, tmp_path):
        settings = TransferSettings(robots=2, seeds=2)
        return [
            StudyPart(
                kind="trials", folder=str(tmp_path), settings=settings, robot=robot, seed=seed, condition=c.number
            )
            for robot in settings.robot_seeds
            for seed in range(2)
            for c in CONDITIONS
        ]

    def test_what_is_needed_comes_first_and_once(self, tmp_path):
        made = order_stages(self.parts(tmp_path))
        assert [{part.kind for part in stage} for stage in made] == [{"log"}, {"demos"}, {"policy"}, {"trials"}]
        logs, demos, policies, trials = (len(stage) for stage in made)
        assert logs == 2
        assert demos == 2 + 2 * 3  # two for all robots; estimate, posterior and their own of each
        assert policies == 2 * 2 + 2 * 2 * 4  # two seeds of the shared draws, and of each robot's draws
        assert trials == 2 * 2 * 6

    def test_what_is_whole_is_not_made_again_and_half_parts_are(self, tmp_path, monkeypatch):
        from twinloop.workflows.demo.virtual_robots import parts

        made = []

        def maker(part):
            made.append(part.path.name)
            part.path.mkdir(parents=True)
            (part.path / "trials.json").write_text('{"success": [true]}')

        monkeypatch.setitem(parts._MAKERS, "script", maker)
        part = StudyPart(kind="script", folder=str(tmp_path), settings=TINY, robot=100)
        part.path.mkdir(parents=True)
        (part.path / "half").write_text("")
        first = make(part)
        assert not (part.path / "half").exists()
        assert make(part) == first
        assert made == ["robot100"]
        assert read_outcomes(part) == [True]

    def test_another_study_is_refused(self, tmp_path):
        (tmp_path / "study.json").write_text(json.dumps(replace(TINY, demos=7).made_of()))
        with pytest.raises(InputError, match=r"another demos\. Use the same settings, or choose another --output"):
            run_bench_transfer(Console(), TINY, tmp_path, workers=1)

    def test_more_robots_or_seeds_are_the_same_study(self):
        assert replace(TINY, robots=4, seeds=2, conditions=(1,)).made_of() == TINY.made_of()

    @pytest.mark.parametrize(
        ("changed", "said"), [({"conditions": (1, 7)}, "--conditions 7"), ({"real": 0}, "--real 0")]
    )
    def test_wrong_settings(self, changed, said):
        with pytest.raises(InputError, match=said):
            TransferSettings(**changed)


class TestMetrics:
    RESULT = TransferResult(
        robots=(100, 101, 102),
        trials=10,
        success={1: np.array([[0.1, 0.2], [0.0, 0.0], [0.3, 0.2]]), 4: np.array([[0.9, 0.8], [0.5, 0.7], [0.6, 0.8]])},
        script=np.array([1.0, 0.9, 1.0]),
        seconds={"policy": {"wall_s": 20.0, "processor_s": 12.0}},
        made_of={},
    )

    def test_an_interval_is_students_over_robots(self):
        each = np.array([0.2, 0.4, 0.9])
        found = average_over_robots(np.stack([each, each], axis=1))
        expected = stats.ttest_1samp(each, 0.0).confidence_interval(0.95)
        assert found.interval == pytest.approx(tuple(expected))
        assert found.between_seeds == 0

    def test_differences_are_paired_by_robot(self):
        found = self.RESULT.differences()[4, 1]
        np.testing.assert_allclose(found.each, [0.7, 0.6, 0.45])
        assert self.RESULT.to_json()["differences"][0]["wanted"] == 0.25

    def test_one_robot_has_no_interval(self):
        assert np.isnan(average_over_robots(np.array([[0.5, 0.7]])).interval).all()

    def test_what_is_shown(self):
        rows = success_table(self.RESULT).rows
        assert [row[0] for row in rows] == ["(1)", "(4)", ""]
        assert rows[1][2] == "71.7%"
        assert difference_table(self.RESULT).rows[0][:2] == ("(4) − (1)", "+58.3")
        assert time_table(self.RESULT).rows[-1] == ("total", "12 s", "20 s")
        assert plot_success(self.RESULT).data[0].x[0] == pytest.approx(100 * self.RESULT.condition(1).mean)


@pytest.mark.slow
class TestWhole:
    @pytest.mark.parametrize("sees", ["scene", "tool"])
    def test_demonstrations_are_a_dataset_without_failures(self, sees, tmp_path):
        worlds = DemonstrationWorlds(twin=TWIN, plan=Plan(twin=TWIN, run_seed=3, draws=tuple(placement_draws(TWIN))))
        written = write_demonstrations(worlds, tmp_path / "demos", count=4, recipe=TransferRecipe(shake=0.0, sees=sees))
        reader = DatasetReader(tmp_path / "demos")
        assert reader.info["total_episodes"] == written == 4
        names = reader.info["features"]["observation.environment_state"]["names"]
        assert {"cube.x", "target.y", "cube.heading.sin"} <= set(names)
        assert ("tool.x" in names) is (sees == "tool")

    def test_images_go_with_them(self, tmp_path):
        worlds = DemonstrationWorlds(twin=TWIN, plan=Plan(twin=TWIN, run_seed=3, draws=tuple(placement_draws(TWIN))))
        write_demonstrations(worlds, tmp_path / "demos", count=1, recipe=TransferRecipe(shake=0.0), images=True)
        assert DatasetReader(tmp_path / "demos").info["features"]["observation.images.front"]["shape"] == [72, 96, 3]

    def test_a_study_goes_on_and_says_the_same(self, tmp_path):
        first = run_bench_transfer(Console(quiet=True), TINY, tmp_path, workers=1)
        (tmp_path / "trials" / "robot100-real-seed0" / "seconds.json").unlink()
        again = run_bench_transfer(Console(quiet=True), TINY, tmp_path, workers=1)
        assert [row["success"] for row in again["conditions"]] == [row["success"] for row in first["conditions"]]
        assert (tmp_path / "report.html").exists()
        assert [row["number"] for row in first["conditions"]] == [1, 6]
