"""Compare the success of policies on virtual robots, by training data."""
