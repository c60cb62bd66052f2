"""Encode images and motion clips of episodes as feature vectors, so that real and simulated data can be compared."""
