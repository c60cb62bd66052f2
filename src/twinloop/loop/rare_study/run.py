"""``twinloop bench rare``: the study, printed and written into its page."""

from __future__ import annotations

from twinloop.loop.studies import Studies

STUDIES = Studies(package="twinloop.loop.rare_study", areas=("coverage",), place="twinloop bench rare")
run_bench_rare = STUDIES.run
