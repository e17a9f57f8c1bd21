"""A benchmark: its name, its three sources, and how a row of each becomes a prompt."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import ClassVar

from harness.benchmarks.hub import HubDataset
from harness.benchmarks.prompt import Prompt
from harness.benchmarks.rows import Row, Rows


class Benchmark(ABC):
    """One set of prompts. ``version`` rises with every change that alters a prompt or a score."""

    name: ClassVar[str]
    version: ClassVar[int]
    hub: ClassVar[HubDataset]

    @abstractmethod
    def wheel_rows(self) -> Rows:
        """The rows of the offline carrier. Raises ``UsageError`` where it cannot be had."""

    @abstractmethod
    def hub_prompts(self, rows: Rows) -> Iterable[Prompt]:
        """Prompts from hub rows, in their order."""

    @abstractmethod
    def wheel_prompts(self, rows: Rows) -> Iterable[Prompt]:
        """Prompts from the carrier's rows, in their order."""

    @abstractmethod
    def dir_prompt(self, row: Row) -> Prompt:
        """A prompt from one line of a ``question.jsonl``, its turns taken as they stand."""

    def paper_ids(self) -> tuple[str, ...]:
        """The ids of the paper's prompts in its order; empty if the paper uses the whole set as it is."""
        return ()


@cache
def paper_subsets() -> dict[str, tuple[str, ...]]:
    """Benchmark name to the paper's prompt ids (``paper_subsets.json``)."""
    text = resources.files("harness.benchmarks").joinpath("paper_subsets.json").read_text("utf-8")
    return {name: tuple(ids) for name, ids in json.loads(text)["prompt_ids"].items()}
