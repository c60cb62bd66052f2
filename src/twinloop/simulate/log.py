"""Send MuJoCo's warnings to Python's logging instead of a file in the working folder.

The counters of each world identify the affected one; see `simulate.rollout`.
"""

from __future__ import annotations

import ctypes
import logging

import mujoco

_LOGGER = logging.getLogger("twinloop.mujoco")


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def _forward(message: bytes) -> None:
    _LOGGER.debug("%s", message.decode(errors="replace"))


def install() -> None:
    """Route MuJoCo's warnings of every thread to the logger ``twinloop.mujoco`` at level DEBUG."""
    mujoco.set_mju_user_warning(_forward)
