"""Datasets out of the house: LeRobot's versions, GR00T, and the formats of other programs; one file per format."""
