"""How well a policy does: named suites, paired trials, exact intervals, comparison."""
