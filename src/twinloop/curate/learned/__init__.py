"""Discriminators learned from the episodes themselves: simulated against real ones, and what no real data supports."""
