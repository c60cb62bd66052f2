"""Policies from data: the mixture, the loop, adaptation to a real robot."""
