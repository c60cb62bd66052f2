"""The nearest clips are exact, from other episodes, memory-mapped, and updated after an addition."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from twinloop.catalog import Workspace
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.curate.neighbours import ClipIndex, choose_encoder, find_nearest_clips, open_clip_index


def add(workspace: Workspace, names: list[str], rows: np.ndarray) -> None:
    run_id = workspace.record_run("embed", None, {}, datetime.now(UTC), datetime.now(UTC), [])
    count = len(names)
    table = {
        "episode_id": names,
        "encoder": ["waypoints"] * count,
        "encoder_hash": ["e"] * count,
        "first_frame": [60 * i for i in range(count)],
        "last_frame": [60 * i + 59 for i in range(count)],
        "vector": pa.array(list(rows.astype(np.float32)), type=pa.list_(pa.float32())),
    }
    workspace.append("embeddings", pa.table(table), run_id=run_id)


def test_the_search_is_the_plain_loop():
    chance = np.random.default_rng(0)
    rows = chance.normal(size=(300, 16)).astype(np.float32)
    names = [f"{number // 3:04x}" for number in range(300)]
    first = np.tile([0, 60, 120], 100)
    index = ClipIndex.of(rows, names, first, first + 59)
    for row in (0, 7, 299):
        distance = np.linalg.norm(rows.astype(np.float64) - rows[row], axis=1)
        distance[row // 3 * 3 : row // 3 * 3 + 3] = np.inf
        found = index.find_nearest(index.find_row(names[row], int(first[row]) + 5), 4)
        order = np.argsort(distance)[:4]
        assert [(item.episode_id, item.first_frame) for item in found] == [(names[i], first[i]) for i in order]
        np.testing.assert_allclose([item.distance for item in found], distance[order], rtol=1e-6)


def test_a_workspace_answers_from_its_file_and_knows_what_was_added(tmp_path):
    workspace = Workspace.create(tmp_path / "cell")
    with pytest.raises(InputError, match="has no embeddings. Make embeddings with twinloop coverage --workspace"):
        choose_encoder(workspace)
    rows = np.random.default_rng(1).normal(size=(20, 5))
    add(workspace, [f"{i:02d}" for i in range(20)], rows)
    first = find_nearest_clips(workspace, "03", 180, 2)
    assert len(list((tmp_path / "cell" / "catalog" / "cache").glob("neighbours-*"))) == 1
    assert isinstance(open_clip_index(workspace, "e").rows, np.memmap)
    add(workspace, ["zz"], rows[3:4] + 1e-4)
    assert find_nearest_clips(workspace, "03", 180, 1)[0].episode_id == "zz"
    assert first[0].episode_id != "zz"
    assert len(list((tmp_path / "cell" / "catalog" / "cache").glob("neighbours-*"))) == 1
    with pytest.raises(UnknownNameError, match="nobody"):
        find_nearest_clips(workspace, "nobody")
    with pytest.raises(InputError, match="has clips from frame 180 to 239, none at frame 7"):
        find_nearest_clips(workspace, "03", 7)
