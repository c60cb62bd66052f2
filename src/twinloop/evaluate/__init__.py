"""Evaluate policies in suites of simulated conditions or from real trials, and compare their success rates."""
