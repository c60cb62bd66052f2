"""Encoders from images and clips of trajectories to comparable feature vectors."""
