"""What of the data is good, and what is missing: scores with reasons, coverage, and holes to fill."""
