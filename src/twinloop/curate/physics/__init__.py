"""Checks of physics: whether this robot with its drives, and these objects, could have moved as recorded."""
