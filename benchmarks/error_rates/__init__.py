"""How often checks, tests and intervals are wrong, where the truth is known."""
