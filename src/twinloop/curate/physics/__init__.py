"""Checks of physics: could the robot with its drives, and the objects, have moved as recorded?"""
