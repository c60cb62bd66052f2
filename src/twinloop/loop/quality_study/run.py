"""``twinloop bench quality``: the studies of all families, printed and written into their pages."""

from __future__ import annotations

from twinloop.loop.studies import Studies

PLACE = "twinloop bench quality"
# Modules of this package, each with ``TABLES``; those that take long first.
AREAS: tuple[str, ...] = ("recording", "physics", "learned", "demonstration")

STUDIES = Studies(package="twinloop.loop.quality_study", areas=AREAS, place=PLACE)
studies = STUDIES.chosen
run_bench_quality = STUDIES.run
