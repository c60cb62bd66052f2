"""Checks of the recording itself: clocks, frames, cameras, units, places of columns, and how an episode ends."""
