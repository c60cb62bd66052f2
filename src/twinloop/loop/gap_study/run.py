"""``twinloop bench gap``: the studies, printed and written into their pages."""

from __future__ import annotations

from twinloop.loop.studies import Studies

PLACE = "twinloop bench gap"
# Modules of this package, each with ``TABLES``; those that take long first, so that no process is left with one alone.
AREAS: tuple[str, ...] = (
    "unexplained",
    "distances",
    "vision",
    "sensors",
    "predictivity",
    "comparison",
    "dynamics",
    "estimate",
    "sequential",
    "attribution",
)

STUDIES = Studies(package="twinloop.loop.gap_study", areas=AREAS, place=PLACE)
studies = STUDIES.chosen
run_bench_gap = STUDIES.run
