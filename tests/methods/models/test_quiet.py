"""What transformers says on its own does not reach the terminal; real warnings do."""

from __future__ import annotations

import logging
import sys

import pytest
import torch

from methods.models.quiet import hide_fallback_hints, no_progress_bars
from methods.testing.tiny import tiny_target


def test_bars_are_silent_inside_and_back_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    from tqdm.auto import tqdm
    from transformers.utils import logging as transformers_logging

    before = transformers_logging.is_progress_bar_enabled()
    stream = sys.stderr
    with no_progress_bars():
        for _ in tqdm(range(3), desc="converting"):
            assert not transformers_logging.is_progress_bar_enabled()
    assert transformers_logging.is_progress_bar_enabled() == before
    assert sys.stderr is stream
    assert capsys.readouterr() == ("", "")


def test_failure_inside_passes_and_restores(capsys: pytest.CaptureFixture[str]) -> None:
    stream = sys.stderr
    with pytest.raises(OSError, match="gone"), no_progress_bars():
        raise OSError("gone")
    assert sys.stderr is stream


def test_hybrid_target_runs_without_advice(caplog: pytest.LogCaptureFixture) -> None:
    from transformers.integrations.hub_kernels import logger

    logger.warning_once.cache_clear()  # whatever another test already triggered would say nothing more
    target = tiny_target("hybrid", layers=4)
    logger.addHandler(caplog.handler)
    try:
        target.hf(torch.tensor([[1, 2, 3]]))
        target.forward([1, 2, 3], target.new_state())
        logger.warning("a real warning")
    finally:
        logger.removeHandler(caplog.handler)
    # A set, since the record may also come by way of the root logger.
    assert {record.getMessage() for record in caplog.records} == {"a real warning"}


def test_filter_is_added_once() -> None:
    for _ in range(3):
        hide_fallback_hints()
    filters = logging.getLogger("transformers.integrations.hub_kernels").filters
    assert len([f for f in filters if type(f).__name__ == "_FallbackHint"]) == 1
