"""Where batches are worked on: this machine's processes, or a Ray cluster. The bytes written do not depend on it."""

from __future__ import annotations

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.pool import Engine, LocalProcesses, cores

_ENGINES = ("local", "ray", "ray:HOST:PORT")


def open_engine(name: str = "local", *, workers: int = 0) -> Engine:
    """The engine of that name.

    Args:
        name: ``local``, ``ray`` (the cluster that RAY_ADDRESS names, else this machine alone), or ``ray:HOST:PORT``.
        workers: batches at a time; 0 takes every core, of this machine or of the cluster.

    Raises:
        UnknownNameError: there is none of that name.
        InputError: a negative number of workers.
        MissingDependencyError: Ray is not installed, or no cluster answers.
    """
    if workers < 0:
        raise InputError(f"--workers {workers}: give a number of processes, or 0 for every core.")
    kind, _, address = name.partition(":")
    if name == "local":
        return LocalProcesses(workers or cores())
    if kind == "ray":
        from twinloop.simulate.ray_cluster import RayCluster

        return RayCluster(address, workers=workers)
    raise UnknownNameError("engine", name, _ENGINES)
