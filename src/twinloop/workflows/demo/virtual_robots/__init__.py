"""Train policies in several kinds of worlds and evaluate them on virtual robots that differ from these worlds."""
