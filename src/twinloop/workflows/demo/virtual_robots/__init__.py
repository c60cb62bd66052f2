"""Train policies in several kinds of worlds, and compare them on virtual robots.

Virtual robots have physical effects, such as gear backlash, that the twin and therefore its worlds do not contain.
"""
