"""What tests of several files share: annot dataset."""

from __future__ import annotations

from twinloop.dataset import annotations
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.spec import DatasetSpec
from twinloop.randomize import Plan, default_draws
from twinloop.render import SceneStates, open_renderer
from twinloop.render.annotate import AnnotationSettings, annotate_episode, annotations_document
from twinloop.rollout import run_batch
from twinloop.rollout.contacts import dynamics_tables
from twinloop.simulate.protocol import state_poses
from twinloop.tasks import open_task
from twinloop.twin import load_twin


def write(path):
    twin = load_twin("so101_tabletop")
    task, settings = open_task("pick_and_place", twin), AnnotationSettings()
    task.nstep = 4
    table = Plan(twin=twin, run_seed=3, draws=tuple(default_draws(twin))).draw([0, 2])
    batch = run_batch(twin, task, table, run_seed=3, episodes=[0, 2])
    spec = DatasetSpec(
        name="annotated", robot_type="so101", fps=30, joints=tuple(twin.robot.joints), units=twin.units, block_size=4
    )
    episodes, tables = batch.episodes(), []
    with open_renderer("gl", twin.model, height=48, width=64, cameras=["front", "wrist"]) as renderer:
        for world, episode in enumerate(episodes):
            fields = {k: v[0] for k, v in twin.fields(table.take([world]), visual=True).arrays.items()}
            states = SceneStates(**state_poses(twin.model, episode.states[:-1]))
            found = annotate_episode(renderer, twin, states, fields, number=episode.number, settings=settings)
            tables.append(found | dynamics_tables(twin, episode, settings.per_step))
    documents = {annotations.DOCUMENT: annotations_document(twin, settings)}
    parts = {name: [part[name] for part in tables] for name in tables[0]}
    with DatasetWriter.open(path, spec) as writer:
        writer.commit_block(0, episodes, tables=parts, documents=documents)
        writer.finish()
    return path, parts
