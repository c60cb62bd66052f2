"""Cast rays into a model whose bodies move, for example for a lidar.

Two engines are available: MuJoCo's own ray caster, and Intel's Embree, which is faster. An engine is imported when a
caster is opened.
"""

from twinloop.render.rays.caster import CASTERS, BodyMotion, RayCaster, RayHits, open_caster

__all__ = [
    "CASTERS",
    "BodyMotion",
    "RayCaster",
    "RayHits",
    "open_caster",
]
