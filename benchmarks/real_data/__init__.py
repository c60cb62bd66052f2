"""Fit twins to public data sets of real measurements and score them on held-out episodes."""
