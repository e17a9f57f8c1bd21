"""Errors that end a command with one line: what a user can cause, and what ends a run; and others on one."""

from __future__ import annotations

import traceback
from pathlib import PurePath


class UsageError(ValueError):
    """Input that cannot be used as given.

    The message is one line that names what is wrong and what is allowed; command-line entries
    print it without a traceback and exit with code 2.
    """


class RunFailure(SystemExit):
    """Something that more than one prompt needs is gone, such as a rank of a distributed run.

    Not an ``Exception``: it ends the run instead of becoming one prompt's error. Left alone it
    ends the process with this message, exit code 1 and no traceback.
    """


ENDS_A_RUN = (KeyboardInterrupt, RunFailure)
"""Exceptions that are no failure of the method in whose code they are raised."""


class TargetChanged(RunFailure):
    """A method changed the target that all methods share: what ran since may have run on another one."""


def describe(error: BaseException, *modules: str) -> str:
    """An exception on one line: kind, message, and file and line of the innermost place in the package of
    the first of ``modules`` that it came through."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    for module in modules:
        if place := _place(error, module.partition(".")[0]):
            return f"{text} ({place})"
    return text


def describe_failure(error: BaseException, module: str) -> str:
    """``describe``, with the place in the package of a method's ``module``, or else in this package."""
    return describe(error, module, "methods")


def _place(error: BaseException, package: str) -> str | None:
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] == package:
            path = PurePath(frame.f_code.co_filename)
            # As the package has it: where that lies is this machine's affair.
            depth = module.count(".") + 1 + (path.name == "__init__.py")
            place = f"{'/'.join(path.parts[-depth:])}:{line}"
    return place
