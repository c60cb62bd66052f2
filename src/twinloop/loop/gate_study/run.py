"""``twinloop bench gate``: the studies, printed and written into their page."""

from __future__ import annotations

from twinloop.loop.studies import Studies

PLACE = "twinloop bench gate"
# Modules of this package, each with ``TABLES``; those that take long first.
AREAS: tuple[str, ...] = ("errors", "canary", "power")

STUDIES = Studies(package="twinloop.loop.gate_study", areas=AREAS, place=PLACE)
run_bench_gate = STUDIES.run
