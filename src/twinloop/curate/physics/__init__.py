"""Checks of physics: whether a robot with these drives, and things of this weight, can have moved so."""
