"""Robots behind one protocol: virtual ones by seed, the user's own by file; driving them and recording what happens."""
