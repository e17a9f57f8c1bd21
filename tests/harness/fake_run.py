"""``harness.run`` in a process of its own, with the fakes in place: ``fake_run.py PAUSE_S ARGS...``."""

from __future__ import annotations

import sys

import fake_world

from harness.run import main

if __name__ == "__main__":
    fake_world.PAUSE_S = float(sys.argv[1])
    fake_world.install()
    sys.exit(main(sys.argv[2:]))
