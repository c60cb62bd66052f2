"""Compare `identify` with ``mujoco.sysid``: same windows, parameters, physics steps, starts and cores, in one run.

The data are the double pendulum's identification runs in windows of 0.5 s with the first run held out; nine parameters,
one physics step per frame. Both fits start at the published values with the same first states, and both are scored by
the same replays of the held-out run. The fits alternate, so that other work on the machine affects both.
"""

from __future__ import annotations

import math
import time

import mujoco
import numpy as np
from mujoco import sysid

from benchmarks.real_data.arm_windows import REPLAY, at_rate, one_step_per_frame, window_errors
from benchmarks.real_data.double_pendulum import CASE, FREE, PRIORS, SPAN
from twinloop.core.errors import MissingDependencyError
from twinloop.core.pool import count_cores
from twinloop.core.records import Episode
from twinloop.dataset.logs.sets import registry
from twinloop.identify import FitConfig, identify
from twinloop.simulate import open_backend
from twinloop.simulate.replay_logs import ReplayLogs, prepare_replay
from twinloop.twin import Twin, load_twin
from twinloop.twin.quantities.rigid import second_moments

TARGET = 3.0
# Bounds for mujoco.sysid, which needs them: wide, because it stalls if it starts at a bound.
_BOUNDS = {"d3": (-1.0, 1.0), "t3": (-0.15, 0.15), "armature": (1e-4, 1e-2), "frictionloss": (0.0, 1.0)}
_BOUNDS |= {"damping": (0.0, 0.1)}


def run(rounds: int = 3) -> dict:
    """Return seconds of both fits, their ratio with its spread, and the held-out errors (rad, shoulder and elbow).

    Raises:
        MissingDependencyError: If mujoco.sysid lacks its packages.
        RealDataUnavailableError: If the runs are not available.
    """
    if not hasattr(sysid, "ParameterDict"):
        raise MissingDependencyError("mujoco.sysid needs additional packages.", remedy="pip install 'mujoco[sysid]'")
    episodes = registry.load_set(CASE.name, registry.fetch(CASE.name).path)
    fold = CASE.folds(episodes)[0]
    training, test = (at_rate(part, SPAN) for part in (fold.training, fold.test))
    rows = [_round(training, test) for _ in range(rounds)]
    ratios = [row["theirs_s"] / row["ours_s"] for row in rows]
    busy = [row["theirs_processor_s"] / row["ours_processor_s"] for row in rows]
    return {
        "name": f"double pendulum, {rows[0]['windows']} windows of 0.5 s, {len(rows[0]['values'])} parameters",
        "against": f"mujoco.sysid of MuJoCo {mujoco.__version__}",
        "ratio": float(np.median(ratios)),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "processor_ratio": float(np.median(busy)),
        "processor_ratio_min": min(busy),
        "processor_ratio_max": max(busy),
        "target": TARGET,
        "ours_rms": rows[0]["ours_rms"],
        "theirs_rms": rows[0]["theirs_rms"],
        "cores": count_cores(),
        "rounds": rows,
    }


def _round(training: list[Episode], test: list[Episode]) -> dict:
    backend, twin = open_backend("threads", nthread=count_cores()), one_step_per_frame(load_twin(CASE.twin))
    began = _clocks()
    config = FitConfig(replay=REPLAY, free=FREE, priors=PRIORS, walk=10_000, width=4.0)
    ours = dict(identify(twin, training, backend=backend, config=config).values)
    middle = _clocks()
    logs = prepare_replay(twin, training, REPLAY)
    theirs = _by_sysid(logs, tuple(ours))
    end = _clocks()
    judge = load_twin(CASE.twin)
    both = {"ours": ours, "theirs": theirs}
    found = {name: _rms(window_errors(judge, test, values, backend)) for name, values in both.items()}
    return {
        "windows": len(logs),
        "ours_s": middle[0] - began[0],
        "theirs_s": end[0] - middle[0],
        "ours_processor_s": middle[1] - began[1],
        "theirs_processor_s": end[1] - middle[1],
        "ours_rms": found["ours"],
        "theirs_rms": found["theirs"],
        "values": ours,
        "their_values": theirs,
    }


def _clocks() -> tuple[float, float]:
    """Return wall-clock time, and CPU time of all threads, which depends little on other work on the machine."""
    return time.perf_counter(), time.process_time()


def _rms(squares: np.ndarray) -> list[float]:
    return np.sqrt(squares.mean(axis=0)).tolist()


def _by_sysid(logs: ReplayLogs, names: tuple[str, ...]) -> dict[str, float]:
    """Run the same fit by mujoco.sysid with its own defaults, and return the parameter values."""
    twin = logs.twin
    spec = twin.mjspec.copy()
    spec.option.timestep = twin.model.opt.timestep
    for joint in twin.robot.joints:
        spec.add_sensor(
            name=f"{joint}_pos", type=mujoco.mjtSensor.mjSENS_JOINTPOS, objtype=mujoco.mjtObj.mjOBJ_JOINT, objname=joint
        )
    params = sysid.ParameterDict()
    for name in names:
        low, high = _BOUNDS[name.rsplit("/", 1)[-1]]
        nominal = twin.params[name].nominal
        params.add(sysid.Parameter(name, nominal, low, high, modifier=_modifier(twin, name)))
    model = sysid.remove_visuals(spec).compile()
    times = np.arange(logs.commands.shape[1]) * model.opt.timestep
    begin = logs.start.make_initial_states(twin, twin.table(len(logs)), np.zeros((len(logs), 0)))
    sequences = sysid.ModelSequences(
        "double_pendulum",
        spec,
        [f"window{i}" for i in range(len(logs))],
        [sysid.create_initial_state(model, q, v) for q, v in zip(begin.qpos, begin.qvel, strict=True)],
        [sysid.TimeSeries(times, commands) for commands in logs.commands],
        [sysid.TimeSeries.from_names(times, measured, model) for measured in logs.measured],
    )
    residual = sysid.build_residual_fn(models_sequences=[sequences])
    found, _ = sysid.optimize(params, residual, verbose=False)
    return {name: float(np.ravel(found[name].value)[0]) for name in names}


def _modifier(twin: Twin, name: str):
    """Return a function that writes one parameter into a spec, as the twin's quantity does."""
    family, thing, quantity = name.split("/", 2)
    if family == "joint":

        def joint(spec: mujoco.MjSpec, param: sysid.Parameter) -> None:
            value = float(np.ravel(param.value)[0])
            setattr(spec.joint(thing), quantity, [value, 0.0, 0.0] if quantity == "damping" else value)

        return joint
    body = twin.model.body(thing).id
    depth, inertia = twin.model.body_ipos[body, 2], twin.model.body_inertia[body].copy()
    along = second_moments(inertia)[2]

    def link(spec: mujoco.MjSpec, param: sysid.Parameter) -> None:
        value, target = float(np.ravel(param.value)[0]), spec.body(thing)
        if quantity.endswith("t3"):
            target.ipos = [*target.ipos[:2], depth + value]
        else:
            more = (math.exp(2.0 * value) - 1.0) * along
            target.inertia = inertia + np.array([more, more, 0.0])

    return link


if __name__ == "__main__":
    metrics = run()
    low, high = metrics["ratio_min"], metrics["ratio_max"]
    print(f"{metrics['name']}: {metrics['ratio']:.1f} ({low:.1f} to {high:.1f}) times as fast as {metrics['against']}")
    for row in metrics["rounds"]:
        for who in ("ours", "theirs"):
            print(who, *(f"{row[f'{who}_{key}']:.1f}" for key in ("s", "processor_s")), row[f"{who}_rms"])
