"""Statistics of an edited dataset are those of its frames put one after the other, quantiles included."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from support.dataset_writer import SPEC_VIDEO, write_all
from support.edit_statistics import EXACT, check_exact
from support.edits import KEY, foreign, stats_of, whole
from twinloop.dataset.edit.operations import merge, retask, select, split
from twinloop.dataset.edit.selection import balance_episodes, largest_remainder, split_episodes
from twinloop.dataset.edit.writing import EditSettings, write_selection
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.statistics import QUANTILES, sorted_quantiles, stream_quantiles

SAME_UNITS = EditSettings(same_units=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return foreign(tmp_path_factory.mktemp("stats") / "one", [9, 7, 12, 3, 8, 21])


def test_statistics_are_those_of_all_frames_of_any_kind_of_number(folder, tmp_path):
    """float32, float64, negative whole numbers, two axes, and the renumbered indices."""
    write_selection([(folder, i) for i in (4, 0, 5)], tmp_path / "out")
    check_exact(tmp_path / "out")
    assert np.shape(stats_of(tmp_path / "out")["observation.grid"]["mean"]) == (2, 3)


def test_rows_of_episodes_have_their_own_statistics(folder, tmp_path):
    write_selection([(folder, 5), (folder, 1)], tmp_path / "out")
    reader = DatasetReader(tmp_path / "out")
    from twinloop.dataset.edit.source import EditSource

    rows = EditSource(tmp_path / "out").rows([1]).to_pylist()[0]
    np.testing.assert_allclose(rows["stats/action/q50"], np.median(reader.array(1, "action"), axis=0), **EXACT)
    assert rows["stats/index/min"] == [21.0]
    assert rows["stats/episode_index/max"] == [1.0]


@settings(max_examples=2)
@given(cut=st.permutations(range(6)), at=st.integers(1, 5))
def test_splitting_and_merging_gives_the_same_back(folder, cut, at):
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        split(folder, root / "parts", lists={"a": cut[:at], "b": cut[at:]})
        merge([root / "parts" / "a", root / "parts" / "b"], root / "merged")
        select(folder, root / "direct", list(cut))
        one, other = whole(root / "merged"), whole(root / "direct")
        for key in one:
            if key != "task_index":
                np.testing.assert_array_equal(one[key], other[key], err_msg=key)
        texts = [[DatasetReader(root / n).row(i)["tasks"] for i in range(6)] for n in ("merged", "direct")]
        assert texts[0] == texts[1]
        a, b = stats_of(root / "merged"), stats_of(root / "direct")
        for key in a:
            for name in a[key]:
                np.testing.assert_allclose(a[key][name], b[key][name], **EXACT, err_msg=f"{key} {name}")
        check_exact(root / "merged")


def test_merging_is_associative(folder, tmp_path):
    parts = split(folder, tmp_path / "parts", lists={"a": "0:2", "b": "2", "c": "3:"})
    a, b, c = (part.output for part in parts.values())
    merge([merge([a, b], tmp_path / "ab").output, c], tmp_path / "left")
    merge([a, merge([b, c], tmp_path / "bc").output], tmp_path / "right")
    for name in ("left", "right"):
        one, other = whole(tmp_path / name), whole(folder)
        for key in one:
            np.testing.assert_array_equal(one[key], other[key], err_msg=key)
    left, right = stats_of(tmp_path / "left"), stats_of(tmp_path / "right")
    for key in left:
        for name in left[key]:
            np.testing.assert_allclose(left[key][name], right[key][name], **EXACT)


@pytest.mark.slow
def test_ids_and_statistics_of_ours_come_back_after_a_split(tmp_path):
    ours = write_all(tmp_path / "ours", SPEC_VIDEO)
    parts = split(ours, tmp_path / "parts", lists={"a": "0:5", "b": "5:"})
    merge([part.output for part in parts.values()], tmp_path / "merged")
    assert DatasetReader(tmp_path / "merged").episode_ids == DatasetReader(ours).episode_ids
    before, after = stats_of(ours), stats_of(tmp_path / "merged")
    assert before.keys() == after.keys()
    for key, row in before.items():
        for name, value in row.items():
            # Pixels of image parts are counted after coding, so that quantiles may differ by the coding loss.
            near = {"atol": 0.02} if key.startswith("observation.images") and name in QUANTILES else EXACT
            np.testing.assert_allclose(after[key][name], value, **near, err_msg=f"{key} {name}")


@pytest.mark.slow
def test_image_statistics_of_whole_datasets_are_their_pixels_together(tmp_path):
    ours = write_all(tmp_path / "ours", SPEC_VIDEO)
    retask(ours, tmp_path / "again", task="lift")
    merge([ours, tmp_path / "again"], tmp_path / "twice")
    for key in (camera.key for camera in SPEC_VIDEO.cameras):
        for name, value in stats_of(ours)[key].items():
            wanted = np.multiply(value, 2) if name == "count" else value
            np.testing.assert_allclose(stats_of(tmp_path / "twice")[key][name], wanted, **EXACT, err_msg=name)


def test_image_statistics_of_another_program_are_pooled_and_counted(tmp_path):
    one, two = (
        foreign(tmp_path / "a", [20, 9], codec="libx264"),
        foreign(tmp_path / "b", [14], first=2, codec="libx264"),
    )
    merge([one, two], tmp_path / "out")
    joint = foreign(tmp_path / "joint", [20, 9, 14], codec="libx264")
    merge([joint], tmp_path / "same")
    found, wanted = stats_of(tmp_path / "out")[KEY], stats_of(tmp_path / "same")[KEY]
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], atol=0.03 if name in QUANTILES else 1e-6)
    ordered = [np.ravel(found[name]) for name in ("min", *QUANTILES, "max")]
    assert (np.diff(ordered, axis=0) >= 0).all()


@settings(max_examples=25)
@given(
    values=st.one_of(
        arrays(np.float64, st.tuples(st.integers(1, 40), st.just(2)), elements=st.floats(-1e300, 1e300)),
        arrays(np.int64, st.tuples(st.integers(1, 40), st.just(1)), elements=st.integers(-(2**52), 2**52)),
    ),
    cut=st.integers(1, 39),
)
def test_quantiles_of_64_bit_numbers_are_those_of_sorted_values(values, cut):
    chunks = [{"x": values[:cut]}, {"x": values[cut:]}]
    found = stream_quantiles(lambda: iter(chunks), len(values), wide=["x"])["x"]
    with np.errstate(over="ignore"):
        expected = sorted_quantiles(np.sort(values.astype(np.float64), axis=0))
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_quantiles_of_many_columns_are_found_in_smaller_steps():
    """More columns than have room for 16 bits at a time."""
    values = np.random.default_rng(0).normal(size=(500, 60)).astype(np.float32)
    found = stream_quantiles(lambda: iter([{"x": values[:200]}, {"x": values[200:]}]), 500)["x"]
    expected = sorted_quantiles(np.sort(values.astype(np.float64), axis=0))
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@settings(max_examples=40)
@given(count=st.integers(0, 300), weights=st.lists(st.floats(0.01, 1), min_size=1, max_size=6))
def test_largest_remainders_sum_to_the_whole_and_are_off_by_less_than_one(count, weights):
    shares = [weight / sum(weights) for weight in weights]
    found = largest_remainder(count, shares)
    assert sum(found) == count
    assert all(abs(n - count * share) < 1 for n, share in zip(found, shares, strict=True))


@settings(max_examples=40)
@given(
    groups=st.lists(st.sampled_from("abcd"), min_size=1, max_size=80),
    weights=st.lists(st.floats(0.05, 1), min_size=1, max_size=4),
    seed=st.integers(0, 9),
)
def test_parts_are_disjoint_exact_altogether_and_alike_in_every_group(groups, weights, seed):
    shares = {str(i): weight / sum(weights) for i, weight in enumerate(weights)}
    parts = split_episodes(groups, shares, seed=seed)
    assert sorted(row for rows in parts.values() for row in rows) == list(range(len(groups)))
    assert [len(rows) for rows in parts.values()] == largest_remainder(len(groups), list(shares.values()))
    for group in set(groups):
        for name, rows in parts.items():
            there = sum(groups[row] == group for row in rows)
            assert abs(there - groups.count(group) * shares[name]) < 3
    assert split_episodes(groups, shares, seed=seed) == parts


@settings(max_examples=40)
@given(groups=st.lists(st.sampled_from("abc"), min_size=1, max_size=60), seed=st.integers(0, 9), repeat=st.booleans())
def test_balanced_groups_are_equal_and_only_repeat_when_asked(groups, seed, repeat):
    times = balance_episodes(groups, None, seed=seed, repeat=repeat)
    counts = [sum(often for often, one in zip(times, groups, strict=True) if one == group) for group in set(groups)]
    assert max(counts) - min(counts) <= 1
    fullest, scarcest = (f(groups.count(group) for group in set(groups)) for f in (max, min))
    assert max(counts) == fullest if repeat else max(counts) == scarcest
    assert max(times) <= 1 or repeat


MANY = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa
from twinloop.dataset.edit.rows import DataFile, read_chunks, to_feature_arrays
from twinloop.dataset.edit.statistics import FrameTotals
root, frames, width = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng, length = np.random.default_rng(0), 20_000
totals, paths, schema, file = FrameTotals(widths={"x": width}), [], None, None
for episode in range(frames // length):
    values = np.cumsum(rng.normal(size=(length, width)), axis=0).astype(np.float32)
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), width)})
    if file is None or file.bytes > 100_000_000:
        if file is not None: file.close()
        paths.append(root / f"{episode}.parquet"); file = DataFile(paths[-1], table.schema)
    file.add(table); totals.add(to_feature_arrays(table, totals.widths, where="test"))
file.close()
stats = totals.stats(paths, {"x": {"dtype": "float32", "shape": [width]}})
used = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024  # ru_maxrss: the parent
first = np.concatenate([c["x"][:, 0].copy() for c in read_chunks(paths, totals.widths)])
np.testing.assert_allclose(stats["x"]["q99"][0], np.quantile(first.astype(float), 0.99), rtol=1e-6)
np.testing.assert_allclose(stats["x"]["std"][0], first.astype(float).std(), rtol=1e-6)
print(stats["x"]["count"][0], used)
"""


@pytest.mark.slow
def test_ten_million_frames_stream_within_a_gigabyte(tmp_path):
    """24 numbers a frame, 960 MB in total; the measured memory includes Python and its libraries."""
    command = [sys.executable, "-c", MANY, str(tmp_path), "10000000", "24"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    count, megabytes = done.stdout.split()
    assert int(count) == 10_000_000
    assert float(megabytes) < 1000
