"""Readers of the public sets: each reads a folder by its layout, so that further recordings of a set are read alike."""
