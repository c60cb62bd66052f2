"""twinloop closes the loop between robots and their simulations."""

from importlib.metadata import version

__version__ = version("twinloop")
