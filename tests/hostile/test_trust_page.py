"""The page names every attack of this folder, and no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from _attack_table import cell_of, cells_of

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "evidence" / "attacks.md"


def _collected(target: Path) -> list[dict[str, str]]:
    """Return every attack of this folder, the slow ones included."""
    words = [sys.executable, "-m", "pytest", str(HERE), "--collect-only", "-qm", "attack", "-p", "no:cacheprovider"]
    environment = {**os.environ, "TWINLOOP_LIST_ATTACKS": str(target)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, cwd=HERE.parent.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(target.read_text())


def test_the_table_of_the_page_is_that_of_the_suite(tmp_path: Path) -> None:
    """After a change: ``make attacks``."""
    lines = PAGE.read_text().partition("<!-- attacks: begin -->")[2].splitlines()
    rows = [cells for line in lines if len(cells := cells_of(line)) == 5 and cells[0] not in ("area", "---")]
    listed = _collected(tmp_path / "attacks.json")
    suite = {(cell_of(attack["attack"]), cell_of(attack["expected"])) for attack in listed}
    assert {(cells[1], cells[2]) for cells in rows} == suite
    assert not [cells for cells in rows if cells[3].startswith("**")], "an attack that succeeded, or was skipped"
