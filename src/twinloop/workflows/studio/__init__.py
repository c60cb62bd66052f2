"""Define the flags of ``twinloop studio``."""
