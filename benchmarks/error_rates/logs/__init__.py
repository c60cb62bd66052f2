"""Measure how many planted defects the log checks detect, and how often they give false alarms."""
