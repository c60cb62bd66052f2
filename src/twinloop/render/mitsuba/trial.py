"""Test one Mitsuba variant with a small image: ``python -m twinloop.render.mitsuba.trial NAME LIBRARY``.

A wrong LLVM library ends the process, so `variants` runs this module in a subprocess.
"""

from __future__ import annotations

import sys

from twinloop.render.mitsuba.variants import MitsubaVariant


def main(name: str, library: str) -> int:
    """Render a lit surface with one Mitsuba variant.

    Args:
        name: short name of the variant, such as ``llvm``.
        library: path of the LLVM library; empty for the default.

    Returns:
        Exit code: 0 if the light is correct, 1 otherwise.
    """
    mitsuba = MitsubaVariant(name=name, library=library).load()
    scene = mitsuba.load_dict(
        {
            "type": "scene",
            "sheet": {"type": "rectangle"},
            "light": {"type": "constant", "radiance": 1.0},
            "integrator": {"type": "path"},
            "sensor": {
                "type": "perspective",
                "to_world": mitsuba.ScalarTransform4f().look_at([0, 0, 1], [0, 0, 0], [0, 1, 0]),
                "film": {"type": "hdrfilm", "width": 8, "height": 8},
            },
        }
    )
    light = float(sum(mitsuba.TensorXf(mitsuba.render(scene, spp=16)).array) / (8 * 8 * 3))
    return 0 if abs(light - 0.5) < 0.05 else 1  # a default diffuse sheet reflects half of the light, except for noise


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
