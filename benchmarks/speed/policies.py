"""Measure size, prediction time and training-step time of each kind of policy at its defaults.

``python -m benchmarks.speed.policies [--write docs]``. CPU time on one thread, medians; other programs on the same
cores increase it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.speed.page import main
from benchmarks.studies import markdown_table
from twinloop.core.contract import ACTION, ENVIRONMENT, IMAGES, STATE
from twinloop.policies import KINDS, Statistics, new_policy
from twinloop.policies.folder import PolicyCard
from twinloop.policies.onnx_export import make_onnx
from twinloop.policies.onnx_file import parse_onnx
from twinloop.policies.onnx_policy import OnnxPolicy
from twinloop.policies.policy import Policy
from twinloop.rollout import offered_contract
from twinloop.tasks import open_task
from twinloop.twin import load_twin

BATCH, IMAGE_SIZE, HUNDREDS = 64, (96, 96), {False: 256, True: 16}
MARK = "python -m benchmarks.speed.policies"


def run(*, repeats: int = 5) -> list[dict[str, Any]]:
    """Return one row per kind of policy, without and with one camera, for SO-101 pick and place."""
    twin = load_twin("so101_tabletop")
    plain = offered_contract(twin, open_task("pick_and_place", twin))
    rng = np.random.default_rng(0)
    sizes = {STATE: len(twin.units.joints), ENVIRONMENT: len(plain.environment), ACTION: len(twin.units.joints)}
    known = Statistics.measure({key: rng.normal(size=(99, size)) for key, size in sizes.items()}, source="benchmark")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    for has_camera in (False, True):
        contract = replace(plain, cameras={"front": IMAGE_SIZE} if has_camera else {})
        rows += [_row(new_policy(kind, contract, {}, known), has_camera, repeats) for kind in ACTING]
    torch.set_num_threads(before)
    return rows


ACTING = tuple(kind for kind in KINDS if kind != "localizer")  # which acts by a policy of another kind


def _row(policy: Policy, has_camera: bool, repeats: int) -> dict[str, Any]:
    many = HUNDREDS[has_camera]
    one, all_of_them = _observed(policy, 1), _observed(policy, many)
    exported = OnnxPolicy(parse_onnx(make_onnx(policy, PolicyCard()), where="the benchmark"))
    each = _seconds(lambda: policy.predict(all_of_them), repeats) / many
    return {
        "kind": policy.kind,
        "images": has_camera,
        "parameters": policy.parameter_count,
        "predict_one_ms": 1e3 * _seconds(lambda: policy.predict(one), repeats),
        "onnx_one_ms": 1e3 * _seconds(lambda: exported.predict(one), repeats),
        "predict_each_us": 1e6 * each,
        "step_us": 1e6 * each / policy.n_action_steps,
        "training_s_per_1000": 1e3 * _seconds(_training_step(policy), repeats),
    }


def _training_step(policy: Policy) -> Callable[[], None]:
    rows = {**_observed(policy, BATCH), ACTION: np.zeros((BATCH, policy.chunk_size, policy.action_size))}
    batch = {key: torch.as_tensor(values) for key, values in rows.items()}
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)

    def step() -> None:
        policy.train()
        optimizer.zero_grad()
        policy.loss(batch)[0].backward()
        optimizer.step()

    return step


def _observed(policy: Policy, n: int) -> dict[str, np.ndarray]:
    """Return n random observations, as the policy's layout describes them."""
    rng, layout = np.random.default_rng(1), policy.layout
    return {
        key: rng.integers(0, 256, (n, *layout.shape(key)), dtype=np.uint8)
        if key.startswith(IMAGES)
        else rng.normal(size=(n, *layout.shape(key)))
        for key in layout.keys
    }


def _seconds(work: Callable[[], Any], repeats: int) -> float:
    work()
    spent = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        spent.append(time.process_time() - started)
    return float(np.median(spent))


def table(rows: list[dict[str, Any]]) -> str:
    """Return the Markdown table for the page."""
    head = ["kind", "images", "parameters", "one world", "exported to ONNX", "per world, of hundreds"]
    head += ["the same, per control step"]
    cells = [
        [
            f"`{row['kind']}`",
            f"{IMAGE_SIZE[1]}x{IMAGE_SIZE[0]}" if row["images"] else "none",
            f"{row['parameters']:,}",
            f"{row['predict_one_ms']:.1f} ms",
            f"{row['onnx_one_ms']:.1f} ms",
            f"{row['predict_each_us']:,.0f} µs",
            f"{row['step_us']:,.0f} µs",
            f"{row['training_s_per_1000']:,.0f} s",
        ]
        for row in rows
    ]
    return markdown_table([*head, f"1,000 training steps of {BATCH}"], cells)


if __name__ == "__main__":
    main(__doc__, "evidence/performance.md", MARK, lambda: table(run()))
