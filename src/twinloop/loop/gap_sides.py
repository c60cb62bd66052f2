"""Whether two logs can stand for reality and simulation: not one log twice, and not the wrong way round."""

from __future__ import annotations

from twinloop.core.errors import InputError
from twinloop.loop.logs import Log


def require_two_sides(real: Log, sim: Log) -> None:
    """Refuse what was given as --real and --sim where it cannot be that.

    Two real logs, or two simulated ones, may be compared: not every log says what it is.

    Raises:
        InputError: both are the same log, or the real one says that it is simulated and the simulated one real.
    """
    if real.hash and real.hash == sim.hash:
        raise InputError(
            f"--real and --sim are the same log, {real.name}: nothing can differ. Give simulated episodes as --sim."
        )
    sources = [{episode.source for episode in log.episodes} for log in (real, sim)]
    if sources == [{"sim"}, {"real"}]:
        raise InputError(
            f"{real.name}, given as --real, says that it is simulated, and {sim.name}, given as --sim, that it is "
            "real. Swap them."
        )
