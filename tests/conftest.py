"""What holds for all tests."""

from hypothesis import settings

settings.register_profile("twinloop", deadline=None)  # a machine that is shared is slow at times, and slow is not wrong
settings.load_profile("twinloop")
