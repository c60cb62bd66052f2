"""Measure how policies differ between simulation and reality, and compare two policies."""
