"""How often a search for rare failures errs, where the truth is known."""
