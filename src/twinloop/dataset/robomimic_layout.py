"""Name the groups and attributes of robomimic's HDF5 files, and convert values to robomimic's conventions.

The writer (`twinloop export robomimic`) and the log importer use these names. The layout follows robomimic's
documentation (Datasets, Overview): ``data/demo_N`` with ``actions`` within ±1, ``states``, ``rewards``,
``dones``, ``obs`` and ``next_obs``, and ``mask/NAME``. Twinloop adds the group ``demo_N/twinloop`` and the JSON
attribute ``twinloop`` of ``data`` and of each demonstration. robomimic ignores both additions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import MissingDependencyError

OURS = "twinloop"
SCHEMA = 1
JOINT_POSITIONS = "robot0_joint_pos"  # robosuite's name, rad or m
TIME, ACTION, STATE = "time", "action", "state"  # in demo_N/twinloop: s, and the dataset's or log's own numbers
LAST_STATE, CONTROLS, COMMANDS, ASSETS = "last_state", "controls", "commands", "assets"
GYM, REAL = 2, 4  # robomimic's EnvType; 4 is not one of its simulators

Array = NDArray[np.float64]


def import_h5py(what: str) -> Any:
    """Import and return h5py, the package that reads and writes HDF5.

    Args:
        what: Sentence of the error message that explains why h5py is needed.

    Raises:
        MissingDependencyError: If h5py is not installed.
    """
    try:
        import h5py  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(what, remedy="pip install 'twinloop[hdf5]'") from error
    return h5py


def observation_key(feature: str) -> str:
    """Return robomimic's name of a dataset feature: ``observation.images.front`` becomes ``front_image``.

    Other features lose the prefix ``observation.``, for example ``state`` and ``imu.tool_imu``.
    """
    bare = feature.removeprefix("observation.")
    return f"{bare.removeprefix('images.')}_image" if bare.startswith("images.") else bare.replace("/", ".")


def to_unit(values: Array, low: Array, high: Array) -> Array:
    """Scale values to [-1, 1], the range of robomimic's actions, and clip them.

    Args:
        values: Values of n columns, shape ``(…, n)``.
        low: Value of each column that becomes -1.
        high: Value of each column that becomes 1.
    """
    return np.clip(2.0 * (values - low) / (high - low) - 1.0, -1.0, 1.0)  # rounding alone reaches beyond
