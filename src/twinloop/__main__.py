"""``python -m twinloop``."""

from twinloop.cli.main import run

if __name__ == "__main__":
    run()
