"""The one exception a user can cause."""


class UsageError(ValueError):
    """Input that cannot be used as given.

    The message is one line that names what is wrong and what is allowed; command-line entries
    print it without a traceback and exit with code 2.
    """
