#!/bin/sh
# Create DIR, a separate Python environment with LeRobot 0.4.4, Feetech's library, twinloop and torch for the CPU (2.6 GB).
# Use it to train and run LeRobot's policies (export TWINLOOP_LEROBOT_PYTHON=DIR/bin/python), to drive its robots
# (DIR/bin/twinloop run --robot lerobot:so101?…), and to test that LeRobot reads our datasets:
# sh scripts/lerobot_env.sh DIR && TWINLOOP_LEROBOT_PYTHON=DIR/bin/python make test-slow
# LeRobot's own requirements would install torch for CUDA (8 GB). So LeRobot and the packages that are built against torch
# are installed without their requirements.
set -eu
dir="${1:?usage: sh scripts/lerobot_env.sh DIR}"
python="${PYTHON:-python3}"

"$python" - <<'CHECK'
import sys
if sys.version_info[:2] != (3, 11):
    sys.exit(f"This script installs LeRobot 0.4.4 for Python 3.11, but this is Python {sys.version.split()[0]}. Try: PYTHON=python3.11 sh ...")
CHECK

if ! command -v ffmpeg >/dev/null; then # torchcodec needs ffmpeg's libraries
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Adding ffmpeg"
        (apt-get update -qq && apt-get install -y -qq --no-install-recommends ffmpeg) >/dev/null
    else
        echo "ffmpeg is missing (apt-get install ffmpeg)" >&2
        exit 3
    fi
fi

[ -x "$dir/bin/python" ] || "$python" -m venv "$dir"
pip() { "$dir/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

pip torch==2.13.0+cpu 2>/dev/null || pip --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu
pip --no-deps torchvision==0.28.0 torchcodec==0.13.0 lerobot==0.4.4
pip torch==2.13.0+cpu "datasets<5" "huggingface-hub<0.36" accelerate draccus==0.10.0 einops "av<16" jsonlines gymnasium \
    "deepdiff<9" "imageio[ffmpeg]" "opencv-python-headless<4.13" pynput pyserial termcolor "rerun-sdk<0.27" "diffusers<0.36" \
    packaging feetech-servo-sdk pytest hypothesis
pip -e "$(dirname "$0")/.."
echo "LeRobot $("$dir/bin/python" -c 'import importlib.metadata as m; print(m.version("lerobot"))') in $dir"
