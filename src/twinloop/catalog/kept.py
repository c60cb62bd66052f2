"""What was made of the catalog's tables, kept as Arrow files that are mapped into memory: opening reads little.

Never the truth: a file counts for exactly those parts that it names, is checked before it is used, and is made again
where it is gone. Its name holds its SHA-256, which `fsck` compares.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from twinloop.core.errors import TwinloopError
from twinloop.core.files import atomic_open, dumps, sha256_file

FOLDER = ".kept"  # within catalog/
LEAST = 20_000  # rows: fewer are read from their parts in less time than a process takes to start
_SHARE = 64  # a file is written anew once it lacks that part of the rows: all writing together is then some 64-fold
_ABOUT = b"twinloop"
_SCHEMA = 2  # to be raised when the same parts are made into something else


class Kept:
    """The folder of these files; ``catalog`` is the catalog's. What cannot be written is not kept."""

    def __init__(self, catalog: Path) -> None:
        self._folder = catalog / FOLDER
        self._held: dict[str, tuple[tuple[str, ...], int]] = {}

    def holds(self, name: str, key: Sequence[str]) -> bool:
        """Whether what this process last kept or loaded under a name was made of exactly this."""
        return name in self._held and self._held[name][0] == tuple(key)

    def load(self, name: str, schema: pa.Schema) -> tuple[tuple[str, ...], pa.Table] | None:
        """What was kept under a name, and what it was made of; None where there is nothing whole of this schema."""
        for path in sorted(self._folder.glob(f"{name}-*.arrow")):
            with contextlib.suppress(pa.ArrowException, OSError, KeyError, ValueError, TypeError):
                table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
                table.validate(full=True)  # no offset leads out of the file, whatever it holds
                about = json.loads(table.schema.metadata[_ABOUT])
                if about["schema"] == _SCHEMA and _fits(table.schema, schema):
                    key = tuple(about["key"])
                    self._held[name] = (key, len(table))
                    return key, table.replace_schema_metadata()
        return None

    def save(self, name: str, key: Sequence[str], rows: pa.Table, *, always: bool = False) -> None:
        """Keep a table, unless it is small or little has come since it was last kept (``always``: also then)."""
        grown = abs(len(rows) - self._held.get(name, ((), 0))[1])
        if len(rows) < LEAST or not (always or grown * _SHARE >= len(rows)):
            return
        about = {_ABOUT: dumps({"schema": _SCHEMA, "key": list(key)}).encode()}
        aside = self._folder / f".{name}-{os.getpid()}.arrow"
        with contextlib.suppress(TwinloopError, OSError):
            before = set(self._folder.glob(f"{name}-*.arrow"))
            with atomic_open(aside) as file, pa.ipc.new_file(file, rows.schema.with_metadata(about)) as writer:
                writer.write_table(rows)
            target = self._folder / f"{name}-{sha256_file(aside)}.arrow"
            aside.replace(target)
            for path in before - {target}:
                path.unlink(missing_ok=True)
            self._held[name] = (tuple(key), len(rows))


def damaged(catalog: Path) -> list[Path]:
    """Kept files that are not what was written, or were never finished."""
    return [path for path in sorted((catalog / FOLDER).glob("*.arrow")) if not path.stem.endswith(sha256_file(path))]


def _fits(found: pa.Schema, declared: pa.Schema) -> bool:
    """Whether columns are those declared; a text may be held once for many rows."""

    def plain(kind: pa.DataType) -> pa.DataType:
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    one, other = ([(field.name, plain(field.type)) for field in schema] for schema in (found, declared))
    return one == other
