"""Score the quality of episodes with reasons, measure the coverage of real data, and plan new data for its holes.

A hole is a region of real data that simulated episodes do not cover.
"""
