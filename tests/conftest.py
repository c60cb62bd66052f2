"""What holds for all tests."""

import atexit
import os
import shutil
import tempfile

from hypothesis import settings

# Approvals of code are kept per user: tests have a home of their own, which the processes that they start share.
if "TWINLOOP_HOME" not in os.environ:
    os.environ["TWINLOOP_HOME"] = tempfile.mkdtemp(prefix="twinloop-home-")
    atexit.register(shutil.rmtree, os.environ["TWINLOOP_HOME"], ignore_errors=True)

settings.register_profile("twinloop", deadline=None)  # a machine that is shared is slow at times, and slow is not wrong
settings.load_profile("twinloop")
