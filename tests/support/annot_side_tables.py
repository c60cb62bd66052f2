"""What tests of several files share: annot side tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from support.dataset_writer import KEPT, SPEC, planted
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.writer import DatasetWriter

NAME = "annotations/frames"


def rows(number: int, *, count: int = 5) -> pa.Table:
    """The annotations of an episode, a function of its number."""
    rng = np.random.default_rng(number)
    return pa.table(
        {
            "number": pa.array([number] * count, pa.int64()),
            "frame_index": pa.array(range(count), pa.int64()),
            "blob": pa.array([rng.bytes(100) for _ in range(count)], pa.binary()),
            "point": pa.array(rng.normal(size=(count, 3)).tolist(), pa.list_(pa.float64())),
        }
    )


def write(path, kind="table", *, kept=KEPT):
    with DatasetWriter.open(path, SPEC) as writer:
        for block, numbers in kept.items():
            parts = [rows(number) for number in numbers]
            tables: object = iter(parts)
            if kind == "table":
                tables = pa.concat_tables(parts) if parts else rows(0, count=0)
            if kind == "file":
                tables = path.with_name(f"{path.name}-{block}.parquet")
                pq.write_table(pa.concat_tables(parts or [rows(0, count=0)]), tables)
            writer.commit_block(block, [planted(n) for n in numbers], tables={NAME: tables}, documents={"a.json": {}})
        writer.finish()
    return DatasetReader(path)
