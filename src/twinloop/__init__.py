"""Identify, randomize and validate MuJoCo twins of robots, and train and release policies with them."""

from importlib.metadata import version

__version__ = version("twinloop")
