"""Measure how far simulated sensors are from real ones."""
