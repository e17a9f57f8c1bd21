"""All channels of one rank for drafts of one width, the same on both ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from torch import Tensor

from methods.pipeline.distributed.channel import CPU, INTEGERS, Blocks, Receiver, Sender
from methods.pipeline.distributed.job import Job
from methods.pipeline.distributed.messages import OFFER, VERDICT

TAGS_PER_SET = 1 << 12
"""Tags that one set of links may use."""


class Links:
    """``first_tag`` separates this set of channels from every other between the same ranks.

    Attributes that do not apply to this rank are None or empty. ``hidden_*``: hidden states
    [width, hidden] along the stages. ``taps_*``: residual streams [width, taps, hidden] to the
    drafter, by stage. ``offers_*``: the drafter's proposals to every other rank. ``law_*``: the
    law they were drawn from [draft_vocab] to the last stage. ``verdict_*``: from the last stage.
    """

    def __init__(
        self, job: Job, rank: int, width: int, hidden: int, draft_vocab: int, like: Tensor, first_tag: int
    ) -> None:
        layout = job.layout
        tags = count(first_tag)
        stage, drafts = layout.stage(rank), rank == layout.drafter
        self.blocks = Blocks(next(tags), like)

        self.hidden_in: Receiver | None = None
        self.hidden_out: Sender | None = None
        for upstream, tag in zip(range(layout.n - 1), tags, strict=False):
            if rank == upstream:
                self.hidden_out = Sender(upstream + 1, tag, (width, hidden), like)
            elif rank == upstream + 1:
                self.hidden_in = Receiver(upstream, tag, (width, hidden), like)

        self.taps_in: dict[int, Receiver] = {}
        self.taps_out: Sender | None = None
        for source, tag in zip(range(layout.n), tags, strict=False):
            rows = len(job.taps(source + 1))
            if not rows or source == layout.drafter:
                continue
            if rank == source:
                self.taps_out = Sender(layout.drafter, tag, (width, rows, hidden), like)
            elif drafts:
                self.taps_in[source + 1] = Receiver(source, tag, (width, rows, hidden), like)

        offer = (width, min(width, draft_vocab), OFFER)
        self.offers_in, self.offers_out = _fan_out(rank, layout.drafter, layout.world, offer, tags)
        self.verdict_in, self.verdict_out = _fan_out(rank, layout.last, layout.world, (VERDICT,), tags)

        self.law_in: Receiver | None = None
        self.law_out: Sender | None = None
        tag = next(tags)
        if width == 1 and layout.last != layout.drafter:
            if drafts:
                self.law_out = Sender(layout.last, tag, (draft_vocab,), CPU)
            elif stage == layout.n:
                self.law_in = Receiver(layout.drafter, tag, (draft_vocab,), CPU)


def _fan_out(
    rank: int, source: int, world: int, shape: tuple[int, ...], tags: Iterator[int]
) -> tuple[Receiver | None, list[Sender]]:
    """One channel from ``source`` to every other rank: this rank's end or ends of it. First to
    stage 1, then to the drafter: the others are in no hurry."""
    receiver, senders = None, []
    for destination, tag in zip((0, *range(world - 1, 0, -1)), tags, strict=False):
        if destination == source:
            continue
        if rank == source:
            senders.append(Sender(destination, tag, shape, INTEGERS))
        elif rank == destination:
            receiver = Receiver(source, tag, shape, INTEGERS)
    return receiver, senders
