"""Measure the differences between simulated and real sensors: noise, lag, clock, lost samples, resolution."""
