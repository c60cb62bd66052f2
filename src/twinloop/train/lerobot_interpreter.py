"""The interpreter that has LeRobot: this one, or that of an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from twinloop.core.errors import MissingDependencyError

VARIABLE = "TWINLOOP_LEROBOT_PYTHON"
# -P: the folder of the file, where `lerobot.py` lies, is no place to import from.
SIDE = ("-P", str(Path(__file__).with_name("lerobot_side.py")))
_REMEDY = f"pip install lerobot, or sh scripts/lerobot_env.sh DIR and then export {VARIABLE}=DIR/bin/python"
_ASK = "import importlib.metadata as m; print(m.version('lerobot'))"
_PATIENCE_S = 120.0


def require_lerobot(python: Path | None = None) -> tuple[str, str]:
    """The interpreter that has LeRobot, and LeRobot's version.

    Args:
        python: the one to take; by default that which the variable ``TWINLOOP_LEROBOT_PYTHON`` names, else this one.

    Raises:
        MissingDependencyError: it has none; says both ways to get it.
    """
    named = python or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is None and find_spec("lerobot") is None:
        raise MissingDependencyError("LeRobot's policies need LeRobot, which is not installed here.", remedy=_REMEDY)
    interpreter = sys.executable if named is None else str(named)
    try:
        done = subprocess.run(  # noqa: S603 - an interpreter that the user names
            [interpreter, "-c", _ASK], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        said = getattr(error, "strerror", None) or "it does not answer"
        raise MissingDependencyError(f"{interpreter} does not start ({said}).", remedy=_REMEDY) from error
    if done.returncode != 0:
        raise MissingDependencyError(f"{interpreter} has no LeRobot.", remedy=_REMEDY)
    return interpreter, done.stdout.strip()
