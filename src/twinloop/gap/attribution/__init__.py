"""Attribute a twin's error to its parameters, and find the parameters that change its predictions most."""
