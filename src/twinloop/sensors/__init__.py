"""Convert true signals of a simulation or a log to sensor readings with noise, delay, clipping and quantization.

All functions map arrays to arrays, so the true signals may come from any source.
"""

from twinloop.sensors.sampling import find_newest_sample, interpolate_hermite
from twinloop.sensors.servo import STS3215_RESOLUTION, encoder_command, encoder_reading

__all__ = ["STS3215_RESOLUTION", "encoder_command", "encoder_reading", "find_newest_sample", "interpolate_hermite"]
