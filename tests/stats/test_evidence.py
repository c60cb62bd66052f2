"""`twinloop evidence`: what a claim needs, and that simulation adds nothing without an assumption."""

from __future__ import annotations

import json

import pytest

from twinloop.cli.main import main
from twinloop.core.files import write_json
from twinloop.stats.proportion import trials_to_claim


def evidence(capsys, *words):
    code = main(["evidence", *words, "--json"])
    out = capsys.readouterr()
    return code, json.loads(out.out.splitlines()[-1]), out.err


def search(folder, *, high=2e-4, warning="", level=0.95):
    rate = {"rate": 1e-4, "low": 5e-5, "high": high, "level": level, "draws": 1024, "warning": warning}
    write_json(folder / "result.json", {"kind": "search", "rate": rate})
    return str(folder)


def test_one_in_a_thousand_needs_three_thousand_trials(capsys):
    code, metrics, said = evidence(capsys, "--failure-rate", "1e-3", "--confidence", "0.95")
    assert code == 0
    rows = metrics["demonstrations"]
    assert [row["trials"] for row in rows] == [trials_to_claim(1e-3, failures=k) for k in range(4)]
    assert rows[0]["trials"] == 2995
    assert all(row["watched_trials"] > row["trials"] for row in rows)
    assert rows[0]["chance_to_pass"]["rate/10"] == pytest.approx((1 - 1e-4) ** 2995)
    assert "Without an assumption on the sim-to-real gap: nothing" in said


def test_a_claim_is_kept_and_can_fail_a_build(capsys, tmp_path):
    words = ("--failure-rate", "0.05", "--seen-trials", "50", "--output", str(tmp_path / "claim"))
    code, metrics, said = evidence(capsys, *words, "--fail-if", "more_without_failure > 0")
    assert code == 1
    assert "FAILED more_without_failure > 0: more_without_failure is 9 trials" in said
    stored = json.loads((tmp_path / "claim" / "result.json").read_text())
    assert (stored["verb"], stored["kind"], stored["seen"]["trials"]) == ("evidence", "claim", 50)
    assert [row["name"] for row in stored["headline"]][:2] == ["trials", "watched_trials"]
    page = (tmp_path / "claim" / "report.html").read_text()
    assert "needed for the claim" in page
    assert "Without an assumption on the sim-to-real gap: nothing." in page
    code, metrics, _ = evidence(capsys, *words)
    assert (code, "holds an earlier run. Choose another --output" in metrics["message"]) == (2, True)
    code, metrics, _ = evidence(capsys, "--failure-rate", "0.05", "--fail-if", "trails > 3")
    assert (code, "Nearest existing: trials" in metrics["message"]) == (2, True)


def test_what_was_seen_counts(capsys):
    _, metrics, _ = evidence(
        capsys, "--failure-rate", "0.05", "--seen-trials", "50", "--seen-failures", "1", "--failures", "1"
    )
    assert metrics["seen"]["more_without_failure"] == trials_to_claim(0.05, failures=1) - 50
    assert metrics["seen"]["rate_shown"] > 0.05


def test_each_assumption_buys_what_it_says(capsys, tmp_path):
    _, metrics, said = evidence(
        capsys,
        *("--failure-rate", "1e-3", "--gap", "5e-4", "--sim", search(tmp_path), "--correlation", "0.9"),
        *("--region", "0.05"),
    )
    found = metrics["simulation"]
    assert found["gap"]["simulated_trials"] == trials_to_claim(5e-4)
    assert found["gap"]["bound"] == pytest.approx(7e-4)
    assert "which supports the claim" in said
    assert found["paired"]["trials_at_best"] == round(2995 * 0.19)
    assert found["region"]["real_trials"] == trials_to_claim(0.02)
    _, metrics, said = evidence(capsys, "--failure-rate", "1e-3", "--gap", "2e-3")
    assert metrics["simulation"]["gap"]["simulated_trials"] is None
    assert "nothing: the assumed gap of 0.002 alone is not below the claimed rate of 0.001" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--failure-rate", "0"), "The failure rate 0 is not between 0 and 1"),
        (("--failure-rate", "0.1", "--gap", "2"), "--gap 2 is not a probability"),
        (("--failure-rate", "0.1", "--seen-failures", "3"), "--seen-failures 3 needs --seen-trials"),
        (("--failure-rate", "0.1", "--region", "0"), "--region 0 is not valid"),
        (("--failure-rate", "0.1", "--sim", "nowhere"), "nowhere has no result of `twinloop scenario search`"),
        (
            ("--failure-rate", "0.1", "--seen-trials", "3", "--seen-failures", "4"),
            "4 failures of 3 trials is not a result",
        ),
    ],
)
def test_wrong_words_are_told(capsys, words, said):
    code, metrics, _ = evidence(capsys, *words)
    assert code == 2
    assert said in metrics["message"]


def test_a_search_that_warns_or_is_too_wide_carries_nothing(capsys, tmp_path):
    code, metrics, _ = evidence(
        capsys, "--failure-rate", "0.1", "--sim", search(tmp_path, warning="One draw carries 90% of the estimate")
    )
    assert (code, "cannot support a claim: One draw" in metrics["message"]) == (2, True)
    code, metrics, _ = evidence(
        capsys, "--failure-rate", "0.1", "--confidence", "0.99", "--sim", search(tmp_path / "b")
    )
    assert (code, "Search again with --level 0.98" in metrics["message"]) == (2, True)
