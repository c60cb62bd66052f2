"""A camera's clock: time of each image, delay, loss, repetition, and their rates."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.core.params import SeedPath
from twinloop.sensors.camera.model import OPTICS_QUANTITIES, make_clock, make_lens, make_shutter
from twinloop.sensors.camera.shutter import CaptureClock, find_delivered_captures
from twinloop.twin.quantities.sensing import CAMERA_OPTICS

SEEDS = SeedPath.of(7, [3])
CLOCKS = {
    "frame_rate": st.floats(5.0, 120.0),
    "frame_phase": st.floats(0.0, 1.0),
    "latency": st.floats(0.0, 0.2),
    "latency_jitter": st.floats(0.0, 0.1),
    "drop_rate": st.floats(0.0, 1.0),
    "duplicate_rate": st.floats(0.0, 1.0),
}


def steps(nstep, rate=50.0, nworld=1):
    return np.tile(np.arange(nstep) / rate, (nworld, 1))


def seen(time, seeds=SEEDS, **clock):
    return find_delivered_captures(time, CaptureClock(**clock), seeds=seeds, stream="sensor/front/captures")


class TestClock:
    def test_25_hz_under_30_hz_is_a_staircase(self):
        """Of six steps of 1/30 s, five see a new image and one the same again."""
        taken, number, _ = seen(steps(600, rate=30.0), frame_rate=25.0)
        advances = np.diff(number[0])
        assert set(advances.tolist()) == {0, 1}
        assert advances.sum() == pytest.approx(599 * 25 / 30, abs=1)
        again = np.nonzero(advances == 0)[0]
        assert set(np.diff(again).tolist()) == {6}
        np.testing.assert_allclose(taken[0], (number[0] - 1) / 25.0, atol=1e-9)

    @given(rate=CLOCKS["frame_rate"], phase=CLOCKS["frame_phase"], latency=CLOCKS["latency"])
    def test_the_newest_that_has_arrived_and_none_of_the_future(self, rate, phase, latency):
        time = steps(200)
        taken, number, arrived = seen(time, frame_rate=rate, frame_phase=phase, latency=latency)
        assert (taken <= np.maximum(time - latency, 0.0) + 1e-9).all()
        shown = number > 0
        age = (time - taken)[shown]
        assert (age >= latency - 1e-9).all()
        assert (age <= latency + 1.0 / rate + 1e-6).all()
        np.testing.assert_allclose(arrived[shown], (taken + latency)[shown], atol=1e-9)

    def test_without_a_rate_a_image_is_taken_when_asked_for(self):
        time = steps(50)
        taken, number, arrived = seen(time)
        assert np.array_equal(taken, time)
        assert np.array_equal(number[0], np.arange(1, 51))
        assert np.array_equal(arrived, time)
        late = seen(time, latency=0.1)
        np.testing.assert_allclose(late.capture_time, np.maximum(time - 0.1, 0.0))

    def test_worlds_have_clocks_of_their_own(self):
        time, seeds = steps(300, nworld=3), SeedPath.of(7, [3, 4, 5])
        rates, drops = np.array([0.0, 20.0, 33.0]), np.array([0.3, 0.2, 0.1])
        together = seen(time, seeds, frame_rate=rates, drop_rate=drops, latency=0.02, latency_jitter=0.01)
        for w in range(3):
            alone = seen(
                time[[w]], seeds.take([w]), frame_rate=rates[w], drop_rate=drops[w], latency=0.02, latency_jitter=0.01
            )
            for one, many in zip(alone, together, strict=True):
                assert np.array_equal(one[0], many[w])


def replayed(time, clock, nstep):
    """One world, image by image as a host would live through it: the slow twin."""
    last = nstep + 200
    chance = np.stack([SEEDS.uniforms("sensor/front/captures", size=3, step=k)[0] for k in range(last)])
    here, host = [(0.0, 0.0, 0)], 0.0  # of each arrival: when, of which time, which number
    for k in range(1, last):
        taken = (clock["frame_phase"] + k - 1) / clock["frame_rate"]
        late, lost, again = chance[k]
        if lost < clock["drop_rate"]:
            continue
        host = max(host, taken + clock["latency"] + late * clock["latency_jitter"])
        here.append((host, *here[-1][1:]) if again < clock["duplicate_rate"] else (host, taken, k))
    arrivals = np.array([row[0] for row in here])
    at = [here[np.searchsorted(arrivals, t + 1e-9, side="right") - 1] for t in time]
    return np.array([row[1] for row in at]), np.array([row[2] for row in at])


class TestChance:
    @settings(max_examples=40)
    @given(**CLOCKS)
    @pytest.mark.slow
    def test_it_is_what_a_host_lives_through(self, **clock):
        time = steps(60)
        taken, number, arrived = seen(time, **clock)
        slow_taken, slow_number = replayed(time[0], clock, 200)
        assert np.array_equal(number[0], slow_number)
        np.testing.assert_allclose(taken[0], slow_taken, atol=1e-8)
        assert (np.diff(number) >= 0).all()
        assert (arrived <= time).all()
        assert (taken <= time).all()

    def test_the_shares_of_lost_and_repeated_images(self):
        time = steps(40_000, rate=30.0)
        images = 40_000
        for name in ("drop_rate", "duplicate_rate"):
            number = seen(time, frame_rate=30.0, **{name: 0.15}).number[0]
            missing = images - len(np.unique(number))
            assert missing / images == pytest.approx(0.15, abs=4 * np.sqrt(0.15 * 0.85 / images))

    def test_of_a_lost_image_the_host_knows_nothing_and_a_repeated_one_looks_new(self):
        time = steps(3000, rate=30.0)
        lost = seen(time, frame_rate=30.0, drop_rate=0.3)
        again = seen(time, frame_rate=30.0, duplicate_rate=0.3)
        stood = np.diff(lost.number[0]) == 0
        assert stood.any()
        assert (np.diff(lost.arrived[0])[stood] == 0.0).all()
        stood = np.diff(again.number[0]) == 0
        assert stood.any()
        np.testing.assert_allclose(np.diff(again.arrived[0])[stood], 1 / 30, atol=1e-6)

    def test_the_age_is_uniform_between_latency_and_latency_and_jitter(self):
        """Slow images at a high request rate: the first request with an image gives its arrival time."""
        time = steps(400_000, rate=2000.0)
        taken, number, _ = seen(time, frame_rate=10.0, latency=0.05, latency_jitter=0.04)
        first = np.nonzero(np.diff(number[0]) == 1)[0] + 1
        age = (time - taken)[0, first]
        assert age.min() >= 0.05 - 1e-9
        assert age.max() <= 0.09 + 1 / 2000
        assert age.mean() == pytest.approx(0.07 + 0.5 / 2000, abs=4 * 0.04 / np.sqrt(12 * len(first)))
        assert age.std() == pytest.approx(0.04 / np.sqrt(12), rel=0.05)

    def test_it_does_not_depend_on_how_long_or_how_often_one_asks(self):
        clock = {"frame_rate": 30.0, "latency": 0.03, "latency_jitter": 0.05, "drop_rate": 0.2, "duplicate_rate": 0.1}
        fine, coarse = seen(steps(1000, rate=200.0), **clock), seen(steps(100, rate=20.0), **clock)
        assert np.array_equal(fine.number[:, ::10], coarse.number)
        np.testing.assert_allclose(fine.capture_time[:, ::10], coarse.capture_time, atol=1e-9)
        short = seen(steps(20, rate=20.0), **clock)
        assert np.array_equal(short.number, coarse.number[:, :20])

    def test_without_seeds_chance_is_refused(self):
        with pytest.raises(InputError, match=r"late, lost or repeated images need seeds\. Give the table"):
            seen(steps(3), None, drop_rate=0.1)


def test_quantities_are_the_fields_of_lens_shutter_and_clock():
    declared = {quantity.quantity for quantity in CAMERA_OPTICS}
    assert {*OPTICS_QUANTITIES} - {"exposure_time"} == declared  # the exposure time is declared with the exposure
    ideal = {quantity.quantity: quantity.default for quantity in CAMERA_OPTICS}
    for made in (make_lens({}, {}), make_shutter({}, {}), make_clock({})):
        for field in fields(made):
            assert getattr(made, field.name) == ideal.get(field.name, getattr(made, field.name)), field.name


def test_values_of_worlds_become_one_worlds_camera():
    values = {"lens_k1": np.array([0.1, 0.2]), "readout": np.array([0.01, 0.02]), "exposure_time": 0.005, "gain": 2.0}
    assert make_lens(values, {"lens": "fisheye"}, world=1).lens_k1 == 0.2
    assert make_shutter(values, {"shutter": "global"}, world=0).readout == 0.01
    assert make_clock({"frame_rate": np.array([30.0, 25.0])}).column("frame_rate").shape == (2, 1)
