"""Evaluate policies: named suites, paired trials, exact intervals, comparison."""
