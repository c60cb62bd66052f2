"""Imperfections as functions from arrays to arrays, which do not know where the ideal reading came from."""

from twinloop.sensors.encoder import STS3215_RESOLUTION, encoder_command, encoder_reading

__all__ = ["STS3215_RESOLUTION", "encoder_command", "encoder_reading"]
