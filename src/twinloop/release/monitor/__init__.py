"""Whether a policy and its robot still behave as they did when they succeeded; what has changed, since when."""
