"""Measure how often checks, tests and intervals are wrong, on data with a known truth."""
