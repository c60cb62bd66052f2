"""Which cameras an environment photographs its worlds with."""

from __future__ import annotations

from twinloop.core.errors import InputError
from twinloop.envs.options import EnvOptions
from twinloop.randomize import Plan
from twinloop.rollout.photographer import Photographer


def open_photographer(plan: Plan, options: EnvOptions) -> tuple[Photographer, str]:
    """Who takes the pictures that an environment's options ask for, and the camera of ``render``, if any.

    Raises:
        UnknownNameError: a camera that the twin does not name.
        InputError: pictures of a twin that names none.
    """
    wanted, existing = list(options.cameras), plan.twin.spec.cameras
    if options.render_mode is not None:
        if not existing:
            raise InputError(f"The twin {plan.twin.name} names no camera to render from. Add `cameras:` to its YAML.")
        wanted.append(options.camera or existing[0])
    taker = Photographer(
        plan.twin,
        wanted,
        height=options.height,
        width=options.width,
        renderer=options.renderer,
        texture_pool=plan.texture_pool,
        run_seed=plan.run_seed,
    )
    return taker, wanted[-1] if wanted else ""
