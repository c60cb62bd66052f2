"""Checks of the recording itself: clocks, frames, cameras, units, column order, and the end of an episode."""
