"""Run twinloop's command line with ``python -m twinloop``."""

from twinloop.cli.main import run

if __name__ == "__main__":
    run()
