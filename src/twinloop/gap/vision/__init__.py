"""Measure how far simulated images are from real ones, and which camera parameters close the difference."""
