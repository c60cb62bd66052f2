"""The studies of error rates that are made by simulation, by command."""

from __future__ import annotations

from benchmarks.studies import Studies

# Areas are modules of the package, each with ``TABLES``; those that take long first, so that no process is left with
# one alone.
GAP = Studies(
    package="benchmarks.error_rates.gap",
    areas=(
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
    ),
    place="benchmarks gap",
)
GATE = Studies(package="benchmarks.error_rates.gate", areas=("errors", "canary", "power"), place="benchmarks gate")
QUALITY = Studies(
    package="benchmarks.error_rates.quality",
    areas=("recording", "physics", "learned", "demonstration"),
    place="benchmarks quality",
)
RARE = Studies(package="benchmarks.error_rates.rare", areas=("coverage",), place="benchmarks rare")
