"""The commands of the tutorial of policies from photos work in its order, with less training than there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
SMALLER = (
    (r" --worlds 500 --steps 3000", ""),
    (r"(localize train .*)", r"\1 --worlds 10 --frames 2 --steps 20 --batch 4"),
    (r"(distill .*)", r"\1 --worlds 4 --rounds 1 --steps 10 --final-steps 10"),
    (r" --renderer filament", ""),
    (r"--episodes 10", "--episodes 1 --seconds 0.5"),
    (r"height=480&width=640", "height=96&width=128"),
    (r"python \.\./examples", f"{sys.executable} {ROOT}/examples"),
)


@pytest.mark.slow
def test_the_commands_of_the_page_work_in_its_order(tmp_path):
    page = (ROOT / "docs/tutorials/policy_from_photos.md").read_text()
    script = "\n".join(re.findall(r"```bash\n(.*?)```", page, re.DOTALL))
    for pattern, small in SMALLER:
        script, count = re.subn(pattern, small, script)
        assert count, pattern
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e"], input=script, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "is the best" in done.stdout or "Not decided" in done.stdout or "differ by less" in done.stdout
    assert (tmp_path / "cell/data/first/meta/info.json").is_file()
