"""A family of SO-101 robots that Drake simulates, on which no part of twinloop was developed.

Links, cube, table and contact are Drake's; servos, gears, friction, encoders and delays are own code (`drives`). Hidden
values and their sources are in ``hidden.yaml``. It needs the extra ``drake``. Seeds from 300 on are for scoring only.

    from benchmarks.transfer.drake_so101 import record_log, run_expert, run_trials

    log = record_log(seed=3, episodes=6, seconds=8.0)         # episodes for twinloop.identify.identify
    trials = run_trials(3, "runs/policy", range(90)).success  # one outcome per number of an initial condition
    script = run_expert(3, range(90)).success                 # the scripted expert; memoryless=True for the other
"""

from benchmarks.transfer.drake_so101.hidden import draw_robot
from benchmarks.transfer.drake_so101.trials import record_log, run_actor, run_expert, run_trials

__all__ = ["draw_robot", "record_log", "run_actor", "run_expert", "run_trials"]
