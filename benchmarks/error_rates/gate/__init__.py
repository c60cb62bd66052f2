"""Measure error rates of the release gate and its stages, and the trials that they need, by simulation."""
