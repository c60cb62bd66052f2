"""Measure speed as ratios within one run, because machines are noisy: ``python -m benchmarks speed``."""
