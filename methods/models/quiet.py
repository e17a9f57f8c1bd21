"""Keeping transformers' own progress bars and hints off the terminal, where a run prints its own lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Silence the bars of loading, converting and saving a model; they return afterwards."""
    from transformers.utils import logging as transformers_logging

    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        # The GGUF reader uses tqdm itself and listens to no switch; its bar goes to this buffer.
        with redirect_stderr(StringIO()):
            yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()


class _FallbackHint(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return "is falling back to its reference PyTorch implementation" not in record.getMessage()


_FALLBACK_HINT = _FallbackHint()


def hide_fallback_hints() -> None:
    """Drop transformers' advice to install another kernel package, once per function it has."""
    # addFilter ignores a filter that is there already.
    logging.getLogger("transformers.integrations.hub_kernels").addFilter(_FALLBACK_HINT)
