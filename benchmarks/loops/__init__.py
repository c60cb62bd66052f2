"""Close the loop on tasks of the library, on virtual robots: from a log to a better policy, with tables."""
