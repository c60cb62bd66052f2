"""False-positive rates, coverage and power of every test and interval of the gap, by simulation."""
