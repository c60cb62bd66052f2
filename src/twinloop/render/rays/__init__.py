"""Cast rays into a model with moving bodies, with one of several engines, imported when a caster is opened."""

from twinloop.render.rays.caster import CASTERS, BodyMotion, RayCaster, RayHits, open_caster

__all__ = [
    "CASTERS",
    "BodyMotion",
    "RayCaster",
    "RayHits",
    "open_caster",
]
