"""Speed as ratios measured in one run, because machines are noisy: ``python -m benchmarks speed``."""
