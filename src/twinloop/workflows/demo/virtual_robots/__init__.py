"""Train policies in several kinds of worlds, and compare them on virtual robots with physics that no world has."""
