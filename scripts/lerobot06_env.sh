#!/bin/sh
# Create DIR, a Python environment with LeRobot 0.6.1, twinloop and twinloop's plugins for LeRobot (3 GB to download, 6 GB
# on the disk; a third of it where pip finds a CPU build of torch). Use it for LeRobot's own commands:
#   sh scripts/lerobot06_env.sh DIR && DIR/bin/lerobot-record --robot.type=twinloop …
# Tests use the folder in TWINLOOP_LEROBOT06. LeRobot 0.6 needs Python 3.12 or later; PYTHON names the interpreter.
set -eu
dir="${1:?usage: sh scripts/lerobot06_env.sh DIR}"
here="$(cd "$(dirname "$0")/.." && pwd)"
python="${PYTHON:-python3.12}"

"$python" - <<'CHECK'
import sys
if sys.version_info < (3, 12):
    sys.exit(f"LeRobot 0.6 needs Python 3.12, but this is {sys.version.split()[0]}. Try: PYTHON=python3.12 sh ...")
CHECK

[ -x "$dir/bin/python" ] || "$python" -m venv "$dir"
pip() { "$dir/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

cpu="torch==2.11.0+cpu torchvision==0.26.0+cpu"
pip $cpu 2>/dev/null || true
pip "lerobot[core-scripts,training,evaluation,feetech]==0.6.1" -e "$here[gym]" \
    -e "$here/plugins/lerobot_robot_twinloop" -e "$here/plugins/lerobot_env_twinloop"
echo "LeRobot $("$dir/bin/python" -c 'import importlib.metadata as m; print(m.version("lerobot"))') in $dir"
