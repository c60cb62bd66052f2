"""Nominal 90 % intervals hold planted truths under correlated noise; those of a wrong twin hold its best fit only."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from benchmarks.error_rates.coverage import run as bench_coverage
from benchmarks.error_rates.coverage.cases import CASES, SERVO
from benchmarks.error_rates.coverage.run import PLACE, coverage, run_bench_coverage
from benchmarks.studies import marks
from twinloop.core.errors import InputError
from twinloop.simulate import open_backend

LEAST, MOST = 0.85, 0.97  # accepted coverage of nominal 90 % intervals


@pytest.fixture(scope="module")
def backend():
    return open_backend("threads", nthread=2)


def test_intervals_of_a_servo_cover_and_plain_least_squares_do_not(backend):
    found = coverage(replace(SERVO, population=24), backend, repetitions=40)
    assert found.clusters == "8 episodes"
    assert 0.82 <= found.overall_planted <= 0.98
    assert 0.82 <= found.overall_best <= 0.98
    assert np.mean([row.naive for row in found.rows]) < 0.6
    for row in found.rows:
        assert row.determined == 1.0
        assert abs(row.bias) < 0.8, row  # a right twin's best fit is the planted value, but for so few episodes


def test_planted_and_best_fitting_values_are_counted_apart(backend, monkeypatch):
    tiny = replace(SERVO, population=8, seconds=0.6)
    free = coverage(tiny, backend, repetitions=2).rows
    planted, best = (np.array([getattr(row, name) for row in free]) for name in ("planted", "best"))
    none, third = np.full(len(planted), np.nan), np.abs(best - planted) / 3
    centres = [planted, best, best, none]  # one log's intervals hold the planted value, two the best, one has none
    limits = iter([(centre - third, centre + third) for centre in centres])

    def planted_limits(*_):
        low, high = next(limits)
        method = {"method": "planted", "clusters": "none"}
        return bench_coverage._Limits(low=low, high=high, naive_low=planted - third, naive_high=planted, **method)

    monkeypatch.setattr(bench_coverage, "_linear_limits", planted_limits)
    found = coverage(tiny, backend, repetitions=4)
    for row in found.rows:
        assert row.covers_planted.rate == pytest.approx(1 / 3)
        assert row.covers_best.rate == pytest.approx(2 / 3)
        assert row.covers_best.low < 2 / 3 < row.covers_best.high
        assert row.determined == 0.75
        assert row.naive == 1.0
    assert "33.3% cover the planted value, 66.7% the best-fitting value" in bench_coverage.title(found)


def test_intervals_of_a_twin_that_lacks_friction_miss_the_planted_values(backend):
    case = next(case for case in CASES if case.name == "servo without its load friction and stiction")
    rows = coverage(replace(case, population=24), backend, repetitions=40).rows
    biased = max(rows, key=lambda row: abs(row.bias))
    assert biased.covers_best.rate > 0.8
    assert biased.covers_planted.rate < 0.6


def test_mistakes_are_named_and_a_page_takes_the_table(tmp_path, monkeypatch):
    with pytest.raises(
        InputError, match=r"No case matches nothing. The cases are: servo; servo, 2 recordings of 12 s;"
    ):
        run_bench_coverage(Console(quiet=True), only=["nothing"])
    with pytest.raises(InputError, match="--repetitions 1: give at least 2 logs per case"):
        run_bench_coverage(Console(quiet=True), repetitions=1)
    page = tmp_path / "page.md"
    with pytest.raises(InputError, match="has no place for the tables"):
        run_bench_coverage(Console(quiet=True), page=page)
    page.write_text("before\n{}\n{}\nafter\n".format(*marks(PLACE)))
    tiny = replace(SERVO, name="tiny", population=8, seconds=0.6)
    monkeypatch.setattr("benchmarks.error_rates.coverage.run.CASES", (tiny,))
    metrics = run_bench_coverage(Console(quiet=True), repetitions=3, nthread=1, page=page)
    assert "| `actuator/pendulum/kp` | N·m/rad | 0.65 |" in page.read_text()
    assert page.read_text().startswith("before\n")
    assert metrics["cases"][0]["case"] == "tiny"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_intervals_cover_between_85_and_97_percent(case, backend):
    found = coverage(case, backend, repetitions=200)
    for row in found.rows:
        assert row.determined > 0.95, row
        assert LEAST <= row.covers_best.rate <= MOST, row
        assert row.naive < LEAST, row
        assert case.missing or LEAST <= row.covers_planted.rate <= MOST, row
    if case.missing:
        assert min(row.covers_planted.rate for row in found.rows) < 0.5  # no interval of a wrong twin shows its bias
