"""The environment of LeRobot 0.6.1 on Python 3.12 with our plugins: found, or made once per machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VARIABLE = "TWINLOOP_LEROBOT06"
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}


@cache
def environment() -> Path:
    """The folder of the environment; skips where Python 3.12 or the packages are missing on this machine."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "twinloop" / "lerobot-0.6.1"
    folder = Path(os.environ.get(VARIABLE) or default)
    python = folder / "bin" / "python"
    if not python.is_file():
        python = _python312()
        if python is None:
            pytest.skip("Python 3.12, which LeRobot 0.6 needs, is not on this machine")
    words = ["sh", str(ROOT / "scripts" / "lerobot06_env.sh"), str(folder)]
    made = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | {"PYTHON": str(python)})
    if made.returncode:
        pytest.skip(f"LeRobot 0.6.1 cannot be installed here: {made.stderr.strip().splitlines()[-1]}")
    return folder


def _python312() -> Path | None:
    found = shutil.which("python3.12")
    pyenv = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.12.*/bin/python"))
    return Path(found) if found and _runs(found) else (pyenv[-1] if pyenv else None)


def _runs(python: str) -> bool:
    """Whether the interpreter starts; pyenv has a program of this name also where no version is chosen."""
    return subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0


def run(*words: object, home: Path, timeout: float = 300) -> str:
    """Run a program in the environment and the folder ``home``; its output."""
    program, *rest = map(str, words)
    bin_ = environment() / "bin"
    variables = os.environ | _OFFLINE | {"HF_LEROBOT_HOME": str(home / "lerobot"), "HF_HOME": str(home / "hf")}
    variables.pop("PYTHONPATH", None)
    variables["PATH"] = f"{bin_}:{variables['PATH']}"
    done = subprocess.run(
        [str(bin_ / program) if (bin_ / program).exists() else program, *rest],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env=variables,
        cwd=home,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{program} {' '.join(rest)}\n{done.stderr[-4000:]}"
    return done.stdout
