"""Store an evaluation: the trials of one policy in one suite (a list of conditions), in a table with a fixed schema.

The trials are simulated or real. A table of trials is converted to the columns of the schema, in their order and with
their types. A table that cannot be converted is refused with a reason.
"""

# pyright: standard
# pyarrow has no type stubs, so that strict checking would report every use of a table.
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

TRIAL_SCHEMA = pa.schema(
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
    """Evaluation of a policy in a suite (a list of conditions), with the outcome of every trial.

    An invalid trial, for example in a world that diverged, has no information on the policy. In success rates it counts
    as a failure, because a policy must not gain from invalid trials.

    Attributes:
        policy: Name of the policy.
        suite: Name of the suite.
        trials: Table with the columns of `TRIAL_SCHEMA`, one row per trial. The columns ``slice`` (condition) and
            ``trial`` name the world of a trial, so that trials of two policies with the same suite and run seed can be
            compared in pairs.
        policy_hash: Hash of the policy; empty if the policy has no weights (a scripted expert or a person).
        domain: ``sim`` or ``real``.
        twin: Name of the twin.
        twin_hash: Hash of the twin.
        task: Name of the task.
        run_seed: Seed of the conditions.
        extra: Further JSON-compatible values: limits, versions, the command.

    Raises:
        InputError: If a column is missing or has another type, a trial occurs twice, there are no trials, or the domain
            is unknown.
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
            raise InputError(f"The domain of an evaluation is {' or '.join(DOMAINS)}, not {self.domain!r}.")
        object.__setattr__(
            self, "trials", _validate_trials(self.trials, f"The evaluation of {self.policy} in {self.suite}")
        )

    def __len__(self) -> int:
        return self.trials.num_rows

    @property
    def slices(self) -> tuple[str, ...]:
        """Names of the conditions (slices) of the suite, in order of first appearance."""
        return tuple(dict.fromkeys(self.trials["slice"].to_pylist()))

    @property
    def hash(self) -> str:
        """SHA-256 of policy, suite, twin, task, seed, domain and all trial rows."""
        facts = (self.policy, self.policy_hash, self.suite, self.twin_hash, self.task, str(self.run_seed), self.domain)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, TRIAL_SCHEMA) as stream:
            stream.write_table(self.trials.combine_chunks())
        return sha256_bytes("\0".join(facts).encode(), sink.getvalue().to_pybytes())

    def counts(self) -> tuple[int, int]:
        """Return the number of successes and the number of trials; an invalid trial counts as a failure."""
        successes = np.asarray(self.trials["success"]) & np.asarray(self.trials["valid"])
        return int(successes.sum()), len(self)

    def write(self, folder: Path) -> None:
        """Write the trials as ``trials.parquet``, then all other fields as ``evaluation.json``, to a folder.

        The JSON file has the hash of the Parquet file, so that `read` detects later changes.
        """
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
        """Read an evaluation from a folder that `write` filled.

        Raises:
            InputError: If the folder has no evaluation, its schema version is unknown, or its trials were changed.
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
    """Return the trial table with exactly the columns of `TRIAL_SCHEMA`; refuse duplicate trials and invalid columns.

    Args:
        trials: Table to validate.
        what: Start of the error message, such as "The evaluation of X in Y".
    """
    if not trials.num_rows:
        raise InputError(f"{what} has no trials.")
    table = convert_to_schema(trials, TRIAL_SCHEMA, what[0].lower() + what[1:])
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
    """Convert a table to exactly the columns of a schema; a missing column that may be null is filled with nulls.

    Args:
        rows: Table to convert.
        schema: Column names, types, and which columns may be null.
        what: Name of the table in messages, such as "the table scores".
        given: Constant values for columns that ``rows`` does not have, by column name.
        meanings: Descriptions of columns by name, for messages.

    Raises:
        UnknownNameError: If the table has a column that the schema does not have.
        InputError: If a column is missing, has another type, or has nulls although it must not.
    """
    for name in rows.column_names:
        if name not in schema.names:
            raise UnknownNameError("column", name, schema.names, where=what)
    filled = [_convert_column(rows, field, what, given or {}, meanings or {}) for field in schema]
    return pa.Table.from_arrays(filled, schema=schema)


def _convert_column(
    rows: pa.Table, field: pa.Field, what: str, given: Mapping[str, Any], meanings: Mapping[str, str]
) -> pa.ChunkedArray | pa.Array:
    label = f"{field.name} ({meanings[field.name]})" if field.name in meanings else field.name
    if field.name not in rows.column_names:
        value = given.get(field.name)
        if value is None and not field.nullable:
            raise InputError(f"Rows of {what} need a column {label}; these have {', '.join(rows.column_names)}.")
        return pa.repeat(pa.scalar(value, field.type), len(rows))
    values = rows[field.name]
    if values.null_count and not field.nullable:
        raise InputError(f"{values.null_count} of {len(rows)} rows of {what} have no {label}.")
    try:
        return values.cast(field.type)
    except pa.ArrowException as error:
        raise InputError(f"{field.name} of {what} must be {field.type} and is {values.type}: {error}.") from error
