"""The two public validators accept our datasets, and detect damage."""

from __future__ import annotations

import dataclasses
import json
import sys
import sysconfig
from pathlib import Path

import pytest

from support.dataset_logs import SO101, SO101_UNITS, planted_log, real
from support.dataset_writer import SPEC, SPEC_VIDEO, write_all
from twinloop.core.errors import DatasetError, MissingDependencyError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.validation import run_lerobot_doctor, run_robovet, validate
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.dataset.logs.formats import load_log

if not (Path(sysconfig.get_path("scripts")) / "robovet").exists():
    pytest.skip("the validators are not installed", allow_module_level=True)


@pytest.mark.parametrize("spec", [SPEC, SPEC_VIDEO], ids=["states", "video"])
def test_both_accept_a_generated_dataset(tmp_path, spec):
    doctor, vet = validate(write_all(tmp_path / "set", spec))
    assert doctor.accepted, doctor.failures
    assert vet.accepted, vet.failures
    assert (doctor.failed, vet.failed, vet.warned) == (0, 0, 0)
    assert doctor.passed + doctor.warned == 11
    assert vet.passed == (36 if spec.cameras else 29)
    assert str(vet) == f"robovet accepts it ({vet.passed} passed, 0 warned, 0 failed)"


def test_both_accept_an_imported_log(tmp_path):
    assert all(verdict.accepted for verdict in validate(write_log_dataset(planted_log(), tmp_path / "set")))


@pytest.mark.slow
def test_both_accept_the_real_so101_log(tmp_path):
    episodes = load_log(real("so101_pick_place_tape"), joints=SO101, units=SO101_UNITS)
    assert all(verdict.accepted for verdict in validate(write_log_dataset(episodes, tmp_path / "set")))


def test_both_see_a_planted_defect(tmp_path):
    path = write_all(tmp_path / "set")
    info = json.loads((path / layout.INFO).read_text())
    (path / layout.INFO).write_text(json.dumps({**info, "total_frames": info["total_frames"] + 1}))
    for verdict in validate(path):
        assert not verdict.accepted
        assert verdict.failed > 0
        assert any("total_frames" in text for text in verdict.failures)
        assert f"{verdict.validator} rejects it" in str(verdict)


def test_a_folder_that_is_no_dataset_has_no_verdict(tmp_path):
    with pytest.raises(
        DatasetError, match="lerobot-doctor ended with exit code 1 and no result. Its last output: Error"
    ):
        run_lerobot_doctor(tmp_path)
    with pytest.raises(DatasetError, match="robovet ended with exit code 2 and no result. Its last output: .*"):
        run_robovet(tmp_path)


def test_a_missing_validator_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(MissingDependencyError, match=r"lerobot-doctor is not installed. To add it: pip install 'twin"):
        validate(tmp_path)


def test_a_verdict_has_a_plain_form(tmp_path):
    verdict = run_robovet(write_all(tmp_path / "set"))
    assert dataclasses.asdict(verdict).keys() == verdict.to_json().keys()
    assert json.loads(json.dumps(verdict.to_json()))["accepted"] is True
