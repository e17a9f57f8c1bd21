"""The checks a decoding method must pass, for any registered method.

``checks_for`` is how another project runs them in its own tests; ``python -m harness.check`` prints them.
"""

from harness.checks.suite import checks_for

__all__ = ["checks_for"]
