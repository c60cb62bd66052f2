"""Compute sensor errors as functions from arrays to arrays, independent of the source of the ideal reading."""

from twinloop.sensors.sampling import find_newest_sample, interpolate_hermite
from twinloop.sensors.servo import STS3215_RESOLUTION, encoder_command, encoder_reading

__all__ = ["STS3215_RESOLUTION", "encoder_command", "encoder_reading", "find_newest_sample", "interpolate_hermite"]
