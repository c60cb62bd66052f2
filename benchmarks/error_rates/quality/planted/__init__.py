"""Mistakes made on purpose in good episodes: what the study of the checks plants, and what tests find again."""
