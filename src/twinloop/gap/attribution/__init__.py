"""Attribute a twin's error to its parameters, and find which parameters move its predictions."""
