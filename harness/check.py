"""``python -m harness.check``: is a decoding method's output the target's own?

Runs the checks on one method, or without ``--method`` on the built-in ones and on this package itself.
Prints one line per check, and one JSON object last. Exit codes: 0 all that apply passed; 1 one failed;
2 the input cannot be used; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness.cli.entry import exit_code
from harness.cli.guard import guarded


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""

    def command() -> int:
        from harness.checks.cli import execute  # loads torch

        return execute(sys.argv[1:] if argv is None else argv)

    return exit_code(command)


if __name__ == "__main__":
    sys.exit(guarded(main))
