"""The same twin on a coarser physics step, for replays by the hundred."""

from __future__ import annotations

import copy
from dataclasses import replace

from twinloop.twin import Twin

_LEAST_SUBSTEPS = 2


def at_physics_rate(twin: Twin, physics_hz: float) -> Twin:
    """The twin on physics at about ``physics_hz``, or at its own rate if that is lower."""
    substeps = min(twin.substeps, max(_LEAST_SUBSTEPS, round(physics_hz / twin.control_hz)))
    model = copy.copy(twin.model)
    model.opt.timestep = 1.0 / (twin.control_hz * substeps)
    spec = twin.spec.model_copy(update={"substeps": substeps})
    return replace(twin, spec=spec, model=model)
