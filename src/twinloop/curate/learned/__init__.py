"""Learned checks: does an episode look simulated, and is it similar to real data?"""
