"""Measure how far simulated trajectories are from real ones, by comparing their distributions."""
