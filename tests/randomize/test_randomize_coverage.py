"""Coverage agrees with closed forms, finds planted holes, and separates attempts from kept episodes."""

from __future__ import annotations

import itertools
import json
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.core.seeds import uniforms
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate import generate_states, resolve_config
from twinloop.generate.coverage import dataset_coverage
from twinloop.randomize import Draw, JointDraw, Plan, default_draws
from twinloop.randomize.axes import UnitCubeAxis, plan_axes, to_unit_cube
from twinloop.randomize.coverage import MARGINAL_CELLS, PAIR_CELLS, TRIPLE_CELLS, CoverageCounter, expected_occupancy
from twinloop.randomize.distributions import Choice, LogUniform, MultivariateNormal, TruncatedNormal, Uniform
from twinloop.twin import load_twin

SO101 = load_twin("so101_tabletop")


def cube(d, low=0.0, high=1.0):
    """Axes that are uniform from ``low`` to ``high``."""
    return [
        UnitCubeAxis(
            names=(f"p/{i}",),
            unit="m",
            to_unit=lambda x: (x - low) / (high - low),
            to_si=lambda u: low + (high - low) * u,
        )
        for i in range(d)
    ]


def counted(u, axes=None, strength=2):
    counter = CoverageCounter(axes or cube(u.shape[1]), strength=strength)
    counter.add(u)
    return counter.result()


def test_independent_draws_hit_as_many_cells_as_the_closed_form_says():
    found = [counted(uniforms(seed, "u", range(60), size=6), strength=3) for seed in range(30)]
    assert expected_occupancy(np.full(100, 0.01), 60) == pytest.approx(1 - 0.99**60)
    for key, cells in (("pairs", PAIR_CELLS**2), ("triples", TRIPLE_CELLS**3)):
        hit = np.array([result[key]["occupied"] for result in found])
        assert found[0][key]["expected"] == pytest.approx(1 - (1 - 1 / cells) ** 60)
        assert hit.mean() == pytest.approx(found[0][key]["expected"], abs=4 * hit.std() / np.sqrt(30))
    marginal = np.array([[row["occupied"] for row in result["marginals"]] for result in found])
    assert marginal.mean() == pytest.approx(1 - (1 - 1 / MARGINAL_CELLS) ** 60, abs=0.01)
    gaps = np.array([[row["gap"]["width"] for row in result["marginals"]] for result in found])
    assert gaps.mean() == pytest.approx(found[0]["marginals"][0]["gap"]["expected"], rel=0.08)


def test_counts_are_those_of_a_slow_count():
    axes = [*cube(3), *plan_axes(Plan(twin=SO101, run_seed=0, draws=(table_texture((3, 1, 1)),)))]
    u = uniforms(3, "slow", range(40), size=4)
    u[:, 3] = np.array([0.3, 0.7, 0.9])[(u[:, 3] * 3).astype(int)]
    result = counted(u, axes, strength=3)
    pair_cells, triple_cells = [10, 10, 10, 3], [4, 4, 4, 3]
    for i, j in itertools.combinations(range(4), 2):
        hit = {(int(a * pair_cells[i]), int(b * pair_cells[j])) for a, b in u[:, [i, j]]}
        fraction = len(hit) / (pair_cells[i] * pair_cells[j])
        assert result["pairs"]["fractions"][i][j - i - 1] == pytest.approx(fraction, abs=1e-4)
    total = []
    for chosen in itertools.combinations(range(4), 3):
        hit = {tuple(int(x * triple_cells[k]) for x, k in zip(row, chosen, strict=True)) for row in u[:, chosen]}
        total.append(len(hit) / np.prod([triple_cells[k] for k in chosen]))
    assert result["triples"]["occupied"] == pytest.approx(np.mean(total))


def table_texture(weights):
    return Draw(names=("texture/table",), distribution=Choice(values=(1.0, 2.0, 3.0), weights=weights))


def test_a_planted_hole_in_a_pair_is_found_where_it_is():
    """A thousand points in the unit square stretched to [10, 20], none in [13, 16] × [10, 14]."""
    u = uniforms(0, "hole", range(3000), size=4)
    u = u[~((u[:, 1] > 0.3) & (u[:, 1] < 0.6) & (u[:, 3] < 0.4))]
    hole = counted(u, cube(4, 10.0, 20.0))["pairs"]["hole"]
    assert hole["names"] == ["p/1", "p/3"]
    np.testing.assert_allclose(hole["low"], [13, 10], atol=1e-4)
    np.testing.assert_allclose(hole["high"], [16, 14])
    assert hole["probability"] == pytest.approx(0.12)
    assert hole["by_chance"] < 1e-9
    full = counted(uniforms(0, "full", range(3000), size=4), cube(4))["pairs"]["hole"]
    assert full is None


def test_the_chance_of_an_empty_box_is_that_of_independent_draws():
    """Over many sets of points: how often a box of at least that size is left empty, against the expected number."""
    sizes = []
    for seed in range(60):
        hole = counted(uniforms(seed, "chance", range(150), size=3))["pairs"]["hole"]
        sizes.append((hole["probability"], hole["by_chance"]))
    typical = np.median([chance for _, chance in sizes])
    assert 0.05 < typical < 20
    assert min(chance for _, chance in sizes) > 1e-4


def test_a_planted_ball_is_found_in_all_dimensions():
    u = uniforms(1, "ball", range(20_000), size=3)
    centre = np.array([0.3, 0.6, 0.5])
    u = u[np.linalg.norm(u - centre, axis=1) > 0.25]
    ball = counted(u)["ball"]
    assert ball["radius"] > 0.17
    found = np.array([ball["centre"][f"p/{i}"] for i in range(3)])
    assert np.linalg.norm(found - centre) < 0.1
    assert "ball" not in counted(uniforms(0, "many", range(50), size=9))


def test_a_gap_along_one_parameter_is_found_with_its_values():
    u = uniforms(2, "gap", range(3000), size=1)
    u = u[(u[:, 0] < 0.25) | (u[:, 0] > 0.5)][:, :1]
    gap = counted(u, cube(1, -1.0, 1.0))["marginals"][0]["gap"]
    assert gap["low"] == pytest.approx(-0.5, abs=0.01)
    assert gap["high"] == pytest.approx(0.0, abs=0.01)
    assert gap["width"] > 20 * gap["expected"]


def test_how_points_come_in_does_not_matter():
    u = uniforms(5, "chunks", range(9000), size=5)
    counter = CoverageCounter(cube(5))
    for part in np.array_split(u[::-1], 7):
        counter.add(part)
    assert counter.result() == counted(u)


def test_every_kind_of_draw_is_uniform_in_its_cumulative_probability():
    draws = (
        Draw(names=("joint/elbow_flex/damping",), distribution=Uniform(low=0.7, high=1.5), op="scale"),
        Draw(names=("actuator/elbow_flex/kp",), distribution=LogUniform(low=2.0, high=20.0)),
        Draw(names=("camera/front/fovy",), distribution=TruncatedNormal(mean=0, std=0.1, low=-0.1, high=0.3), op="add"),
        Draw(
            names=tuple(f"sensor/{j}/offset" for j in SO101.robot.joints),
            distribution=Uniform(low=0, high=0.1),
            tied=True,
        ),
        Draw(names=("object/cube/yaw",), distribution=Uniform(low=0, high=1), scope="step"),
    )
    plan = Plan(twin=SO101, run_seed=1, draws=draws)
    axes = plan_axes(plan)
    assert [axis.name for axis in axes][3] == "sensor/shoulder_pan/offset and 5 more"
    u = to_unit_cube(axes, plan.draw(range(3000)))
    assert u.shape == (3000, 4)
    for axis, column in zip(axes, u.T, strict=True):
        assert stats.kstest(column, "uniform").pvalue > 1e-3
        np.testing.assert_allclose(axis.to_si(column), plan.draw(range(3000))[axis.names[0]], rtol=1e-6, atol=1e-9)


def test_a_correlation_leaves_corners_of_the_square_empty():
    names = ("actuator/elbow_flex/kp", "joint/elbow_flex/damping")
    normal = MultivariateNormal(mean=(np.log(9.0), 0.6), covariance=((0.01, 0.008), (0.008, 0.01)))
    plan = Plan(
        twin=SO101, run_seed=1, draws=(JointDraw(names=names, distribution=normal, transforms=("log", "identity")),)
    )
    u = to_unit_cube(plan_axes(plan), plan.draw(range(3000)))
    for column in u.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    hole = counted(u, plan_axes(plan))["pairs"]["hole"]
    assert hole["by_chance"] < 1e-6
    assert (hole["high"][0] - 9.0) * (hole["low"][1] - 0.6) <= 0 or (hole["low"][0] - 9.0) * (
        hole["high"][1] - 0.6
    ) <= 0


def test_a_hundred_thousand_episodes_of_sixty_parameters_need_little_memory():
    """What one chunk takes, measured on a tenth: the counters do not grow with the number of episodes."""
    counter, peaks = CoverageCounter(cube(60)), []
    for part in range(3):
        tracemalloc.start()
        counter.add(uniforms(part, "memory", range(4096), size=60))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 60e6
    assert peaks[2] < 1.1 * peaks[0]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Eight attempts, some of which fail: frictions too low to hold the cube are drawn too."""
    folder = tmp_path_factory.mktemp("coverage")
    value = {
        "scene": {"robot": "so101", "task": "pick_and_place"},
        "randomization": {
            "params": {"object/cube/friction/slide": [0.06, 1.0], "object/cube/mass": [0.02, 0.1]},
            "constraints": ["object/cube/friction/slide > 0.1"],
        },
        "rollout": {"parallel_envs": 8},
    }
    result = generate_states(resolve_config(value, where="t", folder=folder), folder / "batch")
    return folder / "batch", result


def test_coverage_lies_beside_every_dataset_and_tells_attempts_from_kept(dataset):
    folder, result = dataset
    written = read_json(folder / "twinloop" / "coverage.json")
    assert written["attempted"]["episodes"] == 8
    assert written["kept"]["episodes"] == result["episodes"] == len(DatasetReader(folder))
    assert [axis["name"] for axis in written["axes"]] == ["object/cube/friction/slide", "object/cube/mass"]
    kept = np.array(written["kept"]["marginals"][0]["counts"])
    attempted = np.array(written["attempted"]["marginals"][0]["counts"])
    assert (kept <= attempted).all()
    reader = DatasetReader(folder)
    slides = [reader.provenance(i).params["object/cube/friction/slide"] for i in range(len(reader))]
    cells = ((np.array(slides) - 0.06) / 0.94 * MARGINAL_CELLS).astype(int)
    np.testing.assert_array_equal(kept, np.bincount(cells, minlength=MARGINAL_CELLS))
    assert dataset_coverage(folder) == written
    assert result["coverage"]["pair_occupied"] == written["kept"]["pairs"]["occupied"]


def test_the_acceptance_of_a_run_is_measured_with_its_interval(dataset):
    folder, result = dataset
    acceptance = result["acceptance"]
    reader = DatasetReader(folder)
    assert acceptance["accepted"] == 8
    assert acceptance["rate"] == 8 / acceptance["candidates"]
    assert acceptance["interval"][0] <= 0.9 / 0.94 <= acceptance["interval"][1]
    extra = [reader.provenance(i).extra["constraint_redraws"] for i in range(len(reader))]
    assert sum(extra) <= acceptance["candidates"] - 8


def test_what_was_not_generated_has_no_parameter_space(tmp_path):
    (tmp_path / "meta").mkdir()
    action = {"dtype": "float32", "shape": [1], "names": ["hip.pos"]}
    info = {"codebase_version": "v3.0", "fps": 30, "total_episodes": 0, "features": {"action": action}}
    (tmp_path / "meta" / "info.json").write_text(json.dumps({**info, "data_path": layout.DATA_PATH}))
    with pytest.raises(InputError, match="was not generated from a randomization"):
        dataset_coverage(tmp_path)


def test_the_default_ranges_have_an_axis_each():
    plan = Plan(twin=SO101, run_seed=0, draws=tuple(default_draws(SO101)))
    episode = [draw for draw in plan.draws if draw.scope == "episode"]
    assert len(plan_axes(plan)) == len(episode)
