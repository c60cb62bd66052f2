"""Test whether Filament works on this machine: ``python -m twinloop.render.filament.trial``.

Without a Vulkan driver Filament ends the process, so `context` runs this module in a subprocess.
"""

from __future__ import annotations

from twinloop.render.filament.context import create_context

if __name__ == "__main__":
    create_context()
