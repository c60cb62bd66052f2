"""Send MuJoCo's warnings to Python's logging instead of the file MUJOCO_LOG.TXT in the working directory.

The warnings do not name a world; `simulate.rollout` finds the affected world by its warning counters.
"""

from __future__ import annotations

import ctypes
import logging
import warnings

import mujoco

_LOGGER = logging.getLogger("twinloop.mujoco")


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def _forward(message: bytes) -> None:
    _LOGGER.debug("%s", message.decode(errors="replace"))


def install() -> None:
    """Route MuJoCo's warnings of every thread to the logger ``twinloop.mujoco`` at level DEBUG.

    The Python warning that an attached specification with an empty prefix may not be saved correctly is not shown: a
    twin is compiled from the specification, and never read back from a saved one.
    """
    mujoco.set_mju_user_warning(_forward)
    warnings.filterwarnings("ignore", message="Attaching a spec with an empty prefix")
