"""Load twins, which are MuJoCo models with a table of named physical parameters."""

from twinloop.twin import mujoco_log
from twinloop.twin.load import TWINS, builtin_names, load_twin
from twinloop.twin.params import Param
from twinloop.twin.spec import TwinSpec
from twinloop.twin.twin import Twin

__all__ = ["TWINS", "Param", "Twin", "TwinSpec", "builtin_names", "load_twin"]

mujoco_log.install()
