"""What holds for all tests."""

import atexit
import os
import shutil
import signal
import tempfile
from collections import Counter

import pytest
from hypothesis import settings

from support.skips import installed_optional_modules, wrongly_skipped

# Approvals of code are kept per user: tests have a separate home, which the processes that they start share.
if "TWINLOOP_HOME" not in os.environ:
    os.environ["TWINLOOP_HOME"] = tempfile.mkdtemp(prefix="twinloop-home-")
    atexit.register(shutil.rmtree, os.environ["TWINLOOP_HOME"], ignore_errors=True)

# A shell starts what runs in the background with Ctrl-C ignored, and so would be all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("twinloop", deadline=None)  # a machine that is shared is slow at times, and slow is not wrong
settings.load_profile("twinloop")


_skipped = Counter()


def _note(report):
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_runtest_logreport(report):
    """Keep why a test was skipped."""
    _note(report)


def pytest_collectreport(report):
    """Keep why a whole file was skipped."""
    _note(report)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """Fail where tests were skipped for want of a package that is installed."""
    if not hasattr(session.config, "workerinput") and _wrong() and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    """Print how many tests or files were skipped, and why."""
    if _skipped:
        terminalreporter.section("skipped")
        for reason, count in _skipped.most_common():
            terminalreporter.write_line(f"{count:5d}  {reason}")
    for reason in _wrong():
        terminalreporter.write_line(f"FAILED: this is installed, so nothing may be skipped for it: {reason}", red=True)


def _wrong():
    return wrongly_skipped(_skipped, installed_optional_modules()) if _skipped else []
