"""Pinned worlds: failures that happen again, what-if, ablation, search, regression."""
