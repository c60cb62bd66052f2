"""Contacts of a generated, annotated batch, as one table with the names of its episodes."""

from __future__ import annotations

import pytest

from support.dataset_writer import write_all
from twinloop.catalog import Workspace
from twinloop.dataset.annotations import vectors
from twinloop.dataset.lerobot.tables import content_hash
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.spec import DatasetSpec
from twinloop.randomize import Plan, default_draws
from twinloop.rollout import run_batch
from twinloop.rollout.contacts import dynamics_tables
from twinloop.tasks import open_task
from twinloop.twin import load_twin


@pytest.mark.slow
def test_contacts_are_those_that_were_simulated(tmp_path):
    twin = load_twin("so101_tabletop")
    task = open_task("pick_and_place", twin)
    task.nstep = 4
    plan = Plan(twin=twin, run_seed=3, draws=tuple(default_draws(twin)))
    batch = run_batch(twin, task, plan.draw([0, 2]), run_seed=3, episodes=[0, 2])
    episodes = batch.episodes()
    tables = [dynamics_tables(twin, episode, ("contacts",)) for episode in episodes]
    spec = DatasetSpec(
        name="annotated", robot_type="so101", fps=30, joints=tuple(twin.robot.joints), units=twin.units, block_size=4
    )
    with Workspace.create(tmp_path / "cell") as ws:
        with DatasetWriter.open(ws.root / "data" / "annotated", spec) as writer:
            writer.commit_block(0, episodes, tables={name: [part[name] for part in tables] for name in tables[0]})
        ws.add(ws.root / "data" / "annotated")
        ws.add(write_all(ws.root / "data" / "plain"))
        for episode, part in zip(episodes, tables, strict=True):
            simulated = part["annotations/contacts"]
            assert len(simulated)
            rows = ws.query(
                "SELECT batch, frame_index, body1, body2, force FROM contacts WHERE episode_id = ?",
                [content_hash(episode)],
            )
            found = [(row["frame_index"], row["body1"], row["body2"], row["force"]) for row in rows.to_pylist()]
            columns = [simulated[name].to_pylist() for name in ("frame_index", "body1", "body2")]
            assert found == list(zip(*columns, vectors(simulated["force"]).tolist(), strict=True))
            assert set(rows["batch"].to_pylist()) == {"annotated"}
