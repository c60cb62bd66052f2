"""Make ``tests/artefacts/VERSION.tar.xz``: a small workspace with every kind of file that later versions must open.

``python scripts/make_artefacts.py`` needs the extra ``train``. An archive is made once for each released version and
never replaced: `tests/project/test_artefacts.py` opens all of them.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "swing.yaml": "scene: {twin: double_pendulum, task: swing.py:Swing}\nrandomization: default\n"
    "rollout: {parallel_envs: 4}\n",
    "heavy.yaml": "base: double_pendulum\nname: heavy\nparams:\n"
    "  - {name: joint/*/damping, range: [0.0, 0.2], source: our choice}\n",
    "picking.yaml": "scene: {robot: so101, task: pick_and_place}\nrollout: {parallel_envs: 1}\n"
    "randomization: {default: true, params: {object/cube/friction/slide: [0.05, 0.06]}}\n",
}
SMALL = "--steps 6 --batch 8 --set width=8 depth=1 chunk_size=4 n_action_steps=2"
COMMANDS = (
    "generate swing.yaml --output data/first --workers 1 --keep all",
    "generate picking.yaml --output data/picks --workers 1 --keep all",
    "render data/picks --size 32x24 --workers 1 --output data/images",
    "import log.csv --output data/imported --task swing",
    "edit select data/first --episodes 0-1 --output data/selected",
    "identify --twin double_pendulum --data log.csv --holdout last:1 --free joint/*/frictionloss --output runs/fit",
    "generate swing.yaml --randomize-from runs/fit --output data/identified --workers 1 --keep all",
    "curate --workers 1 --output runs/curated",
    "label add first:0 --success yes --author Ada",
    "datasets freeze two --sql SELECT~episode_id~FROM~episodes~WHERE~batch='first'",
    f"train --data data/first --output policies/small {SMALL}",
    "policies add policies/small --name small",
    "evaluate expert --twin double_pendulum --task swing.py:Swing --episodes 2 --output runs/tried",
    "scenario from-failure data/picks:0 --name slips --force --tries 2 --reason planted",
)


def main() -> None:
    """Run the commands in a new folder and pack their output."""
    target = ROOT / "tests" / "artefacts" / f"{version('twinloop')}.tar.xz"
    with tempfile.TemporaryDirectory() as folder:
        cell = Path(folder) / "cell"
        (Path(folder) / "without" / "plotly").mkdir(
            parents=True
        )  # without plotly no HTML report is written, which would be as large as all other files
        (Path(folder) / "without" / "plotly" / "__init__.py").write_text("raise ImportError")
        os.environ["PYTHONPATH"] = str(Path(folder) / "without")
        twinloop("init cell --twin double_pendulum", Path(folder))
        shutil.copy(ROOT / "benchmarks" / "speed" / "swing.py", cell)
        for name, text in FILES.items():
            (cell / name).write_text(text)
        (cell / "log.csv").write_text(swings())
        for line in COMMANDS:
            twinloop(line, cell)
        target.parent.mkdir(exist_ok=True)
        with tarfile.open(target, "w:xz") as archive:
            archive.add(cell, "cell")
    sys.stdout.write(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1e3:.0f} kB\n")


def twinloop(line: str, folder: Path) -> None:
    """Run one command line, in which ``~`` is a space within a word."""
    words = [word.replace("~", " ") for word in line.split()]
    command = [sys.executable, "-P", "-m", "twinloop", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode not in (0, 1):
        raise SystemExit(f"twinloop {line}\n{done.stdout}{done.stderr}")


def swings() -> str:
    """Return three swings of the double pendulum as CSV."""
    rng, text = np.random.default_rng(3), io.StringIO()
    text.write("# units: rad\n# command: torque\n")
    text.write("episode,time_s,action/shoulder,action/elbow,state/shoulder,state/elbow\n")
    for episode in range(3):
        phase = rng.uniform(0, 6, size=2)
        for time in np.arange(80) / 100:
            action = np.sin(2 * np.pi * np.array([3.1, 4.9]) * time + phase) * [1.5, 0.8]
            state = 0.3 * np.sin(2 * np.pi * np.array([1.1, 1.9]) * time + phase)
            text.write(",".join(map(repr, [episode, float(time), *action.tolist(), *state.tolist()])) + "\n")
    return text.getvalue()


if __name__ == "__main__":
    main()
