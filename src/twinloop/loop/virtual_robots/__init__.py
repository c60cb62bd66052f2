"""Whether the gap closes: policies trained on several worlds, tried on virtual robots that none of them has seen."""
