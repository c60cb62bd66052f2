"""Readers of the public sets: each reads any folder with the layout of a set, also further recordings."""
