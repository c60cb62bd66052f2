"""Measure false-positive rate, coverage and power of every test and interval of the sim-to-real gap, by simulation."""
