"""Records refuse invalid values, name the field, and survive writing and reading unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.distribution import ParamDistribution
from twinloop.core.documents import read_json
from twinloop.core.errors import InputError, LogError, UnitsError, UnknownNameError
from twinloop.core.files import atomic_open, write_json
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode, Provenance
from twinloop.core.units import JointUnit, UnitMap, split_unit, unit_map_from_ranges

UNITS = unit_map_from_ranges(["pan", "lift"], [[-1, 1], [-2, 0]], ["deg", "range_m100_100"], source="test")


def episode(**changes):
    values = {"time": np.arange(4) / 30, "action": np.zeros((4, 2)), "state": np.zeros((4, 2))}
    return Episode(index=3, units=UNITS, origin="log.csv", **{**values, **changes})


def test_an_episode_names_the_frame_and_joint_of_a_nan():
    state = np.zeros((4, 2))
    state[2, 1] = np.nan
    with pytest.raises(LogError, match=r"Episode 3 of log.csv: state of lift is nan at frame 2 \(1 such values\)"):
        episode(state=state)


def test_an_episode_names_the_frame_where_time_stands_still():
    with pytest.raises(LogError, match=r"time does not increase at frame 2 \(1\.000000 s, then 1\.000000 s\)"):
        episode(time=[0.0, 1.0, 1.0, 2.0])


def test_an_empty_episode_and_a_wrong_shape_are_refused():
    with pytest.raises(LogError, match="is empty"):
        episode(time=[], action=np.zeros((0, 2)), state=np.zeros((0, 2)))
    with pytest.raises(LogError, match=r"action has shape \(4, 3\), expected \(4, 2\)"):
        episode(action=np.zeros((4, 3)))


def test_arrays_of_a_record_are_copies_and_read_only():
    state = np.zeros((4, 2))
    record = episode(state=state)
    state[:] = 1
    assert (record.state == 0).all()
    with pytest.raises(ValueError, match="read-only"):
        record.state[0, 0] = 1


def test_a_table_gives_the_values_of_the_step_in_force():
    table = ParamTable(names=("a", "b"), values=np.array([[1.0, 2.0], [3.0, 4.0]]))
    table = table.with_steps({"b": np.array([[5.0, 6.0], [7.0, 8.0]])})
    np.testing.assert_array_equal(table.at(1)["b"], [6, 8])
    np.testing.assert_array_equal(table.take([1]).at(0).values, [[3, 7]])
    np.testing.assert_array_equal(table.tile(2).at(0)["b"], [5, 7, 5, 7])
    with pytest.raises(UnknownNameError, match="Unknown parameter 'aa'. Nearest existing: a"):
        table["aa"]


def test_records_survive_a_file(tmp_path):
    distribution = ParamDistribution(
        names=("a",),
        transforms=("log",),
        mean=np.array([np.log(2.0)]),
        covariance=np.array([[0.1]]),
        low=np.array([0.0]),
        high=np.array([9.0]),
        determined=(True,),
        clusters=4,
    )
    write_json(tmp_path / "d.json", distribution.to_json())
    again = ParamDistribution.from_json(read_json(tmp_path / "d.json"))
    assert again.estimate["a"] == pytest.approx(2.0)
    assert again.to_json() == distribution.to_json()
    provenance = Provenance(
        source="sim",
        twin="t",
        twin_hash="h",
        config_hash="c",
        params={"a": 1.0},
        seed_path=(1, 2, 3),
        versions={"mujoco": "4"},
        actor="expert",
        task="pick",
        units=UNITS.to_json(),
    )
    assert Provenance.from_json(provenance.to_json()) == provenance


def test_a_distribution_names_what_is_missing():
    with pytest.raises(InputError, match=r"lacks names, transforms, mean, covariance, low, high, determined, clusters"):
        ParamDistribution.from_json({})
    with pytest.raises(InputError, match=r"lacks clusters. Give the result that `identify` wrote, unchanged"):
        keys = ("names", "transforms", "mean", "covariance", "low", "high", "determined")
        ParamDistribution.from_json(dict.fromkeys(keys, ()))


def test_degrees_are_zero_in_the_middle_of_the_range_and_normalized_spans_it():
    np.testing.assert_allclose(UNITS.from_si([[1.0, 0.0]]), [[np.degrees(1.0), 100.0]])
    np.testing.assert_allclose(UNITS.to_si(UNITS.from_si([[0.3, -1.7]])), [[0.3, -1.7]])
    assert UnitMap.from_json(UNITS.to_json()) == UNITS


def test_a_normalized_column_without_calibration_has_no_radians():
    unknown = UnitMap(joints=(JointUnit(joint="pan", unit="range_m100_100", scale=None, offset=None),), source="log")
    with pytest.raises(UnitsError, match=r"conversion to radians of pan \(range_m100_100\) is unknown"):
        unknown.to_si([1.0])


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("object_mass_g", ("object_mass", "kg", 1e-3)),
        ("jitter_deg", ("jitter", "rad", np.pi / 180)),
        ("mass", ("mass", "1", 1.0)),
    ],
)
def test_units_in_key_names(key, expected):
    assert split_unit(key) == expected


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="crash"), atomic_open(path) as file:
        file.write(b"new")
        raise RuntimeError("crash")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
