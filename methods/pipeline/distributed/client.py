"""A pipeline method's decode call, handed to the ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from methods.code import file_hashes
from methods.errors import UsageError
from methods.interface import DecodeResult, DecodingMethod, SamplingParams
from methods.pipeline.distributed.job import Job, Request
from methods.pipeline.distributed.layout import Layout
from methods.pipeline.distributed.rank_process import Report
from methods.pipeline.distributed.ranks import THREADS, Ranks
from methods.pipeline.drafter import Drafter, critical_layers
from methods.registry import modules
from methods.target.target import PREFILL_CHUNK, Target
from methods.transcript import Transcript
from methods.verification import ProposalRule


class Distributed:
    """Decodes like ``Lockstep``, one rank per stage. ``reports`` are those of the last call; with
    ``timings`` they hold every phase of every cycle.

    Raises ``UsageError`` for a target that exists in this process only, and for a world of ranks
    that does not fit the layout.
    """

    def __init__(
        self,
        method: DecodingMethod,
        layout: Layout,
        stage_layers: Sequence[int],
        drafter: Drafter,
        tied_head: bool,
    ) -> None:
        target: Target = method.target
        if target.source is None:
            raise UsageError(
                f"the distributed runtime loads the parts of a target from files; {target.name!r} has none"
            )
        self._target = target
        self.reports: list[Report] = []
        self.timings = False
        self.job = Job(
            source=target.source,
            layout=layout,
            stage_layers=tuple(stage_layers),
            reads=drafter.reads,
            series=drafter.series,
            draft_layers=critical_layers(drafter, stage_layers, not layout.own_drafter),
            vocabulary=None if drafter.vocabulary.is_full else tuple(drafter.vocabulary.ids.tolist()),
            build=type(method),
            # What a request says anyway is left out: jobs that are equal share what the ranks have loaded.
            options=dataclasses.replace(method.options, runtime="lockstep", width=1, proposal=None),
            tied_head=tied_head,
            device=str(target.device).split(":")[0],
            sources=tuple(file_hashes(modules(type(method))).items()),
        )

    def decode(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        stop_ids: Sequence[int],
        rule: ProposalRule,
        width: int,
    ) -> DecodeResult:
        """See ``DecodingMethod.decode``; raises ``RunFailure`` if a rank fails."""
        self._target.check_prompt(prompt_ids)
        Transcript(max_new_tokens, stop_ids)  # refuses what cannot be asked for, before the ranks see it
        request = Request(
            tuple(prompt_ids),
            sampling,
            rule,
            self._target.room(prompt_ids, max_new_tokens),
            tuple(stop_ids),
            width,
            PREFILL_CHUNK,
            self.timings,
        )
        self.reports = Ranks.of(self.job.layout).decode(self.job, request)
        result = self.reports[0].result
        assert result is not None
        return result

    def describe(self) -> dict[str, Any]:
        layout = self.job.layout
        return {
            "runtime": "distributed",
            "layout": "n+1" if layout.own_drafter else "n",
            "ranks": layout.world,
            "threads": THREADS,
        }
