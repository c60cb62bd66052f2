"""Learned checks: discriminators of simulated and real episodes, and support by real data."""
