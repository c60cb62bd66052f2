"""Score the quality of episodes with reasons, measure the coverage of real data, and plan data for its holes."""
