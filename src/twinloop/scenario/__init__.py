"""Reproduce and analyse stored scenarios, which are single worlds in which a policy mostly fails.

The analyses are: counterfactuals (change parameters and compare the success rate), ablations (switch off one physical
effect at a time), a search for rare failures, and regression tests of new policies or twins.
"""
