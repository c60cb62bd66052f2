"""The task on the twin that simulated an episode, opened again where both are still the same."""

from __future__ import annotations

import functools

from twinloop.core.errors import TwinloopError
from twinloop.dataset.reader import DatasetReader
from twinloop.generate.replay import root_config
from twinloop.tasks import Task, open_task
from twinloop.twin import load_twin


def world_of(reader: DatasetReader, index: int) -> tuple[Task | None, str]:
    """The task of an episode on its twin; or None, and why there is none."""
    if not reader.ours or reader.appended(index) or reader.has_log(index):
        return None, "it was not simulated by twinloop"
    try:
        config = root_config(reader).get("generate")
        if not isinstance(config, dict) or "twin" not in config or "task" not in config:
            return None, "its dataset does not say which twin and task made it"
        record = reader.provenance(index)
        task, made = _opened(str(config["twin"]), str(config["task"]))
    except TwinloopError as error:
        return None, f"its twin or task cannot be opened: {error}"
    if record.twin_hash != made:
        return None, f"it was made with {record.twin} {record.twin_hash[:12]}, and the twin is {made[:12]} now"
    return task, ""


@functools.lru_cache(maxsize=4)
def _opened(twin: str, task: str) -> tuple[Task, str]:
    loaded = load_twin(twin)
    return open_task(task, loaded), loaded.hash
