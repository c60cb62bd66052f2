"""Measure the accuracy of the search for rare failures, where the failure rate is known."""
