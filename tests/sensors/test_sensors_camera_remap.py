"""Images put behind a lens and spread by it: OpenCV's remap, planes, ids; spots; compiled and not the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.sensors import compiled
from twinloop.sensors.camera import blur as blur_module
from twinloop.sensors.camera import remap as remap_module
from twinloop.sensors.camera.blur import blur_images, compute_spot
from twinloop.sensors.camera.remap import Remap


def random_maps(maps, height=40, width=50, grid=None, seed=0):
    rng = np.random.default_rng(seed)
    column, row = rng.uniform(0, 59, (maps, height, width)), rng.uniform(0, 44, (maps, height, width))
    if grid:
        column, row = np.round(column * grid) / grid, np.round(row * grid) / grid
    return Remap(column=column.astype(np.float32), row=row.astype(np.float32), source=(45, 60))


class TestRemap:
    IMAGES = np.random.default_rng(5).uniform(0, 2, (2, 45, 60, 3)).astype(np.float32)

    def test_it_is_opencvs(self):
        """OpenCV rounds places to 1/32 of a pixel; at such places the results are the same."""
        cv2 = pytest.importorskip("cv2")
        remap = random_maps(1, grid=32)
        for ours, image in zip(remap.apply(self.IMAGES), self.IMAGES, strict=True):
            theirs = cv2.remap(image, remap.column[0], remap.row[0], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
        ids = np.arange(45 * 60, dtype=np.float32).reshape(1, 45, 60)
        near = cv2.remap(ids[0], remap.column[0], remap.row[0], cv2.INTER_NEAREST, borderMode=cv2.BORDER_REPLICATE)
        ties = (remap.column[0] % 1 == 0.5) | (remap.row[0] % 1 == 0.5)
        assert np.array_equal(remap.nearest(ids)[0][~ties], near[~ties])

    @pytest.mark.parametrize("maps", [1, 3])
    def test_compiled_and_not_it_is_the_same(self, maps, monkeypatch):
        pytest.importorskip("numba")
        remap = random_maps(maps)
        fast = remap.apply(self.IMAGES)
        monkeypatch.setattr(remap_module, "has_numba", lambda: False)
        np.testing.assert_allclose(fast, remap.apply(self.IMAGES), atol=2.5e-7)  # one unit in the last place of 2

    def test_bilinear_is_exact_on_planes(self):
        columns, rows = np.arange(60.0), np.arange(45.0)[:, None]
        plane = np.stack([columns + 0 * rows, 0 * columns + rows, 2 * columns - rows], axis=-1)[None].astype(np.float32)
        for maps in (1, 3):
            remap = random_maps(maps, seed=maps)
            place = np.stack([remap.column[0], remap.row[-2 % maps], 2 * remap.column[-1] - remap.row[-1]], axis=-1)
            np.testing.assert_allclose(remap.apply(plane)[0], place, atol=2e-5)

    def test_ids_stay_ids_and_keep_their_type(self):
        ids = np.random.default_rng(3).integers(-1, 9, (2, 45, 60)).astype(np.int32)
        near = random_maps(3).nearest(ids)
        assert near.dtype == np.int32
        assert near.shape == (2, 40, 50)
        assert set(np.unique(near)) <= set(range(-1, 9))

    def test_wrong_images_are_refused(self):
        with pytest.raises(InputError, match=r"shape \(2, 60, 45, 3\) do not have 60×45 pixels, \(n, 45, 60, …\)"):
            random_maps(1).apply(self.IMAGES.transpose(0, 2, 1, 3))
        with pytest.raises(
            InputError, match="The images have 4 channels, but a lens with chromatic aberration needs 3"
        ):
            random_maps(3).apply(np.zeros((1, 45, 60, 4), dtype=np.float32))


class TestBlur:
    @given(blur=st.floats(0.05, 6.0))
    def test_a_spot_has_the_width_it_is_asked_for_however_small(self, blur):
        line = compute_spot(blur)
        at = np.arange(len(line)) - len(line) // 2
        assert line.sum() == pytest.approx(1.0, abs=1e-12)
        assert math.sqrt(line @ at**2) == pytest.approx(blur, rel=1e-3)

    def test_two_lenses_add_up_in_squares(self):
        both = np.convolve(compute_spot(1.2), compute_spot(0.9))
        once = compute_spot(1.5)
        surplus = (len(both) - len(once)) // 2
        np.testing.assert_allclose(both[surplus : len(both) - surplus], once, atol=1e-5)

    @pytest.mark.parametrize("fast", [True, False])
    def test_a_point_becomes_a_round_spot_and_light_is_kept(self, fast, monkeypatch):
        if fast:
            pytest.importorskip("numba")
        monkeypatch.setattr(blur_module, "has_numba", lambda: fast)
        image = np.zeros((2, 41, 51, 3), dtype=np.float32)
        image[1, 20, 25] = [1.0, 2.0, 3.0]
        before = image.copy()
        seen = blur_images(image, 2.0)
        assert np.array_equal(image, before)
        assert (seen[0] == 0.0).all()
        rows, columns = np.arange(41) - 20, np.arange(51) - 25
        for channel, light in enumerate((1.0, 2.0, 3.0)):
            part = seen[1, ..., channel].astype(np.float64) / light
            assert part.sum() == pytest.approx(1.0, abs=1e-5)
            assert part.sum(axis=1) @ rows**2 == pytest.approx(4.0, rel=1e-3)
            assert part.sum(axis=0) @ columns**2 == pytest.approx(4.0, rel=1e-3)
            assert part.sum(axis=1) @ rows == pytest.approx(0.0, abs=1e-5)

    def test_compiled_and_not_it_is_the_same(self, monkeypatch):
        pytest.importorskip("numba")
        image = np.random.default_rng(0).uniform(0, 2, (2, 40, 33, 3)).astype(np.float32)
        for blur in (0.4, 1.3, 20.0):  # the last is wider than the image
            monkeypatch.undo()
            fast = blur_images(image, blur)
            monkeypatch.setattr(blur_module, "has_numba", lambda: False)
            np.testing.assert_allclose(fast, blur_images(image, blur), atol=3e-6)

    def test_even_light_stays_even_and_no_blur_is_nothing(self):
        even = np.full((1, 20, 30, 3), 0.7, dtype=np.float32)
        np.testing.assert_allclose(blur_images(even, 3.0), even, rtol=2e-6)
        assert blur_images(even, 0.0) is even

    def test_what_is_no_spot_is_refused(self):
        with pytest.raises(InputError, match=r"A blur of 65 pixels \(standard deviation\) is impossible. Use 0 to 64"):
            compute_spot(65.0)


def test_without_numba_there_is_another_way(monkeypatch):
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    assert not compiled.has_numba.__wrapped__()
