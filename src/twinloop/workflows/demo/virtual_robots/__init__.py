"""Train policies in several kinds of worlds and try them on virtual robots that none of the worlds is."""
