"""Ranges of a run that come from an identify run: read into its configuration, so that it stands alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.randomize import OPTIONS, identified_notes, read_identified
from twinloop.twin import Twin


def drawn_from(section: Any, run: Path, *, where: str) -> dict[str, Any]:
    """A ``randomization:`` section that draws from an identify run instead of what it said.

    Raises:
        InputError: it gives ranges by hand, which the run would replace without a word.
    """
    kept = {key: item for key, item in section.items() if key != "default"} if isinstance(section, dict) else {}
    by_hand = sorted(set(kept) - set(OPTIONS))
    if by_hand:
        raise InputError(
            f"{where}: --randomize-from {run} draws what was identified, and prior ranges for the rest, in place of "
            f"randomization.{', randomization.'.join(by_hand)}. Remove these, or leave the option out."
        )
    return {**kept, "identified": str(run.resolve())}


def identified_section(section: Any, where: str, folder: Path) -> tuple[dict[str, Any] | None, float]:
    """The distribution that ``randomization: {identified: RUN}`` names, and the factor on its covariance.

    Without a ``kappa`` in the section that is the one that the run calibrated.

    Raises:
        InputError: ranges by hand beside it, no run, or a kappa that is no number from 0.
    """
    if not isinstance(section, dict) or "identified" not in section:
        return None, 1.0
    extra = set(section) - (set(OPTIONS) - {"default"})
    if extra:
        raise InputError(
            f"{where}: randomization.identified draws what it determined, and default ranges for the rest; remove "
            f"{', '.join(sorted(extra))}."
        )
    run = section["identified"]
    if not isinstance(run, str) or not run:
        raise InputError(
            f"{where}: randomization.identified is the folder that `twinloop identify --output` wrote; given {run!r}."
        )
    result = read_identified(folder / run)
    said = "kappa" in section
    kappa = section["kappa"] if said else ParamDistribution.from_json(result["distribution"]).kappa
    if isinstance(kappa, bool) or not isinstance(kappa, int | float) or not 0 <= kappa < math.inf:
        raise InputError(
            f"{where}: randomization.kappa is a number from 0, a factor on the covariance; given {kappa!r}."
        )
    return result["distribution"], float(kappa)


def identified_ranges(identified: Mapping[str, Any] | None, kappa: float, twin: Twin) -> list[str]:
    """What a reader must know of ranges that come from an identify run; nothing where none do."""
    if identified is None:
        return []
    return identified_notes(twin, ParamDistribution.from_json(identified), kappa=kappa)
