"""The clock that methods are held to. The registry imports this, so it is bound before any plugin runs:
one that replaces what ``time`` holds replaces its own clock only."""

from time import perf_counter, thread_time

__all__ = ["perf_counter", "thread_time"]
