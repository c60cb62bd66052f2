"""What tests of several files share: edit statistics."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from support.edits import stats_of, whole
from twinloop.dataset.lerobot.statistics import QUANTILES

EXACT = {"rtol": 1e-6, "atol": 1e-6}


def check_exact(root: Path) -> None:
    """Every figure of ``stats.json`` against numpy over all frames."""
    stats = stats_of(root)
    for key, values in whole(root).items():
        wanted = {
            "min": values.min(axis=0),
            "max": values.max(axis=0),
            "mean": values.mean(axis=0),
            "std": values.std(axis=0),
            **{name: np.quantile(values, q, axis=0) for name, q in QUANTILES.items()},
        }
        assert stats[key]["count"] == [len(values)]
        for name, value in wanted.items():
            np.testing.assert_allclose(np.ravel(stats[key][name]), value, **EXACT, err_msg=f"{key} {name}")
