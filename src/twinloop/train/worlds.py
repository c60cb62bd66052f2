"""Describe the simulated worlds of a training that stores no episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from twinloop.core.params import ParamTable
from twinloop.twin import Twin


def describe_worlds(twin: Twin, tables: Sequence[ParamTable]) -> dict[str, Any]:
    """Return facts about the worlds in which a policy was trained, for its result and for the workspace.

    Args:
        twin: twin of the worlds.
        tables: parameters of all worlds, with the same parameters in each table.

    Returns:
        Number of the worlds ``episodes``, ``twin_hash``, and ``ranges``: the smallest and the largest value of each
        parameter, in SI units.
    """
    values = np.concatenate([table.values for table in tables])
    ends = np.stack([values.min(axis=0), values.max(axis=0)], axis=1).tolist()
    return {"episodes": len(values), "twin_hash": twin.hash, "ranges": dict(zip(tables[0].names, ends, strict=True))}
