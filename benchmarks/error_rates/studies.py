"""List the error-rate studies that are run by simulation, grouped by command."""

from __future__ import annotations

from benchmarks.studies import Studies

# Areas are modules of the package, each with ``TABLES``; the slowest come first, so that all
# processes finish at about the same time.
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
