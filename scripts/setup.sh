#!/bin/sh
# Create .venv with the locked versions and the package; also install the GL libraries (Debian and Ubuntu, as root).
set -eu
python="${PYTHON:-python3}"

"$python" - <<'CHECK'
import sys
if sys.version_info < (3, 11):
    sys.exit(f"twinloop needs Python 3.11 or newer, this is {sys.version.split()[0]}. Try: make PYTHON=python3.12 ...")
CHECK

have_gl() { ldconfig -p 2>/dev/null | grep -q libEGL.so.1 && ldconfig -p 2>/dev/null | grep -q libGL.so.1; }

if ! have_gl; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing libegl1 and libgl1 for rendering"
        (apt-get update -qq && apt-get install -y -qq --no-install-recommends libegl1 libgl1) >/dev/null \
            || echo "Could not install them. The slower Warp renderer is used instead."
    else
        echo "libegl1 and libgl1 are missing (apt-get install libegl1 libgl1). The slower Warp renderer is used instead."
    fi
fi

if [ ! -x .venv/bin/python ]; then
    "$python" -m venv .venv 2>/dev/null || {
        rm -rf .venv
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
            "$python" -m venv .venv
        else
            echo "Python's venv module is missing (apt-get install python3-venv)" >&2
            exit 3
        fi
    }
fi

.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock \
    --editable ".[demo,dev,hub,serve]"
have_gl || .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock \
    --editable ".[demo,dev,hub,serve,warp]"
