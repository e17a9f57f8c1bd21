"""What the ranks are told: once per method, and once per prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from methods.interface import SamplingParams
from methods.pipeline.distributed.layout import Layout
from methods.target.parts import Part, TargetSource
from methods.target.target import Target

if TYPE_CHECKING:
    from methods.pipeline.distributed.emulated import Emulation


@dataclass(frozen=True)
class Job:
    """Everything about a pipeline that does not change from prompt to prompt. It must pickle.

    ``reads``, ``series`` and ``vocabulary`` (draft ids, None: all) describe the drafter, which only
    its own rank builds: by ``build(target, options)``, whose result has a method ``drafter()``.
    ``tied_head``: its head is the target's. ``draft_layers`` are those on a cycle's critical path.
    With an ``emulation`` nothing is loaded. ``sources`` are the modules of the method, each with its
    file's hash: every rank imports them itself.
    """

    source: TargetSource | None
    layout: Layout
    stage_layers: tuple[int, ...]
    reads: tuple[int, ...]
    series: bool
    draft_layers: int
    vocabulary: tuple[int, ...] | None
    build: Callable[[Target, Any], Any] | None
    options: Any
    tied_head: bool
    device: str
    """"cpu", or "cuda": then each rank takes the GPU of its local rank."""
    emulation: Emulation | None = None
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """First and last (exclusive) layer of each stage."""
        return list(pairwise(accumulate(self.stage_layers, initial=0)))

    def part(self, rank: int) -> Part:
        """What ``rank`` needs of the target."""
        drafts, stage = rank == self.layout.drafter, self.layout.stage(rank)
        first, last = self.bounds[rank] if stage is not None else (0, 0)
        return Part(
            first,
            last,
            embedding=stage == 1 or (drafts and 0 in self.reads),
            head=rank == self.layout.last or (drafts and self.tied_head),
        )

    def taps(self, stage: int) -> list[int]:
        """Rows of ``reads`` whose residual stream comes from ``stage``."""
        first, last = self.bounds[stage - 1]
        return [row for row, tap in enumerate(self.reads) if first < tap <= last]


@dataclass(frozen=True)
class Request:
    """One decode call. ``max_new_tokens`` is already cut to the target's context; the prompt passes in
    pieces of ``chunk`` tokens; ``timings`` keeps every phase of every cycle."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    rule: Any
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    width: int
    chunk: int
    timings: bool = False
