"""Measure how far simulated pictures are from real ones, and which camera parameter closes the difference."""
