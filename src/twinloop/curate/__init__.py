"""Judge and plan data: quality scores with reasons, coverage of real data, and holes to fill."""
