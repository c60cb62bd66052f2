"""Measure how often intervals of identified parameters cover the planted value."""
