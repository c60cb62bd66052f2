"""Fit simulated robots whose true parameters are known, and count the intervals that hold the planted values."""
