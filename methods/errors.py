"""Errors that end a command with one line: what a user can cause, and what ends a run."""


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


class TargetChanged(RunFailure):
    """A method changed the target that all methods share: what ran since may have run on another one."""
