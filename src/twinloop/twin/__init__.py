"""A twin: a MuJoCo model plus a list of named physical parameters, each declared once."""

from twinloop.twin.load import TWINS, builtin_names, load_twin
from twinloop.twin.params import Param
from twinloop.twin.spec import TwinSpec
from twinloop.twin.twin import Twin

__all__ = ["TWINS", "Param", "Twin", "TwinSpec", "builtin_names", "load_twin"]
