"""The trials of one policy in one suite, simulated or real, as they travel from whoever measures to whoever decides.

Their table is brought to a declared schema: exactly its columns, in its order and types, or a sentence that says why
not.
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
        pa.field("trial", pa.string(), nullable=False),  # the same for policies that were tried alike
        pa.field("success", pa.bool_(), nullable=False),
        pa.field("progress", pa.float64()),  # 0 to 1
        pa.field("time_s", pa.float64()),  # to success; null where there was none
        pa.field("smoothness", pa.float64()),  # spectral arc length of the tool's speed, dimensionless, at most 0
        pa.field("peak_force_n", pa.float64()),  # largest contact force of the robot with anything, N
        pa.field("violations", pa.int64()),  # control steps at which a safety limit was broken
        pa.field("latency_s", pa.float64()),  # wall time that a command took to compute, mean over the trial
        pa.field("valid", pa.bool_(), nullable=False),  # whether the trial counts: a diverged world does not
        pa.field("reason", pa.string()),  # why it does not
        pa.field("episode_id", pa.string()),  # the recorded episode, where there is one
    ]
)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a policy came to in a suite.

    ``trials`` has the columns of `TRIALS`, a row each; two evaluations of one suite and run seed pair by ``trial``.
    ``policy_hash`` is empty for what has none (an expert, a person). ``extra`` holds plain values: limits, versions,
    the command. A trial that is not valid tells nothing of the policy, and is counted as no success wherever a rate
    must not profit from it.

    Raises:
        InputError: a column is missing or has another type, a trial occurs twice, no trial, an unknown domain.
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
        object.__setattr__(self, "trials", _trials(self.trials, f"The evaluation of {self.policy} in {self.suite}"))

    def __len__(self) -> int:
        return self.trials.num_rows

    @property
    def slices(self) -> tuple[str, ...]:
        """Names of the slices, in order of first appearance."""
        return tuple(dict.fromkeys(self.trials["slice"].to_pylist()))

    @property
    def hash(self) -> str:
        """SHA-256 of who was tried where, and of every trial's outcome."""
        facts = (self.policy, self.policy_hash, self.suite, self.twin_hash, self.task, str(self.run_seed), self.domain)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, TRIALS) as stream:
            stream.write_table(self.trials.combine_chunks())
        return sha256_bytes("\0".join(facts).encode(), sink.getvalue().to_pybytes())

    def counts(self) -> tuple[int, int]:
        """Successes and trials; trials that are not valid count as no success."""
        won = np.asarray(self.trials["success"]) & np.asarray(self.trials["valid"])
        return int(won.sum()), len(self)

    def write(self, folder: Path) -> None:
        """Store as two files in a folder: facts as JSON, trials as Parquet; the facts last."""
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
        """Read what `write` stored.

        Raises:
            InputError: there is none, a newer twinloop wrote it, or its trials are not those that were written.
        """
        if not (folder / _FACTS).is_file() or not (folder / _TRIALS).is_file():
            raise InputError(f"{folder} holds no evaluation: it needs {_FACTS} and {_TRIALS}. Run `twinloop evaluate`.")
        facts = read_json(folder / _FACTS)
        if facts.get("schema") != _SCHEMA:
            raise InputError(f"{folder / _FACTS} has schema {facts.get('schema')}; this twinloop reads {_SCHEMA}.")
        if sha256_file(folder / _TRIALS) != facts["trials_sha256"]:
            raise InputError(f"{folder / _TRIALS} is not the file that was written: its hash differs. Evaluate again.")
        return cls(**{key: facts[key] for key in _KEYS}, extra=facts["extra"], trials=pq.read_table(folder / _TRIALS))


_KEYS = ("policy", "suite", "policy_hash", "domain", "twin", "twin_hash", "task", "run_seed")


def _trials(trials: pa.Table, what: str) -> pa.Table:
    """The table with exactly the columns of `TRIALS`; names the trial that occurs twice, or what is wrong else."""
    if not trials.num_rows:
        raise InputError(f"{what} has no trials.")
    table = conforming(trials, TRIALS, what[0].lower() + what[1:])
    names = list(zip(table["slice"].to_pylist(), table["trial"].to_pylist(), strict=True))
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{what}: trial {twice[1]} of slice {twice[0]} occurs twice. Name each trial once.")
    return table


def conforming(
    rows: pa.Table,
    schema: pa.Schema,
    what: str,
    *,
    given: Mapping[str, Any] | None = None,
    meanings: Mapping[str, str] | None = None,
) -> pa.Table:
    """Rows with the columns of a schema; those that may be null may be missing.

    Args:
        rows: as they come.
        schema: names, types, and which columns may be null.
        what: the rows, for messages: "the table scores".
        given: columns that are one value throughout, where ``rows`` lacks them.
        meanings: what columns mean, for messages.

    Raises:
        UnknownNameError: a column that the schema does not have.
        InputError: a column is missing, of another type, or empty where it must not be.
    """
    for name in rows.column_names:
        if name not in schema.names:
            raise UnknownNameError("column", name, schema.names, where=what)
    filled = [_column(rows, field, what, given or {}, meanings or {}) for field in schema]
    return pa.Table.from_arrays(filled, schema=schema)


def _column(
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
        raise InputError(f"{field.name} of {what} is {field.type}, and {values.type} came: {error}.") from error
