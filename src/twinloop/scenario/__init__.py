"""Stored scenarios: reproducible failures, counterfactuals, ablation, search, regression."""
