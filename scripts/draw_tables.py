"""Draw published tables at random for repetition, with the HEAD commit's hash as seed, so that the choice is unbiased.

``python scripts/draw_tables.py [COUNT]`` prints each table with its page and the text that names its command.
"""

import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "project")]

from test_docs_tables import pages, tables  # noqa: E402  # pyright: ignore[reportMissingImports]

if __name__ == "__main__":
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()  # noqa: S607
    every = [(page, *found) for page in pages() for found in tables(page, (ROOT / page).read_text())]
    write = sys.stdout.write
    write(f"{len(every)} tables, seed {head}\n")
    for page, table, near in random.Random(head).sample(every, int((sys.argv[1:] or ["3"])[0])):  # noqa: S311
        write(f"\n== {page}\n{table}\n-- text around it:\n{near}\n")
