"""Store an evaluation: the trials of one policy in one suite, simulated or real, with their declared table schema.

A table of trials is converted to exactly the columns of the schema, in its order and types, or refused with a reason.
"""

# pyright: standard
# pyarrow has no stubs, and everything that touches a table would be of unknown type.
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import atomic_open, sha256_bytes, sha256_file, write_json
from twinloop.core.trials import DOMAINS, Domain

_FACTS, _TRIALS, _SCHEMA = "evaluation.json", "trials.parquet", 1

TRIALS = pa.schema(
    [
        pa.field("slice", pa.string(), nullable=False),  # the condition within the suite
        pa.field("trial", pa.string(), nullable=False),  # equal for policies tried under the same conditions
        pa.field("success", pa.bool_(), nullable=False),
        pa.field("progress", pa.float64()),  # 0 to 1
        pa.field("time_s", pa.float64()),  # time to success; null without success
        pa.field("smoothness", pa.float64()),  # spectral arc length of the tool's speed, dimensionless, at most 0
        pa.field("peak_force_n", pa.float64()),  # largest contact force of the robot with anything, N
        pa.field("violations", pa.int64()),  # control steps at which a safety limit was broken
        pa.field("latency_s", pa.float64()),  # wall time that a command took to compute, mean over the trial
        pa.field("valid", pa.bool_(), nullable=False),  # whether the trial counts: a diverged world does not
        pa.field("reason", pa.string()),  # reason why it does not count
        pa.field("episode_id", pa.string()),  # the recorded episode, if any
    ]
)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Evaluation of a policy in a suite.

    ``trials`` has the columns of `TRIALS`, one row per trial; two evaluations of one suite and run seed are paired by
    ``trial``. ``policy_hash`` is empty for a policy without weights (an expert, a person). ``extra`` holds
    JSON-compatible values: limits, versions, the command. A trial that is not valid has no information on the policy;
    it counts as a failure in rates where leaving it out would favour the policy.

    Raises:
        InputError: a column is missing or has another type, a trial occurs twice, there are no trials, or an unknown
            domain.
    """

    policy: str
    suite: str
    trials: pa.Table
    policy_hash: str = ""
    domain: Domain = "sim"
    twin: str = ""
    twin_hash: str = ""
    task: str = ""
    run_seed: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.domain not in DOMAINS:
            raise InputError(f"An evaluation is {' or '.join(DOMAINS)}, not {self.domain!r}.")
        object.__setattr__(
            self, "trials", _validate_trials(self.trials, f"The evaluation of {self.policy} in {self.suite}")
        )

    def __len__(self) -> int:
        return self.trials.num_rows

    @property
    def slices(self) -> tuple[str, ...]:
        """Names of the slices, in order of first appearance."""
        return tuple(dict.fromkeys(self.trials["slice"].to_pylist()))

    @property
    def hash(self) -> str:
        """SHA-256 of policy, suite and every trial's outcome."""
        facts = (self.policy, self.policy_hash, self.suite, self.twin_hash, self.task, str(self.run_seed), self.domain)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, TRIALS) as stream:
            stream.write_table(self.trials.combine_chunks())
        return sha256_bytes("\0".join(facts).encode(), sink.getvalue().to_pybytes())

    def counts(self) -> tuple[int, int]:
        """Return the numbers of successes and trials; an invalid trial counts as a failure."""
        won = np.asarray(self.trials["success"]) & np.asarray(self.trials["valid"])
        return int(won.sum()), len(self)

    def write(self, folder: Path) -> None:
        """Write two files to a folder: the facts as JSON and the trials as Parquet; the facts last."""
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_open(folder / _TRIALS) as file:
            pq.write_table(self.trials, file)
        facts = {key: getattr(self, key) for key in _KEYS}
        write_json(
            folder / _FACTS,
            {"schema": _SCHEMA, **facts, "extra": dict(self.extra), "trials_sha256": sha256_file(folder / _TRIALS)},
        )

    @classmethod
    def read(cls, folder: Path) -> Evaluation:
        """Read the files that `write` stored.

        Raises:
            InputError: the folder has no evaluation, a newer twinloop wrote it, or its trials were changed.
        """
        if not (folder / _FACTS).is_file() or not (folder / _TRIALS).is_file():
            raise InputError(f"{folder} has no evaluation: it needs {_FACTS} and {_TRIALS}. Run `twinloop evaluate`.")
        facts = read_json(folder / _FACTS)
        if facts.get("schema") != _SCHEMA:
            raise InputError(f"{folder / _FACTS} has schema {facts.get('schema')}; this twinloop reads {_SCHEMA}.")
        if sha256_file(folder / _TRIALS) != facts["trials_sha256"]:
            raise InputError(f"{folder / _TRIALS} was changed after it was written: its hash differs. Evaluate again.")
        return cls(**{key: facts[key] for key in _KEYS}, extra=facts["extra"], trials=pq.read_table(folder / _TRIALS))


_KEYS = ("policy", "suite", "policy_hash", "domain", "twin", "twin_hash", "task", "run_seed")


def _validate_trials(trials: pa.Table, what: str) -> pa.Table:
    """Return the table with exactly the columns of `TRIALS`; refuse a duplicate trial or invalid columns."""
    if not trials.num_rows:
        raise InputError(f"{what} has no trials.")
    table = convert_to_schema(trials, TRIALS, what[0].lower() + what[1:])
    names = list(zip(table["slice"].to_pylist(), table["trial"].to_pylist(), strict=True))
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{what}: trial {twice[1]} of slice {twice[0]} occurs twice. Name each trial once.")
    return table


def convert_to_schema(
    rows: pa.Table,
    schema: pa.Schema,
    what: str,
    *,
    given: Mapping[str, Any] | None = None,
    meanings: Mapping[str, str] | None = None,
) -> pa.Table:
    """Convert rows to the columns of a schema; columns that may be null may be missing.

    Args:
        rows: the table to convert.
        schema: names, types, and which columns may be null.
        what: name of the rows in messages, such as "the table scores".
        given: constant values for columns that ``rows`` lacks.
        meanings: descriptions of columns, for messages.

    Raises:
        UnknownNameError: a column that the schema does not have.
        InputError: a column is missing, has another type, or is empty although it must not be.
    """
    for name in rows.column_names:
        if name not in schema.names:
            raise UnknownNameError("column", name, schema.names, where=what)
    filled = [_convert_column(rows, field, what, given or {}, meanings or {}) for field in schema]
    return pa.Table.from_arrays(filled, schema=schema)


def _convert_column(
    rows: pa.Table, field: pa.Field, what: str, given: Mapping[str, Any], meanings: Mapping[str, str]
) -> pa.ChunkedArray | pa.Array:
    told = f"{field.name} ({meanings[field.name]})" if field.name in meanings else field.name
    if field.name not in rows.column_names:
        value = given.get(field.name)
        if value is None and not field.nullable:
            raise InputError(f"Rows of {what} need a column {told}; these have {', '.join(rows.column_names)}.")
        return pa.repeat(pa.scalar(value, field.type), len(rows))
    values = rows[field.name]
    if values.null_count and not field.nullable:
        raise InputError(f"{values.null_count} of {len(rows)} rows of {what} have no {told}.")
    try:
        return values.cast(field.type)
    except pa.ArrowException as error:
        raise InputError(f"{field.name} of {what} must be {field.type} and is {values.type}: {error}.") from error
