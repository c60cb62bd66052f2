"""What signals point to, chunks that overlap, pictures that moved, and judges that find what was planted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.release.monitor.directions import Directions
from twinloop.release.monitor.judging import Departure, Drives, Size
from twinloop.release.monitor.outlying import fit_outlying
from twinloop.release.monitor.pictures import PictureReference, phase_shift
from twinloop.release.monitor.signals import cause_of, meaning
from twinloop.release.monitor.streams import overlap


def test_the_fault_that_explains_the_departure_is_named() -> None:
    excess = {"drives/latency": 4.0, "drives/gain": 3.5, "drives/any": 5.0, "grip": 2.0}
    assert cause_of(excess, {"latency": 40.0, "gain": 30.0, "load": 2.0}, 45.0)[0] == "latency"


def test_faults_that_look_alike_are_unknown_and_both_are_said() -> None:
    cause, instead = cause_of({"drives/latency": 4.0}, {"latency": 30.0, "gain": 29.9}, 40.0)
    assert cause == "unknown"
    assert instead == ["latency", "worn actuator"]


def test_two_faults_of_one_cause_are_no_doubt() -> None:
    assert cause_of({"drives/friction": 4.0}, {"friction": 30.0, "gain": 29.9}, 40.0)[0] == "worn actuator"


def test_a_departure_that_no_fault_explains_is_unknown() -> None:
    assert cause_of({"drives/any": 4.0}, {"latency": 3.0, "gain": 1.0}, 40.0) == ("unknown", [])


def test_special_signals_go_before_general_ones() -> None:
    assert cause_of({"latent": 9.0, "camera/front/shift": 1.1})[0] == "moved camera"
    assert cause_of({"latent": 9.0, "chunk": 1.1})[0] == "out of distribution"
    assert cause_of({"tracker": 3.0, "camera/front/light": 3.1})[0] == "unknown"


def test_every_signal_has_words() -> None:
    for name in ("drives/any", "drives/play", "grip", "tracker", "observation", "latent", "chunk", "camera/a/b/light"):
        assert meaning(name).words


def test_chunks_of_one_plan_do_not_disagree() -> None:
    plan = np.random.default_rng(0).normal(size=(2, 30, 3))
    np.testing.assert_allclose(overlap(plan[:, 8:24], plan[:, :16], 8), 0.0)
    np.testing.assert_allclose(overlap(plan[:, 8:24] + 2.0, plan[:, :16], 8), 2.0)
    assert np.isnan(overlap(plan[:, :8], plan[:, :8], 8)).all()


@settings(max_examples=10)
@given(st.floats(0.3, 3.0), st.integers(0, 100))
def test_directions_give_back_what_was_planted(size: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    found = Directions((1, 2, 3), control_hz=30.0)
    truth = size * np.array([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]])
    coefficients = np.zeros((1, 2, 3))
    for _ in range(90):
        moved = random.normal(size=(1, 2, 3)) * 0.05
        coefficients = found.look(np.einsum("wjp,jp->wj", moved, truth), moved)
    np.testing.assert_allclose(coefficients[0], truth, atol=0.01 * size)


def test_directions_forget() -> None:
    random, found = np.random.default_rng(1), Directions((1, 1, 1), control_hz=30.0, memory_s=1.0)
    last = np.zeros((1, 1, 1))
    for step in range(300):
        moved = random.normal(size=(1, 1, 1)) * 0.05
        last = found.look(moved[..., 0] * (0.0 if step < 150 else 1.0), moved)
    assert last[0, 0, 0] == pytest.approx(1.0, abs=0.03)
    found.restart(np.array([0]))
    assert found.look(np.zeros((1, 1)), np.zeros((1, 1, 1))).item() == 0.0


def _scene(random: np.random.Generator) -> np.ndarray:
    coarse = random.uniform(30, 220, size=(24, 32))
    return np.kron(coarse, np.ones((6, 6)))


@settings(max_examples=20)
@given(st.integers(-8, 8), st.integers(-8, 8), st.integers(0, 20))
def test_a_moved_picture_says_how_far(right: int, down: int, seed: int) -> None:
    scene = _scene(np.random.default_rng(seed))
    seen = np.roll(scene, (down, right), axis=(0, 1))
    np.testing.assert_allclose(phase_shift(scene, seen[None])[0], [right, down], atol=0.3)


def test_halved_light_is_a_stop_and_no_shift() -> None:
    scene = np.repeat(_scene(np.random.default_rng(2))[..., None], 3, axis=2)
    reference = PictureReference.of(scene[None].astype(np.uint8))
    light, sharp, x, y = reference.look((scene[None] / 2).astype(np.uint8), "front")[0]
    plain = reference.look(scene[None].astype(np.uint8), "front")[0]
    assert light == pytest.approx(-1.0, abs=0.03)
    assert sharp == pytest.approx(plain[1], abs=0.02)
    assert max(abs(x), abs(y)) < 0.05


def test_a_camera_of_another_size_is_refused() -> None:
    reference = PictureReference(background=np.zeros((48, 64)))
    with pytest.raises(InputError, match=r"front gives pictures \(24, 32, 3\); the monitor was calibrated on 64x48"):
        reference.look(np.zeros((1, 24, 32, 3), dtype=np.uint8), "front")


def test_departure_is_measured_in_spreads_of_its_time() -> None:
    random = np.random.default_rng(3)
    spread = np.linspace(1.0, 5.0, 50)[None, :, None]
    rows = 10.0 + spread * random.normal(size=(400, 50, 2))
    judge = Departure.fit(rows)
    apart = judge.scores(np.array([[13.0, 10.0], [10.0, 25.0]]), np.array([0, 49]))[""]
    np.testing.assert_allclose(apart, [3.0, 3.0], rtol=0.12)


def test_what_never_changed_is_told_by_the_least_spread() -> None:
    judge = Departure.fit(np.full((10, 20, 2), 3.0), least=0.5)
    assert judge.scores(np.array([3.0, 4.0]), 5)[""] == pytest.approx(2.0)


def test_the_matched_filter_names_the_way_and_counts_its_length() -> None:
    random = np.random.default_rng(4)
    rows = random.normal(size=(200, 20, 4)) * np.array([1.0, 2.0, 3.0, 4.0])
    ways = np.zeros((2, 20, 4))
    ways[0, :, 1], ways[1, :, 3] = 5.0, -1.0
    judge = Drives.fit(rows, ways, ("one", "two"), skip=0)
    told = judge.scores(np.array([0.0, 8.0, 0.0, 0.0]), 7)
    assert told["one"] == pytest.approx(4.0, rel=0.1)
    assert abs(told["two"]) < 0.5
    assert told["any"] == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("kind", ["neighbours", "density", "random_network"])
def test_a_row_far_from_all_is_unlike(kind: str) -> None:
    random = np.random.default_rng(5)
    mix = random.normal(size=(3, 6))
    judge = fit_outlying(random.normal(size=(300, 3)) @ mix, kind)  # type: ignore[arg-type]
    new = judge.scores(random.normal(size=(50, 3)) @ mix, 0)[""]
    far = judge.scores((random.normal(size=(50, 3)) + 5.0) @ mix, 0)[""]
    assert np.quantile(far, 0.1) > np.quantile(new, 0.9)


def test_size_is_in_units_of_its_columns() -> None:
    assert Size(unit=np.array([2.0, 4.0])).scores(np.array([2.0, 4.0]), 0)[""] == pytest.approx(1.0)
