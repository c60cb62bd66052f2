"""An evaluation stores its trials unchanged, and refuses invalid trials."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from twinloop.core.errors import InputError
from twinloop.core.evaluation import Evaluation


def rows(**changes):
    table = {
        "slice": ["nominal", "nominal", "dark"],
        "trial": ["0", "1", "0"],
        "success": [True, True, False],
        "progress": [1.0, 1.0, None],
        "valid": [True, False, True],
    }
    return pa.table({name: value for name, value in (table | changes).items() if value is not None})


def test_written_and_read_it_is_the_same(tmp_path):
    made = Evaluation(policy="bc", suite="all", trials=rows(), policy_hash="ab", run_seed=3, extra={"note": 1})
    made.write(tmp_path)
    read = Evaluation.read(tmp_path)
    assert read.hash == made.hash
    assert read.trials.equals(made.trials)
    assert read.extra == {"note": 1}
    assert read.slices == ("nominal", "dark")


def test_a_trial_that_is_not_valid_is_no_success():
    made = Evaluation(policy="bc", suite="all", trials=rows())
    assert made.counts() == (1, 3)
    dark = replace(made, trials=made.trials.filter(pc.field("slice") == "dark"))
    assert dark.counts() == (0, 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"success": None}, "Rows of the evaluation of bc in all need a column success; these have slice"),
        ({"colour": [1, 2, 3]}, "Unknown column 'colour' in the evaluation of bc in all"),
        ({"success": ["yes", "no", "perhaps"]}, "success of the evaluation of bc in all must be bool and is string"),
        ({"success": [True, None, True]}, "1 of 3 rows of the evaluation of bc in all have no success"),
        ({"trial": ["0", "0", "0"]}, "trial 0 of slice nominal occurs twice"),
    ],
)
def test_what_is_no_table_of_trials_is_refused(changes, said):
    with pytest.raises(InputError, match=said):
        Evaluation(policy="bc", suite="all", trials=rows(**changes))


def test_no_trials_and_no_evaluation_are_told(tmp_path):
    with pytest.raises(InputError, match="has no trials"):
        Evaluation(policy="bc", suite="all", trials=rows().slice(0, 0))
    with pytest.raises(InputError, match="has no evaluation"):
        Evaluation.read(tmp_path)


def test_a_changed_file_is_found(tmp_path):
    Evaluation(policy="bc", suite="all", trials=rows()).write(tmp_path)
    Evaluation(policy="bc", suite="all", trials=rows(progress=[0.5, 1.0, None])).write(tmp_path / "other")
    (tmp_path / "trials.parquet").write_bytes((tmp_path / "other" / "trials.parquet").read_bytes())
    with pytest.raises(InputError, match="was changed after it was written"):
        Evaluation.read(tmp_path)
