"""``spd-bench COMMAND``: every command of the project under one name.

The packages have names that folders of others have, too, and ``python -m`` takes what lies in the working
directory first. This module's name is the project's own, and the installed command looks there last.
Nothing of the project is imported before it is known to be the project's.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path

COMMANDS = {
    "run": "harness.run",
    "table": "paper_tables",
    "check": "harness.check",
    "compare": "harness.compare",
    "report": "harness.report",
    "train": "harness.train",
    "soak": "harness.soak",
    "bench": "harness.bench",
    "project": "harness.project",
}
"""What ``python -m`` is given for each command."""
PACKAGES = ("methods", "harness", "paper_tables")
_ROOT = Path(__file__).resolve().parent
_USAGE = f"usage: spd-bench {'|'.join(COMMANDS)} ... (spd-bench COMMAND --help lists a command's options)"


def main() -> int:
    """Run the command that ``sys.argv`` names as ``python -m`` runs it, whose exit code ends the process.
    Returns 0 after the help, 2 after one line for a command that does not exist or cannot be found."""
    command, *arguments = sys.argv[1:] or ("",)
    if command in ("-h", "--help"):
        print(_USAGE)
        return 0
    if command not in COMMANDS:
        return _refused(f"no command {command!r}; allowed: {', '.join(COMMANDS)}")
    # Plugins may lie in the working directory, but nothing there is taken for a package of this project.
    sys.path += [str(_ROOT), ""]
    hidden = hidden_by_others(PACKAGES)
    if hidden is not None:
        return _refused(hidden)
    sys.argv[1:] = arguments
    runpy.run_module(COMMANDS[command], run_name="__main__", alter_sys=True)
    return 0


def require(*packages: str) -> None:
    """Raise ``ImportError`` if other code would be imported as one of ``packages``. Where ``python -m`` is
    still looking for its module nobody can catch that: there the process ends, with one line and code 2."""
    hidden = hidden_by_others(packages)
    if hidden is None:
        return
    if sys.argv[:1] == ["-m"]:
        raise SystemExit(_refused(hidden))
    raise ImportError(hidden)


def hidden_by_others(packages: Iterable[str]) -> str | None:
    """What is wrong if one of ``packages`` is not found beside this file, but elsewhere before."""
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or (spec.origin is not None and Path(spec.origin).resolve().parent == _ROOT / name):
            continue
        place = spec.origin or next(iter(spec.submodule_search_locations or ()), "another module")
        return (
            f"{place} hides the package {name} of spd-bench, which lies in {_ROOT}: rename it, work in "
            "another directory, or use the command spd-bench, which looks into the working directory last"
        )
    return None


def _refused(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
