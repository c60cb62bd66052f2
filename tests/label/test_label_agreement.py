"""Agreement of those who label: planted disagreement is counted, ranked and located; boundaries by closed forms."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.label.agreement import measure_agreement, measure_boundary_agreement
from twinloop.workflows.data.labels import _print_agreement

WHO = ("source", "author")


def rows_of(answers, kind="success"):
    """Rows of the view `labels` from ``{observer: [value, …]}``; None for an observer without a label."""
    return [
        {
            "episode_id": f"e{i:03d}",
            "kind": kind,
            "value": value,
            "source": who.split(":")[0],
            "author": who.split(":")[1],
        }
        for who, values in answers.items()
        for i, value in enumerate(values)
        if value is not None
    ]


def _flipped(count):
    """``yes`` and ``no`` in turn, with the first ``count`` answers exchanged."""
    truth = ["yes", "no"] * 20
    return [("no" if value == "yes" else "yes") if i < count else value for i, value in enumerate(truth)]


def test_planted_disagreement_is_counted_and_ranked():
    truth = ["yes", "no"] * 20
    bob = [("no" if value == "yes" else "yes") if i in (3, 8, 9) else value for i, value in enumerate(truth)]
    rule = ["no" if i == 8 else value for i, value in enumerate(truth)]
    found = measure_agreement(rows_of({"hand:ada": truth, "hand:bob": bob, "rule:r": rule}), "success")
    assert found.observers == ("hand:ada", "hand:bob", "rule:r")
    assert found.episodes == 40
    first = found.pairs[0]
    assert (first.first, first.second, first.episodes) == ("hand:ada", "hand:bob", 40)
    assert float(first.raw.estimate) == pytest.approx(37 / 40)
    assert first.kappa is not None
    assert float(first.kappa.estimate) == pytest.approx(1 - (3 / 40) / 0.5, abs=0.01)
    assert dict(first.confusion) == {("yes", "yes"): 19, ("no", "no"): 18, ("yes", "no"): 1, ("no", "yes"): 2}
    assert [row["episode_id"] for row in found.disagreements] == ["e003", "e008", "e009"]
    assert found.disagreements[1]["labels"] == {"hand:ada": "yes", "hand:bob": "no", "rule:r": "no"}
    assert float(found.alpha.low) < float(found.alpha.estimate) < float(found.alpha.high) <= 1


@pytest.mark.parametrize(("count", "more"), [(10, None), (13, 3), (25, 15)])
def test_disagreements_that_are_not_listed_are_counted(count, more):
    found = measure_agreement(rows_of({"hand:a": ["yes", "no"] * 20, "hand:b": _flipped(count)}), "success")
    console = Console(width=200, record=True, file=io.StringIO())
    _print_agreement(found, console)
    lines = console.export_text().splitlines()
    assert sum(line.startswith("  e0") for line in lines) == 10
    listed = [line for line in lines if "more episodes" in line]
    assert listed == ([] if more is None else [f"  … {more} more episodes with different labels"])


def test_who_cannot_tell_says_nothing():
    said = {"hand:a": ["yes", "no", "unknown", "yes"], "rule:b": ["yes", "no", "no", None], "model:c": ["unknown"] * 4}
    found = measure_agreement(rows_of(said), "success")
    assert found.observers == ("hand:a", "rule:b")
    assert found.episodes == 2
    assert found.disagreements == ()


def test_numbers_agree_by_distance():
    rng = np.random.default_rng(2)
    truth = rng.normal(size=60)
    said = {"hand:a": [str(x) for x in truth], "hand:b": [str(x + 0.5) for x in truth]}
    found = measure_agreement(rows_of(said, "number/quality"), "number/quality")
    assert found.pairs[0].kappa is None
    assert found.pairs[0].median_difference == pytest.approx(0.5)
    # Two observers differ by a constant: mean squared disagreement 0.25, expected 2 var + 0.25 / 2, of 120 values.
    every = np.concatenate([truth, truth + 0.5])
    assert float(found.alpha.estimate) == pytest.approx(1 - 0.25 / (2 * every.var(ddof=1)), abs=1e-9)
    assert found.disagreements[0]["disagreement"] == pytest.approx(0.5)


def test_too_few_who_speak_are_named():
    with pytest.raises(InputError, match="only hand:a has labels of success"):
        measure_agreement(rows_of({"hand:a": ["yes", "no"]}), "success")
    with pytest.raises(InputError, match="no observer has labels of failure"):
        measure_agreement([], "failure")
    with pytest.raises(InputError, match=r"1 episode\(s\) have a success of two observers \(hand:a, hand:b\)"):
        measure_agreement(rows_of({"hand:a": ["yes", "no"], "hand:b": ["yes"]}), "success")
    with pytest.raises(UnknownNameError, match="Unknown kind 'tag'"):
        measure_agreement([], "tag")


def segments(who, episode, *starts, end=100):
    said = {"episode_id": episode} | dict(zip(WHO, who.split(":"), strict=True))
    ends = [*(start for _, start in starts[1:]), end]
    return [
        said | {"value": word, "first_frame": start, "last_frame": stop - 1}
        for (word, start), stop in zip(starts, ends, strict=True)
    ]


def test_boundaries_match_within_the_tolerance():
    rows = []
    for episode in ("a", "b", "c"):
        rows += segments("hand:x", episode, ("reach", 0), ("grasp", 40), ("lift", 60))
        rows += segments("rule:y", episode, ("reach", 0), ("grasp", 44), ("lift", 80))
    rows += segments("rule:y", "d", ("reach", 0))
    fps = dict.fromkeys("abcd", 20.0)
    ((pair,), worst) = measure_boundary_agreement(rows, fps, tolerance_s=0.2)
    assert pair.episodes == 3
    assert float(pair.f1.estimate) == pytest.approx(0.5)  # of two beginnings each, one pair is within 4 frames
    assert pair.offset_s == pytest.approx(0.2)
    assert float(pair.frame_agreement.estimate) == pytest.approx(1 - (4 + 20) / 100)
    assert [row["episode_id"] for row in worst] == ["a", "b", "c"]
    ((strict,), _) = measure_boundary_agreement(rows, fps, tolerance_s=0.19)
    assert float(strict.f1.estimate) == 0.0
    ((wide,), none) = measure_boundary_agreement(rows, fps, tolerance_s=1.0)
    assert float(wide.f1.estimate) == 1.0
    assert none == []
    assert wide.offset_s == pytest.approx(0.6)


def test_boundaries_need_two_who_divide():
    rows = segments("hand:x", "a", ("reach", 0)) + segments("rule:y", "b", ("reach", 0))
    with pytest.raises(InputError, match=r"0 episode\(s\) have a subtask of two observers"):
        measure_boundary_agreement(rows, {"a": 20.0, "b": 20.0})
